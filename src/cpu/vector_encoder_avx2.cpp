// The AVX2 instructions of vector code.
#include <memory>

#include "cpu/vector_encoder.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers

/// Values are in ymm0 to ymm14; steps need the other.
constexpr int kScratch = 15;

/// Masks are vectors whose words have all bits set, or none.
class Avx2Encoder : public VectorEncoder {
  public:
    explicit Avx2Encoder(VectorCode& code) : VectorEncoder(code, kScratch, 0) {}

  private:
    /// Words have instructions for `==` and `>` alone.
    static bool is_less(const Step& step) { return step.immediate == 1 || step.immediate == 5; }
    bool is_known_blend(const Step& step) const {
        return step.kind == Kind::blend && mask_bits(step.in[0]);
    }

    bool takes_memory(const Step& step, std::size_t k) const override {
        switch (step.kind) {
            case Kind::unary:
            case Kind::lane:
                return k == 0;
            case Kind::binary:
            case Kind::logic:
                return k == 1;
            case Kind::compare:
                return k == (is(step.opcode, kCompareWords) && is_less(step) ? 0 : 1);
            case Kind::blend:
                return k == 1 || (k == 2 && is_known_blend(step));
            case Kind::fma:
                return k == 2;
            default:
                return false;
        }
    }
    bool is_readable(const Step& step) const override {
        return step.kind == Kind::constant || step.kind == Kind::load;
    }
    bool is_immediate(const Step& step, std::size_t k) const override {
        return k == 0 && is_known_blend(step);
    }

    void load_mask(int reg, int bits) override {
        VectorCode::Words words{};
        for (int l = 0; l < kLanes; ++l) words[static_cast<std::size_t>(l)] = -(bits >> l & 1);
        if (bits == 0)
            encoder_.vector(kZero, reg, reg, reg);
        else if (bits == kAll)
            encoder_.vector(kEqualWords, reg, reg, reg);
        else
            encoder_.vector_memory(kLoad, reg, 0, rdx, constant_at(words));
    }
    // Vectors are spilled in the same way in both instruction sets.
    void load_spilled_mask(int, std::int32_t) override {}
    void store_spilled_mask(std::int32_t, int) override {}

    void encode_value(Value value, const Step& step, const Registers& regs) override {
        if (step.kind == Kind::fma) {
            const int reg = result_over(value, step, 0);
            encode(kFma213, reg, regs[1], regs[2]);
            return release(step);
        }
        if (step.kind == Kind::indexed_gather) {
            const int reg = result(value, step);
            gather(step, reg, regs[0]);
            return release(step);
        }
        release(step);
        const int reg = result(value, Step());
        switch (step.kind) {
            case Kind::load:
                return encoder_.vector_memory(kLoad, reg, 0, step.at.base, step.at.offset);
            case Kind::broadcast:
                return encoder_.vector_memory(kBroadcast, reg, 0, step.at.base, step.at.offset);
            case Kind::unary:
            case Kind::binary: {
                const bool two = step.kind == Kind::binary;
                encode(step.opcode, reg, two ? regs[0] : 0, regs[two ? 1 : 0]);
                if (step.immediate != kNone) encoder_.immediate(step.immediate);
                return;
            }
            case Kind::compare:
                return compare(step, reg, regs);
            case Kind::blend:
                return blend(step, reg, regs);
            case Kind::lane:
                return lane(step, reg, regs[0]);
            case Kind::form:
                return splat(reg);
            case Kind::load_view:
                if (regs[3] == kNone)
                    return encoder_.vector_memory(kLoad, reg, 0, r8, step.at.offset);
                return encoder_.vector_memory(kMaskedLoad, reg, regs[3], r8, step.at.offset);
            case Kind::indexed_load:
                splat(kScratch);
                encoder_.vector_lanes(step.opcode, reg, 0, step.at.base, step.at.offset);
                return encoder_.vector(kAnd, reg, reg, kScratch);
            case Kind::signs:
                encoder_.vector(kZero, kScratch, kScratch, kScratch);
                return encoder_.vector(kGreaterWords, reg, kScratch, regs[0]);
            case Kind::logic: {
                const auto logic = static_cast<Logic>(step.immediate);
                return encode(logic == Logic::both     ? kAnd
                              : logic == Logic::either ? kOr
                                                       : kXor,
                              reg, regs[0], regs[1]);
            }
            case Kind::load_mask:
            case Kind::broadcast_mask:
                // One byte: more of them may come from several stores, for which a load has to
                // wait.
                encoder_.vector_memory(step.kind == Kind::load_mask ? kWidenBytes : kBroadcastByte,
                                       kScratch, 0, step.at.base, step.at.offset);
                encoder_.vector(kZero, reg, reg, reg);
                return encoder_.vector(kGreaterWords, reg, kScratch, reg);
            default:
                return;
        }
    }

