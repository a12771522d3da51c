// Places tile buffers, scratch and strip temporaries in the arena of a thread.
#include "cpu/assign_memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "cpu/operands.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
    return ceil_div(bytes, kAlignment) * kAlignment;
}

class BufferSet {
  public:
    explicit BufferSet(std::size_t size = 0) : words_((size + 63) / 64) {}
    bool contains(std::size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
    void insert(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
    void erase(std::size_t i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }
    /// Adds all of `other`; true if that changed anything.
    bool merge(const BufferSet& other) {
        bool changed = false;
        for (std::size_t w = 0; w < words_.size(); ++w) {
            const std::uint64_t merged = words_[w] | other.words_[w];
            changed |= merged != words_[w];
            words_[w] = merged;
        }
        return changed;
    }
    template <typename Visitor>
    void for_each(Visitor&& visit) const {
        for (std::size_t i = 0; i < words_.size() * 64; ++i) {
            if (contains(i)) visit(i);
        }
    }

  private:
    std::vector<std::uint64_t> words_;
};

/// The effect of one instruction on buffers.
struct Effect {
    std::vector<std::uint32_t> reads, writes, kills;
};

class MemoryAssignment {
  public:
    explicit MemoryAssignment(Program& program)
        : program_(program), size_(program.buffers.size()), root_(size_), used_(size_) {
        std::iota(root_.begin(), root_.end(), 0U);
        interferes_.assign(size_, BufferSet(size_));
    }

    /// Returns the total bytes of the buffers.
    std::int64_t run() {
        collect_effects();
        find_live_out();
        find_interference();
        coalesce();
        place();
        rename();
        return end_;
    }

  private:
    void collect_effects() {
        std::map<std::uint32_t, std::uint32_t> copy_of_view;
        for (const Instruction& instruction : program_.code) {
            if (const auto* load = std::get_if<LoadView>(&instruction)) {
                copy_of_view[load->view] = load->copy.index;
            } else if (const auto* part = std::get_if<SubView>(&instruction)) {
                copy_of_view[part->view] = copy_of_view.at(part->from);
            }
        }
        for (const Instruction& instruction : program_.code) {
            Effect effect;
            visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
                // A read of a view may read the copy that the view points to.
                if (home == Home::view && use == Use::read) {
                    effect.reads.push_back(copy_of_view.at(index));
                }
                if (home != Home::buffer) return;
                used_[index] = true;
                if (use != Use::write) effect.reads.push_back(index);
                if (use != Use::read) effect.writes.push_back(index);
                if (use == Use::write) effect.kills.push_back(index);
            });
            if (const auto* chain = std::get_if<Chain>(&instruction)) {
                std::erase_if(effect.reads,
                              [&](std::uint32_t b) { return made_inside(*chain, b); });
            }
            effects_.push_back(std::move(effect));
        }
    }

    /// True when the chain writes `buffer` before it reads it.
    static bool made_inside(const Chain& chain, std::uint32_t buffer) {
        for (const StripOp& op : chain.ops) {
            for (const StripSource& in : op.in) {
                if (in.home == Home::buffer && in.index == buffer) return false;
            }
            if (op.out.home == Home::buffer && op.out.index == buffer) return true;
        }
        return false;
    }

    void find_live_out() {
        const std::size_t count = program_.code.size();
        live_out_.assign(count, BufferSet(size_));
        std::vector<BufferSet> live_in(count, BufferSet(size_));
        for (bool changed = true; changed;) {
            changed = false;
            for (std::size_t i = count; i-- > 0;) {
                for (const std::size_t next : successors(i)) {
                    changed |= live_out_[i].merge(live_in[next]);
                }
                BufferSet in = live_out_[i];
                for (const std::uint32_t buffer : effects_[i].kills) in.erase(buffer);
                for (const std::uint32_t buffer : effects_[i].reads) in.insert(buffer);
                changed |= live_in[i].merge(in);
            }
        }
    }

    std::vector<std::size_t> successors(std::size_t i) const {
        const Instruction& instruction = program_.code[i];
        if (std::holds_alternative<Halt>(instruction)) return {};
        if (const auto* jump = std::get_if<Jump>(&instruction)) return {jump->target};
        if (const auto* jump = std::get_if<JumpUnless>(&instruction)) return {i + 1, jump->target};
        if (const auto* test = std::get_if<LoopTest>(&instruction)) return {i + 1, test->target};
        if (const auto* next = std::get_if<LoopNext>(&instruction)) {
            // The loop also ends here, when the induction variable overflows.
            return {next->target, i + 1};
        }
        return {i + 1};
    }

