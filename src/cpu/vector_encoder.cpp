// Finds registers for the steps of vector code and writes their instructions.
#include "cpu/vector_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers

constexpr Opcode kBroadcastWord{2, 1, 0x7C}, kBlend{2, 1, 0x65}, kWidenBytes{2, 1, 0x31},
    kNarrowWords{2, 2, 0x31}, kTest{2, 1, 0x27}, kTestBytes{2, 1, 0x26}, kSigns{2, 2, 0x39},
    kPermute{2, 1, 0x16}, kBroadcastByte{2, 1, 0x78}, kGather{2, 1, 0x92};

/// Values are in zmm0 to zmm30 and k1 to k5; steps need the others.
constexpr int kVectors = 31, kScratch = 31, kFirstMask = 1, kMasks = 5, kSecond = 6, kInside = 7;
/// Beside a mask: the operand in memory is one word for all lanes.
constexpr int kToAll = 0x10;
constexpr int kMostSpills = 128, kVector = 64;
constexpr int kNever = std::numeric_limits<int>::max();

}  // namespace

VectorEncoder::VectorEncoder(VectorCode& code)
    : code_(code),
      homes_(code.steps_.size()),
      places_(code.steps_.size(), 0),
      is_operand_(code.steps_.size(), false),
      vectors_{0, std::vector<Value>(kVectors, kNone)},
      masks_{kFirstMask, std::vector<Value>(kMasks, kNone)} {}

void VectorEncoder::find_reads() {
    for (const int i : code_.order_) {
        for (const Value in : step_of(i).in) {
            if (in == kNone) continue;
            std::vector<int>& reads = home_of(in).reads;
            if (reads.empty() || reads.back() != i) reads.push_back(i);
        }
    }
}

/// Which operand of a step may be in memory.
int VectorEncoder::memory_operand(const Step& step) {
    switch (step.kind) {
        case Kind::unary:
            return 0;
        case Kind::binary:
        case Kind::compare:
        case Kind::blend:
            return 1;
        case Kind::masked:
            return step.in[1] == kNone ? 0 : 1;
        case Kind::fma:
            return 2;
        default:
            return kNone;
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
    for (const int i : code_.order_) {
        const Step& step = step_of(i);
        if (step.kind != Kind::constant && step.kind != Kind::load && step.kind != Kind::broadcast)
            continue;
        const std::vector<int>& reads = home_of(i).reads;
        if (reads.size() != 1) continue;
        const Step& reader = step_of(reads[0]);
        const int operand = memory_operand(reader);
        if (operand == kNone) continue;
        bool alone = true;
        for (int k = 0; k < static_cast<int>(reader.in.size()); ++k) {
            if (k != operand && reader.in[static_cast<std::size_t>(k)] == i) alone = false;
        }
        if (!alone || reader.in[static_cast<std::size_t>(operand)] != i) continue;
        const int from = places_[static_cast<std::size_t>(i)],
                  to = places_[static_cast<std::size_t>(reads[0])];
        const auto write = std::lower_bound(writes.begin(), writes.end(), from);
        const bool same = write == writes.end() || *write > to;
        is_operand_[static_cast<std::size_t>(i)] = same || step.kind == Kind::constant;
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
    const Step& step = step_of(value);
    const bool again = step.kind == Kind::constant || step.kind == Kind::mask;
    if (!again && home.spilled == kNone) {
        home.spilled = free_spills_.empty() ? spills_++ : free_spills_.back();
        if (!free_spills_.empty()) free_spills_.pop_back();
        if (step.is_mask()) {
            encoder_.fixed({0xC4, 0xC1, 0x78, 0x91, 0x82 | home.reg << 3});  // kmovw [r10 + ..], k
            encoder_.word(kVector * home.spilled);
        } else {
            encoder_.vector_memory(kStore, home.reg, 0, r10, kVector * home.spilled);
        }
    }
    file.held[static_cast<std::size_t>(home.reg - file.first)] = kNone;
    home.reg = kNone;
}

void VectorEncoder::load_constant(int reg, Value value) {
    const VectorCode::Words& words = *code_.words(value);
    if (std::all_of(words.begin(), words.end(), [](std::int32_t word) { return word == 0; }))
        encoder_.vector(kZero, reg, reg, reg);
    else
        encoder_.vector_memory(kLoad, reg, 0, rdx, code_.pool_.at(words));
}

void VectorEncoder::load_mask(int reg, std::uint64_t bits) {
    encoder_.fixed({0xB8});  // mov eax, bits
    encoder_.word(static_cast<std::int32_t>(bits));
    encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | reg << 3});  // kmovw
}

