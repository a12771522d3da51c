// Finds registers for the steps of vector code.
#include "cpu/vector_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers

constexpr int kMostSpilled = 8192;  ///< bytes
constexpr int kAlignment = 64;
constexpr int kNever = std::numeric_limits<int>::max();

}  // namespace

VectorEncoder::VectorEncoder(VectorCode& code, int vectors, int masks)
    : encoder_(code.lanes() == 16),
      code_(code),
      vector_bytes_(4 * code.lanes()),
      homes_(code.steps_.size()),
      places_(code.steps_.size(), 0),
      is_operand_(code.steps_.size(), false),
      vectors_{0, std::vector<Value>(static_cast<std::size_t>(vectors), kNone)},
      masks_{1, std::vector<Value>(static_cast<std::size_t>(masks), kNone)} {}

void VectorEncoder::find_reads() {
    for (const int i : code_.order_) {
        const Step& step = step_of(i);
        for (std::size_t k = 0; k < step.in.size(); ++k) {
            if (step.in[k] == kNone || is_immediate(step, k)) continue;
            std::vector<int>& reads = home_of(step.in[k]).reads;
            if (reads.empty() || reads.back() != i) reads.push_back(i);
        }
    }
}

/// What one step alone reads is not loaded to a register, unless a store comes between.
void VectorEncoder::find_operands() {
    std::vector<int> writes;  // places of steps that write memory
    for (std::size_t at = 0; at < code_.order_.size(); ++at) {
        const int i = code_.order_[at];
        places_[static_cast<std::size_t>(i)] = static_cast<int>(at);
        if (step_of(i).writes()) writes.push_back(static_cast<int>(at));
    }
    std::vector<bool> has_operand(code_.steps_.size(), false);
    for (const int i : code_.order_) {
        const Step& step = step_of(i);
        const std::vector<int>& reads = home_of(i).reads;
        if (!is_readable(step) || reads.size() != 1) continue;
        const auto reader = static_cast<std::size_t>(reads[0]);
        const Step& reads_it = step_of(reads[0]);
        bool alone = !has_operand[reader];
        for (std::size_t k = 0; k < reads_it.in.size(); ++k) {
            if (reads_it.in[k] != i) continue;
            alone = alone && takes_memory(reads_it, k) &&
                    std::count(reads_it.in.begin(), reads_it.in.end(), i) == 1;
        }
        if (!alone) continue;
        const int from = places_[static_cast<std::size_t>(i)], to = places_[reader];
        const auto write = std::lower_bound(writes.begin(), writes.end(), from);
        const bool same = write == writes.end() || *write > to;
        has_operand[reader] = is_operand_[static_cast<std::size_t>(i)] =
            same || step.kind == Kind::constant;
    }
}

int VectorEncoder::next_read(Value value) const {
    const Home& home = homes_[static_cast<std::size_t>(value)];
    if (home.next == home.reads.size()) return kNever;
    return places_[static_cast<std::size_t>(home.reads[home.next])];
}

// ---- Registers.

int VectorEncoder::free_register(File& file, const Step& step) {
    int chosen = kNone, last = kNone;
    for (std::size_t r = 0; r < file.held.size(); ++r) {
        const Value value = file.held[r];
        if (value == kNone) return static_cast<int>(r);
        if (std::find(step.in.begin(), step.in.end(), value) != step.in.end()) continue;
        if (const int next = next_read(value); next > last) {
            last = next;
            chosen = static_cast<int>(r);
        }
    }
    spill(file.held[static_cast<std::size_t>(chosen)]);
    return chosen;
}

void VectorEncoder::spill(Value value) {
    Home& home = home_of(value);
    File& file = file_of(value);
    if (!step_of(value).is_constant() && home.spilled == kNone) {
        home.spilled = free_spills_.empty() ? spills_++ : free_spills_.back();
        if (!free_spills_.empty()) free_spills_.pop_back();
        if (has_mask(value))
            store_spilled_mask(spill_offset(home.spilled), home.reg);
        else
            encoder_.vector_memory(kStore, home.reg, 0, r10, spill_offset(home.spilled));
    }
    file.held[static_cast<std::size_t>(home.reg - file.first)] = kNone;
    home.reg = kNone;
}

void VectorEncoder::load_constant(int reg, Value value) {
    const VectorCode::Words& words = *code_.words(value);
    if (words == VectorCode::Words{})
        encoder_.vector(kZero, reg, reg, reg);
    else
        encoder_.vector_memory(kLoad, reg, 0, rdx, constant_at(words));
}

/// Brings an operand of a step to a register.
void VectorEncoder::bring(Value value, const Step& step) {
    Home& home = home_of(value);
    if (home.reg != kNone) return;
    File& file = file_of(value);
    const int at = free_register(file, step), reg = file.first + at;
    const Step& made = step_of(value);
    if (made.kind == Kind::constant)
        load_constant(reg, value);
    else if (made.kind == Kind::mask)
        load_mask(reg, static_cast<int>(made.bits));
    else if (has_mask(value))
        load_spilled_mask(reg, spill_offset(home.spilled));
    else
        encoder_.vector_memory(kLoad, reg, 0, r10, spill_offset(home.spilled));
    file.held[static_cast<std::size_t>(at)] = value;
    home.reg = reg;
}