    void interfere(std::uint32_t a, std::uint32_t b) {
        if (a == b) return;
        interferes_[a].insert(b);
        interferes_[b].insert(a);
    }

    void find_interference() {
        for (std::size_t i = 0; i < program_.code.size(); ++i) {
            const Effect& effect = effects_[i];
            const auto* move = std::get_if<Move>(&program_.code[i]);
            const bool plain = move && copies_whole(*move);
            for (const std::uint32_t out : effect.writes) {
                live_out_[i].for_each([&](std::size_t live) {
                    if (plain && live == move->in.index) return;
                    interfere(out, static_cast<std::uint32_t>(live));
                });
                for (const std::uint32_t other : effect.writes) interfere(out, other);
                for (const std::uint32_t in : effect.reads) {
                    if (plain && in == move->in.index) {
                        copies_.emplace_back(out, in);
                    } else if (may_share(program_.code[i], in, out)) {
                        in_place_.emplace_back(out, in);
                    } else {
                        interfere(out, in);
                    }
                }
            }
        }
    }

    /// True for a copy between buffers of the same layout.
    bool copies_whole(const Move& move) const {
        const Tile &in = move.in, &out = move.out;
        return move.whole && in.home == Home::buffer && out.home == Home::buffer &&
               in.dtype == out.dtype && in.shape == out.shape && move.box == out.shape &&
               in.offset == out.offset && in.stride == out.stride &&
               in.lane_axis == out.lane_axis && in.panel_stride == out.panel_stride &&
               (in.lane_axis < 0 || in.width == out.width) &&
               program_.buffers[in.index].bytes == program_.buffers[out.index].bytes;
    }

    /// True when a chain may write `out` over `in`: the last read of each element is by the op that
    /// writes it, or by an earlier one.
    bool may_share(const Instruction& instruction, std::uint32_t in, std::uint32_t out) const {
        const auto* chain = std::get_if<Chain>(&instruction);
        if (!chain) return false;
        const StripSource* written = nullptr;
        std::size_t writer = 0;
        for (std::size_t i = 0; i < chain->ops.size(); ++i) {
            const StripOp& op = chain->ops[i];
            if (op.sum.home == Home::buffer && op.sum.index == out) return false;
            if (op.out.home != Home::buffer || op.out.index != out) continue;
            if (!op.makes_tile()) return false;
            written = &op.out;
            writer = i;
        }
        if (!written) return false;
        bool direct = false;  // read by name, not as the copy of a view
        for (std::size_t i = 0; i < chain->ops.size(); ++i) {
            const StripOp& op = chain->ops[i];
            for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                StripSource source = op.in[k];
                if (source.home != Home::buffer || source.index != in) continue;
                direct = true;
                const bool same_size = size_of(source.dtype) == size_of(written->dtype);
                source.index = out;
                source.dtype = written->dtype;
                if (!same_size || !(source == *written) || i > writer) return false;
            }
        }
        return direct && program_.buffers[in].bytes == program_.buffers[out].bytes;
    }

    std::uint32_t root(std::uint32_t buffer) const {
        while (root_[buffer] != buffer) buffer = root_[buffer];
        return buffer;
    }

    using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

    void join(const Pairs& pairs) {
        for (const auto& [a, b] : pairs) {
            const std::uint32_t x = root(a), y = root(b);
            if (x == y || interferes_[x].contains(y)) continue;
            root_[y] = x;
            used_[x] = true;
            interferes_[x].merge(interferes_[y]);
            interferes_[y].for_each([&](std::size_t other) { interferes_[other].insert(x); });
        }
    }

    void coalesce() {
        // Copies first: a copy that is removed saves more than memory that is shared.
        join(copies_);
        join(in_place_);
        // Pairs that were not joined must not overlap at some other offset.
        for (const auto& [a, b] : in_place_) interfere(root(a), root(b));
    }

    void place() {
        std::vector<std::uint32_t> order;
        for (std::uint32_t i = 0; i < size_; ++i) {
            if (root(i) == i && used_[i]) order.push_back(i);
        }
        std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return program_.buffers[a].bytes > program_.buffers[b].bytes;
        });
        std::vector<std::uint32_t> placed;
        for (const std::uint32_t buffer : order) {
            std::vector<std::pair<std::int64_t, std::int64_t>> taken;
            for (const std::uint32_t other : placed) {
                if (!interferes_[buffer].contains(other) && !interferes_[other].contains(buffer))
                    continue;
                const Buffer& b = program_.buffers[other];
                taken.emplace_back(b.offset, b.offset + aligned(b.bytes));
            }
            std::sort(taken.begin(), taken.end());
            std::int64_t offset = 0;
            const std::int64_t bytes = aligned(program_.buffers[buffer].bytes);
            for (const auto& [begin, end] : taken) {
                if (offset + bytes <= begin) break;
                offset = std::max(offset, end);
            }
            program_.buffers[buffer].offset = offset;
            end_ = std::max(end_, offset + bytes);
            placed.push_back(buffer);
        }
    }

    /// Makes every operand name the buffer whose memory it shares, and removes copies onto
    /// themselves.
    void rename() {
        for (std::uint32_t i = 0; i < size_; ++i) {
            program_.buffers[i].offset = program_.buffers[root(i)].offset;
        }
        for (Instruction& instruction : program_.code) {
            visit_operands(instruction, [&](Home home, std::uint32_t& index, Use) {
                if (home == Home::buffer) index = root(index);
            });
        }
        std::vector<std::size_t> moved(program_.code.size() + 1);
        std::vector<Instruction> kept;
        for (std::size_t i = 0; i < program_.code.size(); ++i) {
            moved[i] = kept.size();
            const auto* move = std::get_if<Move>(&program_.code[i]);
            const bool idle = move && copies_whole(*move) && move->in.index == move->out.index;
            if (idle) continue;
            program_.lines[kept.size()] = program_.lines[i];
            kept.push_back(std::move(program_.code[i]));
        }
        program_.lines.resize(kept.size());
        for (Instruction& instruction : kept) {
            if (auto* jump = std::get_if<Jump>(&instruction)) jump->target = moved[jump->target];
            if (auto* jump = std::get_if<JumpUnless>(&instruction))
                jump->target = moved[jump->target];
            if (auto* test = std::get_if<LoopTest>(&instruction))
                test->target = moved[test->target];
            if (auto* next = std::get_if<LoopNext>(&instruction))
                next->target = moved[next->target];
        }
        program_.code = std::move(kept);
    }

    Program& program_;
    std::size_t size_;
    std::vector<std::uint32_t> root_;
    std::vector<bool> used_;  ///< by an instruction; the others became strip temporaries
    std::vector<Effect> effects_;
    std::vector<BufferSet> live_out_;
    std::vector<BufferSet> interferes_;
    Pairs copies_;    ///< may share memory, which removes the copy
    Pairs in_place_;  ///< may share memory only at the same offset
    std::int64_t end_ = 0;
};

