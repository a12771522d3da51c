// Finds interleaves whose results several programs may need, and keeps them for each thread.
#include "cpu/kept_blocks.h"

#include <map>
#include <set>

#include "cpu/operands.h"

namespace tilewright::cpu {

void keep_blocks(Program& program) {
    // What also reads the array itself would have two copies of it compete for the cache. Programs
    // have views only of arrays that they do not write.
    std::set<std::uint32_t> others;  // views that other instructions read
    for (const Instruction& instruction : program.code) {
        const bool interleaves = std::holds_alternative<Interleave>(instruction);
        visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
            if (home == Home::view && use == Use::read && !interleaves) others.insert(index);
        });
    }
    std::map<std::uint32_t, int> kept;  // by buffer
    for (const Instruction& instruction : program.code) {
        const auto* made = std::get_if<Interleave>(&instruction);
        if (made && made->in.home == Home::view && !others.contains(made->in.index))
            kept[made->out.index] = -1;
    }
    if (kept.empty()) return;
    // Only the operands of dots may be somewhere else than in the buffer.
    std::set<std::uint32_t> written;
    for (const Instruction& instruction : program.code) {
        const auto* dot = std::get_if<Dot>(&instruction);
        visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
            if (home != Home::buffer) return;
            const bool other = use == Use::read ? !dot : !written.insert(index).second;
            if (other) kept.erase(index);
        });
        if (dot && dot->scale.home == Home::buffer) kept.erase(dot->scale.index);
    }
    for (Instruction& instruction : program.code) {
        auto* made = std::get_if<Interleave>(&instruction);
        const auto buffer = made ? kept.find(made->out.index) : kept.end();
        if (buffer == kept.end()) continue;
        made->kept = buffer->second = static_cast<int>(program.kept.size());
        program.kept.push_back(program.buffers[buffer->first].bytes);
    }
    const auto of = [&](const Tile& operand) {
        const auto buffer = operand.home == Home::buffer ? kept.find(operand.index) : kept.end();
        return buffer == kept.end() ? -1 : buffer->second;
    };
    for (Instruction& instruction : program.code) {
        if (auto* dot = std::get_if<Dot>(&instruction)) {
            dot->kept_broadcast = of(dot->broadcast);
            dot->kept_vector = of(dot->vector);
        }
    }
}

bool KeptBlocks::find(const std::byte* from) {
    constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;
    static_assert((kEntries & (kEntries - 1)) == 0);
    std::size_t at = (reinterpret_cast<std::uintptr_t>(from) * kMultiplier) >> 32;
    current_ = nullptr;
    for (;; ++at) {
        Entry& entry = entries_[at % kEntries];
        if (entry.row != row_) {
            if (num_known_ == kEntries / 2) return false;
            ++num_known_;
            entry = {from, row_, nullptr};
            return false;
        }
        if (entry.from != from) continue;
        const bool made = entry.block != nullptr;
        if (!made) entry.block = next_block();
        current_ = entry.block;
        return made;
    }
}

std::byte* KeptBlocks::next_block() {
    if (count_ == most_) return nullptr;
    if (count_ == static_cast<std::int64_t>(blocks_.size())) {
        blocks_.emplace_back(static_cast<std::byte*>(
            ::operator new (static_cast<std::size_t>(bytes_), std::align_val_t{kAlignment})));
    }
    return blocks_[count_++].get();
}

}  // namespace tilewright::cpu