/// Operands in memory cost no instruction. They get a register if one is free and they are read
/// again.
bool VectorEncoder::stays_in_memory(const Step& step, std::size_t k) {
    const Value value = step.in[k];
    const Home& home = home_of(value);
    const bool constant = step_of(value).kind == Kind::constant;
    if (home.reg != kNone || has_mask(value) || (home.spilled == kNone && !constant) ||
        !takes_memory(step, k))
        return false;
    const auto others = std::count_if(step.in.begin(), step.in.end(), [&](Value other) {
        return other != kNone && (other == value || is_operand_[static_cast<std::size_t>(other)]);
    });
    if (others != 1) return false;
    const bool last = home.next + 1 >= home.reads.size();
    return last ||
           std::find(vectors_.held.begin(), vectors_.held.end(), kNone) == vectors_.held.end();
}

VectorEncoder::Memory VectorEncoder::memory_of(Value operand) {
    const Step& made = step_of(operand);
    if (made.kind == Kind::constant) return {rdx, constant_at(*code_.words(operand)), false};
    if (is_operand_[static_cast<std::size_t>(operand)])
        return {made.at.base, made.at.offset, made.kind == Kind::broadcast};
    return {r10, spill_offset(home_of(operand).spilled), false};
}

void VectorEncoder::release(const Step& step) {
    for (const Value in : step.in) {
        if (in == kNone) continue;
        Home& home = home_of(in);
        if (home.next < home.reads.size() && home.reads[home.next] == at_) ++home.next;
        if (home.next < home.reads.size()) continue;
        // The instruction may read it there after others are spilled.
        if (home.spilled != kNone) read_spills_.push_back(std::exchange(home.spilled, kNone));
        if (home.reg == kNone) continue;
        File& file = file_of(in);
        file.held[static_cast<std::size_t>(home.reg - file.first)] = kNone;
        home.reg = kNone;
    }
}

int VectorEncoder::result(Value value, const Step& step) {
    File& file = file_of(value);
    const int at = free_register(file, step);
    file.held[static_cast<std::size_t>(at)] = value;
    return home_of(value).reg = file.first + at;
}

int VectorEncoder::result_over(Value value, const Step& step, std::size_t k) {
    Home& over = home_of(step.in[k]);
    if (over.next + 1 < over.reads.size()) {
        const int reg = result(value, step);
        encoder_.vector(kMove, reg, 0, over.reg);
        return reg;
    }
    const int reg = std::exchange(over.reg, kNone);
    vectors_.held[static_cast<std::size_t>(reg - vectors_.first)] = value;
    return home_of(value).reg = reg;
}

// ---- Instructions.

void VectorEncoder::encode(Opcode opcode, int reg, int second, int operand, int mask) {
    if (operand != kNone) return encoder_.vector(opcode, reg, second, operand, mask);
    encoder_.vector_memory(opcode, reg, second, memory_.base, memory_.offset,
                           mask | (memory_.is_word ? kToAll : 0));
}

void VectorEncoder::setup(const Step& step) {
    if (step.setup == kNone) return;
    for (const std::uint8_t byte : code_.setups_[static_cast<std::size_t>(step.setup)].code)
        encoder_.immediate(byte);
}

void VectorEncoder::encode_step(Value value) {
    at_ = value;
    free_spills_.insert(free_spills_.end(), read_spills_.begin(), read_spills_.end());
    read_spills_.clear();
    const Step step = step_of(value);
    // Constants have no register before they are read.
    if (is_operand_[static_cast<std::size_t>(value)] || step.is_constant()) return;
    Registers regs{kNone, kNone, kNone, kNone};
    std::size_t in_memory = step.in.size();
    for (std::size_t k = 0; k < step.in.size(); ++k) {
        const Value in = step.in[k];
        if (in == kNone || is_immediate(step, k) || is_operand_[static_cast<std::size_t>(in)])
            continue;
        if (in_memory == step.in.size() && stays_in_memory(step, k))
            in_memory = k;
        else
            bring(in, step);
    }
    for (std::size_t k = 0; k < step.in.size(); ++k) {
        const Value in = step.in[k];
        if (in == kNone) continue;
        regs[k] = home_of(in).reg;
        if (k == in_memory || is_operand_[static_cast<std::size_t>(in)]) memory_ = memory_of(in);
    }
    setup(step);
    if (step.writes()) {
        encode_store(step, regs);
        return release(step);
    }
    encode_value(value, step, regs);
}

void VectorEncoder::store_slot_end(const Step& step) {
    if (step.kind == Kind::store_bits) {
        encoder_.load_constant(rax, step.bits);
        return encoder_.store(step.at.base, step.at.offset, rax);
    }
    if (step.kind != Kind::store_slot) return;
    encoder_.fixed({0xC7, 0x80 | step.at.base});  // mov dword
    encoder_.word(step.at.offset + 4);
    encoder_.word(0);
}

std::optional<std::vector<std::uint8_t>> VectorEncoder::encode() {
    find_reads();
    find_operands();
    for (const int i : code_.order_) {
        encode_step(i);
        if (spill_offset(spills_) > kMostSpilled) return std::nullopt;
    }
    if (spills_ == 0) return encoder_.code();
    Encoder whole(false);
    whole.fixed({0x49, 0x89, 0xE1, 0x48, 0x81, 0xEC});  // mov r9, rsp; sub rsp, ..
    whole.word(spill_offset(spills_) + kAlignment);
    whole.fixed({0x4C, 0x8D, 0x94, 0x24});  // lea r10, [rsp + ..]
    whole.word(kAlignment - 1);
    whole.fixed({0x49, 0x83, 0xE2, 0xC0});  // and r10, -64
    std::vector<std::uint8_t> code = whole.code();
    code.insert(code.end(), encoder_.code().begin(), encoder_.code().end());
    code.insert(code.end(), {0x4C, 0x89, 0xCC});  // mov rsp, r9
    return code;
}

}  // namespace tilewright::cpu