/// True when a run reads nothing that it writes and has no reductions.
bool may_repeat(const Chain& chain, const FusedRun& run) {
    if (!run.reductions.empty()) return false;
    const auto same = [](const StripSource& a, const StripSource& b) {
        return a.home == b.home && a.index == b.index && a.home != Home::view;
    };
    for (const FusedRun::Operand& written : run.operands) {
        if (written.temporary >= 0 || written.input >= 0) continue;
        for (const FusedRun::Operand& read : run.operands) {
            if (read.temporary >= 0 || read.input < 0) continue;
            const StripOp& op = chain.ops[read.op];
            if (same(chain.ops[written.op].out, op.in[read.input])) return false;
        }
    }
    return true;
}

}  // namespace

void assign_memory(Program& program) {
    std::int64_t end = MemoryAssignment(program).run();
    for (Instruction& instruction : program.code) {
        auto* chain = std::get_if<Chain>(&instruction);
        if (!chain) continue;
        for (FusedRun& run : chain->fused) run.repeats = may_repeat(*chain, run);
    }
    for (RefSlot& ref : program.refs) {
        if (ref.argument >= 0) continue;
        std::int64_t elements = 1;
        for (const std::int64_t extent : ref.type.extents) elements *= extent;
        ref.offset = end;
        end += aligned(elements * size_of(ref.type.dtype));
    }
    program.strip_bytes = aligned(program.strip_bytes);
    program.strip_offset = end;
    std::int64_t temporaries = 0;
    for (const Instruction& instruction : program.code) {
        if (const auto* chain = std::get_if<Chain>(&instruction)) {
            temporaries = std::max<std::int64_t>(temporaries, chain->num_temporaries);
        }
    }
    program.arena_bytes = end + temporaries * program.strip_bytes + kAlignment;
}

}  // namespace tilewright::cpu