/// The register of an operand of a step.
int VectorEncoder::in_register(Value value, const Step& step) {
    Home& home = home_of(value);
    if (home.reg != kNone) return home.reg;
    File& file = file_of(value);
    const int at = free_register(file, step), reg = file.first + at;
    const Step& made = step_of(value);
    if (made.kind == Kind::constant) {
        load_constant(reg, value);
    } else if (made.kind == Kind::mask) {
        load_mask(reg, made.bits);
    } else if (made.is_mask()) {
        encoder_.fixed({0xC4, 0xC1, 0x78, 0x90, 0x82 | reg << 3});  // kmovw k, [r10 + ..]
        encoder_.word(kVector * home.spilled);
    } else {
        encoder_.vector_memory(kLoad, reg, 0, r10, kVector * home.spilled);
    }
    file.held[static_cast<std::size_t>(at)] = value;
    return home.reg = reg;
}

/// Gives back the registers of what is read here for the last time.
void VectorEncoder::release(const Step& step) {
    for (const Value in : step.in) {
        if (in == kNone) continue;
        Home& home = home_of(in);
        if (home.next < home.reads.size() && home.reads[home.next] == at_) ++home.next;
        if (home.next < home.reads.size()) continue;
        if (home.spilled != kNone) free_spills_.push_back(std::exchange(home.spilled, kNone));
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

/// A register that holds operand k: its own if nothing else reads it.
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

void VectorEncoder::setup(const Step& step) {
    if (step.setup == kNone) return;
    for (const std::uint8_t byte : code_.setups_[static_cast<std::size_t>(step.setup)].code)
        encoder_.immediate(byte);
}

void VectorEncoder::encode_step(Value value) {
    at_ = value;
    const Step step = step_of(value);
    if (is_operand_[static_cast<std::size_t>(value)]) return;
    // Constants have no register before they are read.
    if (step.kind == Kind::constant || step.kind == Kind::mask) return;
    Registers regs{kNone, kNone, kNone, kNone};
    for (std::size_t k = 0; k < step.in.size(); ++k) {
        const Value in = step.in[k];
        if (in != kNone && !is_operand_[static_cast<std::size_t>(in)]) in_register(in, step);
    }
    for (std::size_t k = 0; k < step.in.size(); ++k) {
        if (step.in[k] != kNone) regs[k] = home_of(step.in[k]).reg;
    }
    if (step.writes()) {
        encode_store(step, regs);
        return release(step);
    }
    encode_value(value, step, regs);
}

void VectorEncoder::encode_value(Value value, const Step& step, const Registers& regs) {
    // The operand in memory keeps no register, but others are where they were.
    const auto operand = [&](Opcode opcode, int reg, int second, std::size_t k, int mask = 0) {
        const Value in = step.in[k];
        const Step& made = step_of(in);
        if (!is_operand_[static_cast<std::size_t>(in)]) {
            encoder_.vector(opcode, reg, second, regs[k], mask);
        } else if (made.kind == Kind::constant) {
            encoder_.vector_memory(opcode, reg, second, rdx, code_.pool_.at(*code_.words(in)),
                                   mask);
        } else {
            encoder_.vector_memory(opcode, reg, second, made.at.base, made.at.offset,
                                   mask | (made.kind == Kind::broadcast ? kToAll : 0));
        }
        if (step.immediate != kNone) encoder_.immediate(step.immediate);
    };
    setup(step);
    if (step.kind == Kind::fma) {
        const int reg = result_over(value, step, 0);
        operand(kFma213, reg, regs[1], 2);
        return release(step);
    }
    if (step.kind == Kind::masked) {
        const bool zeros = step.in[2] == kNone;
        if (zeros) release(step);
        const int reg = zeros ? result(value, Step()) : result_over(value, step, 2);
        const bool two = step.in[1] != kNone;
        operand(step.opcode, reg, two ? regs[0] : 0, two ? 1 : 0, regs[3] | (zeros ? kZeros : 0));
        if (!zeros) release(step);
        return;
    }
    release(step);
    const int reg = result(value, Step());
    switch (step.kind) {
        case Kind::load:
            return encoder_.vector_memory(kLoad, reg, 0, step.at.base, step.at.offset);
        case Kind::broadcast:
            return encoder_.vector_memory(kBroadcast, reg, 0, step.at.base, step.at.offset);
        case Kind::unary:
            return operand(step.opcode, reg, 0, 0);
        case Kind::binary:
        case Kind::compare:
            return operand(step.opcode, reg, regs[0], 1);
        case Kind::blend:
            return operand(kBlend, reg, regs[2], 1, regs[0]);
        case Kind::lane:
            if (step.immediate == 0) return encoder_.vector(kBroadcast, reg, 0, regs[0]);
            encoder_.vector_memory(kLoad, kScratch, 0, rdx, code_.pool_.splat(step.immediate));
            return encoder_.vector(kPermute, reg, kScratch, regs[0]);
        case Kind::form:
            return encoder_.vector(kBroadcastWord, reg, 0, rcx);
        case Kind::load_view:
            return encoder_.vector_memory(kLoad, reg, 0, r8, step.at.offset,
                                          regs[3] == kNone ? 0 : regs[3] | kZeros);
        case Kind::indexed_load:
            return encoder_.vector_lanes(step.opcode, reg, 0, step.at.base, step.at.offset,
                                         kInside | kZeros);
        case Kind::indexed_gather:
            load_mask(kSecond, (std::uint64_t{1} << step.lanes) - 1);
            encoder_.fixed({0xC5, 0x84 | (~kSecond & 15) << 3, 0x41,  // kandw
                            0xC0 | kSecond << 3 | kInside});
            encoder_.vector(kMove, kScratch, 0, regs[0]);
            encoder_.vector(kZero, reg, reg, reg);
            return encoder_.vector_gather(kGather, reg, kScratch, r8, step.at.offset, kSecond);
        case Kind::signs:
            return encoder_.vector(kSigns, reg, 0, regs[0]);
        case Kind::logic:
            return encoder_.fixed(
                {0xC5, 0x84 | (~regs[0] & 15) << 3, step.immediate, 0xC0 | reg << 3 | regs[1]});
        case Kind::load_mask:
            encoder_.vector_memory(kWidenBytes, kScratch, 0, step.at.base, step.at.offset);
            return encoder_.vector(kTest, reg, kScratch, kScratch);
        case Kind::broadcast_mask:
            // One byte: more of them may come from several stores, for which a load has to wait.
            encoder_.vector_memory(kBroadcastByte, kScratch, 0, step.at.base, step.at.offset);
            return encoder_.vector(kTestBytes, reg, kScratch, kScratch);
        default:
            return;
    }
}

void VectorEncoder::encode_store(const Step& step, const Registers& regs) {
    setup(step);
    const Gpr base = step.at.base;
    const std::int32_t offset = step.at.offset;
    const auto upper_half = [&](std::int32_t word) {
        encoder_.fixed({0xC7, 0x80 | base});  // mov dword
        encoder_.word(offset + 4);
        encoder_.word(word);
    };
    switch (step.kind) {
        case Kind::store:
            return encoder_.vector_memory(kStore, regs[0], 0, base, offset,
                                          regs[1] == kNone ? 0 : regs[1]);
        case Kind::store_view:
            return encoder_.vector_memory(kStore, regs[0], 0, r8, offset,
                                          regs[3] == kNone ? 0 : regs[3]);
        case Kind::store_element:
            return encoder_.vector_memory(kStoreScalar, regs[0], 0, base, offset);
        case Kind::store_slot:
            encoder_.vector_memory(kStoreScalar, regs[0], 0, base, offset);
            return upper_half(0);
        case Kind::store_bits:
            encoder_.load_constant(rax, step.bits);
            return encoder_.store(base, offset, rax);
        case Kind::store_mask:
            encoder_.vector(kMove, kScratch, 0, regs[1], regs[0] | kZeros);
            return encoder_.vector_memory(kNarrowWords, kScratch, 0, base, offset,
                                          regs[2] == kNone ? 0 : regs[2]);
        default:
            return;
    }
}

std::optional<std::vector<std::uint8_t>> VectorEncoder::encode() {
    find_reads();
    find_operands();
    for (const int i : code_.order_) {
        encode_step(i);
        if (spills_ > kMostSpills) return std::nullopt;
    }
    if (spills_ == 0) return encoder_.code();
    Encoder whole(true);
    whole.fixed({0x49, 0x89, 0xE1, 0x48, 0x81, 0xEC});  // mov r9, rsp; sub rsp, ..
    whole.word(kVector * (spills_ + 1));
    whole.fixed({0x4C, 0x8D, 0x94, 0x24});  // lea r10, [rsp + ..]
    whole.word(kVector - 1);
    whole.fixed({0x49, 0x83, 0xE2, 0xC0});  // and r10, -64
    std::vector<std::uint8_t> code = whole.code();
    code.insert(code.end(), encoder_.code().begin(), encoder_.code().end());
    code.insert(code.end(), {0x4C, 0x89, 0xCC});  // mov rsp, r9
    return code;
}

}  // namespace tilewright::cpu