    /// All lanes = rcx.
    void splat(int reg) {
        encoder_.move_word(reg, rcx);
        encoder_.vector(kBroadcastLane, reg, 0, reg);
    }
    void compare(const Step& step, int reg, const Registers& regs) {
        if (!is(step.opcode, kCompareWords)) {
            encode(step.opcode, reg, regs[0], regs[1]);
            return encoder_.immediate(step.immediate);
        }
        const bool equality = step.immediate == 0 || step.immediate == 4, less = is_less(step);
        encode(equality ? kEqualWords : kGreaterWords, reg, regs[less ? 1 : 0], regs[less ? 0 : 1]);
        if (step.immediate != 4 && step.immediate != 2 && step.immediate != 5) return;
        encoder_.vector(kEqualWords, kScratch, kScratch, kScratch);
        encoder_.vector(kXor, reg, reg, kScratch);
    }
    void blend(const Step& step, int reg, const Registers& regs) {
        if (!is_known_blend(step)) {
            encode(kBlendBySigns, reg, regs[2], regs[1]);
            return encoder_.immediate(regs[0] << 4);
        }
        const int bits = *mask_bits(step.in[0]);
        const bool swapped = regs[2] == kNone;
        encode(kBlendKnown, reg, regs[swapped ? 1 : 2], regs[swapped ? 2 : 1]);
        encoder_.immediate(swapped ? ~bits & kAll : bits);
    }
    void lane(const Step& step, int reg, int from) {
        if (from == kNone)
            return encoder_.vector_memory(kBroadcast, reg, 0, memory_.base,
                                          memory_.offset + kWord * step.immediate);
        if (step.immediate == 0) return encoder_.vector(kBroadcast, reg, 0, from);
        encoder_.vector_memory(kLoad, kScratch, 0, rdx, splat_at(step.immediate));
        encoder_.vector(kPermute, reg, kScratch, from);
    }
    /// A gather clears its mask.
    void gather(const Step& step, int reg, int places) {
        splat(reg);
        load_mask(kScratch, (1 << step.lanes) - 1);
        encoder_.vector(kAnd, kScratch, kScratch, reg);
        encoder_.vector(kZero, reg, reg, reg);
        encoder_.vector_gather(kGather, reg, places, r8, step.at.offset, kScratch);
    }

    void encode_store(const Step& step, const Registers& regs) override {
        const Gpr base = step.at.base;
        const std::int32_t offset = step.at.offset;
        const auto store = [&](Gpr to, int mask) {
            if (mask == kNone) return encoder_.vector_memory(kStore, regs[0], 0, to, offset);
            encoder_.vector_memory(kMaskedStore, regs[0], mask, to, offset);
        };
        switch (step.kind) {
            case Kind::store:
                return store(base, regs[1]);
            case Kind::store_view:
                return store(r8, regs[3]);
            case Kind::store_element:
            case Kind::store_slot:
                encoder_.vector_memory(kStoreScalar, regs[0], 0, base, offset);
                return store_slot_end(step);
            case Kind::store_bits:
                return store_slot_end(step);
            case Kind::store_mask:
                return store_mask(step, regs[0]);
            default:
                return;
        }
    }
    /// As bytes, by way of rax.
    void store_mask(const Step& step, int from) {
        encoder_.vector(kUpperHalf, from, 0, kScratch);
        encoder_.immediate(1);
        encoder_.vector(kPackWords, kScratch, from, kScratch);
        encoder_.vector(kPackHalves, kScratch, kScratch, kScratch);
        encoder_.vector(kAbsoluteBytes, kScratch, 0, kScratch);
        encoder_.move_to_rax(kScratch);
        if (step.bytes == kLanes) return encoder_.store(step.at.base, step.at.offset, rax);
        std::int32_t offset = step.at.offset;
        for (const int bytes : {4, 2, 1}) {
            if ((step.bytes & bytes) == 0) continue;
            if (bytes == 2) encoder_.fixed({0x66});
            encoder_.fixed({bytes == 1 ? 0x88 : 0x89, 0x80 | step.at.base});  // mov
            encoder_.word(offset);
            encoder_.fixed({0x48, 0xC1, 0xE8, 8 * bytes});  // shr rax
            offset += bytes;
        }
    }

    static constexpr int kLanes = 8, kAll = 0xFF, kWord = 4;
};

}  // namespace

std::unique_ptr<VectorEncoder> avx2_encoder(VectorCode& code) {
    return std::make_unique<Avx2Encoder>(code);
}

}  // namespace tilewright::cpu
