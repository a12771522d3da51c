// The AVX-512 instructions of vector code.
#include <memory>

#include "cpu/vector_encoder.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers

constexpr Opcode kBroadcastWord{2, 1, 0x7C}, kBlend{2, 1, 0x65}, kNarrowWords{2, 2, 0x31},
    kTest{2, 1, 0x27}, kTestBytes{2, 1, 0x26}, kSigns{2, 2, 0x39};

/// Values are in zmm0 to zmm30 and k1 to k5; steps need the others.
constexpr int kScratch = 31, kMasks = 5, kSecond = 6, kInside = 7;

class Avx512Encoder : public VectorEncoder {
  public:
    explicit Avx512Encoder(VectorCode& code) : VectorEncoder(code, kScratch, kMasks) {}

  private:
    bool takes_memory(const Step& step, std::size_t k) const override {
        switch (step.kind) {
            case Kind::unary:
                return k == 0;
            case Kind::binary:
            case Kind::compare:
            case Kind::blend:
                return k == 1;
            case Kind::masked:
                return k == (step.in[1] == kNone ? 0 : 1);
            case Kind::fma:
                return k == 2;
            default:
                return false;
        }
    }
    bool is_readable(const Step& step) const override {
        return step.kind == Kind::constant || step.kind == Kind::load ||
               step.kind == Kind::broadcast;
    }
    bool is_immediate(const Step&, std::size_t) const override { return false; }

    void load_mask(int reg, int bits) override {
        encoder_.fixed({0xB8});  // mov eax, bits
        encoder_.word(bits);
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | reg << 3});  // kmovw
    }
    void load_spilled_mask(int reg, std::int32_t offset) override {
        encoder_.fixed({0xC4, 0xC1, 0x78, 0x90, 0x82 | reg << 3});  // kmovw k, [r10 + ..]
        encoder_.word(offset);
    }
    void store_spilled_mask(std::int32_t offset, int reg) override {
        encoder_.fixed({0xC4, 0xC1, 0x78, 0x91, 0x82 | reg << 3});  // kmovw [r10 + ..], k
        encoder_.word(offset);
    }

    void encode_value(Value value, const Step& step, const Registers& regs) override {
        const auto operand = [&](Opcode opcode, int reg, int second, std::size_t k, int mask = 0) {
            encode(opcode, reg, second, regs[k], mask);
            if (step.immediate != kNone) encoder_.immediate(step.immediate);
        };
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
            operand(step.opcode, reg, two ? regs[0] : 0, two ? 1 : 0,
                    regs[3] | (zeros ? kZeros : 0));
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
                encoder_.vector_memory(kLoad, kScratch, 0, rdx, splat_at(step.immediate));
                return encoder_.vector(kPermute, reg, kScratch, regs[0]);
            case Kind::form:
                return encoder_.vector(kBroadcastWord, reg, 0, rcx);
            case Kind::load_view:
                return encoder_.vector_memory(kLoad, reg, 0, r8, step.at.offset,
                                              regs[3] == kNone ? 0 : regs[3] | kZeros);
            case Kind::indexed_load:
                find_inside();
                return encoder_.vector_lanes(step.opcode, reg, 0, step.at.base, step.at.offset,
                                             kInside | kZeros);
            case Kind::indexed_gather:
                find_inside();
                load_mask(kSecond, (1 << step.lanes) - 1);
                encoder_.fixed({0xC5, 0x84 | (~kSecond & 15) << 3, 0x41,  // kandw
                                0xC0 | kSecond << 3 | kInside});
                encoder_.vector(kMove, kScratch, 0, regs[0]);
                encoder_.vector(kZero, reg, reg, reg);
                return encoder_.vector_gather(kGather, reg, kScratch, r8, step.at.offset, kSecond);
            case Kind::signs:
                return encoder_.vector(kSigns, reg, 0, regs[0]);
            case Kind::logic:
                return encoder_.fixed({0xC5, 0x84 | (~regs[0] & 15) << 3,
                                       logic(static_cast<Logic>(step.immediate)),
                                       0xC0 | reg << 3 | regs[1]});
            case Kind::load_mask:
                encoder_.vector_memory(kWidenBytes, kScratch, 0, step.at.base, step.at.offset);
                return encoder_.vector(kTest, reg, kScratch, kScratch);
            case Kind::broadcast_mask:
                // One byte: more of them may come from several stores, for which a load has to
                // wait.
                encoder_.vector_memory(kBroadcastByte, kScratch, 0, step.at.base, step.at.offset);
                return encoder_.vector(kTestBytes, reg, kScratch, kScratch);
            default:
                return;
        }
    }

    static int logic(Logic logic) {
        return logic == Logic::both ? 0x41 : logic == Logic::either ? 0x45 : 0x47;
    }
    void find_inside() { encoder_.fixed({0xC5, 0xF8, 0x92, 0xC1 | kInside << 3}); }  // kmovw

    void encode_store(const Step& step, const Registers& regs) override {
        const Gpr base = step.at.base;
        const std::int32_t offset = step.at.offset;
        const auto mask = [&](std::size_t k) { return regs[k] == kNone ? 0 : regs[k]; };
        switch (step.kind) {
            case Kind::store:
                return encoder_.vector_memory(kStore, regs[0], 0, base, offset, mask(1));
            case Kind::store_view:
                return encoder_.vector_memory(kStore, regs[0], 0, r8, offset, mask(3));
            case Kind::store_element:
            case Kind::store_slot:
                encoder_.vector_memory(kStoreScalar, regs[0], 0, base, offset);
                return store_slot_end(step);
            case Kind::store_bits:
                return store_slot_end(step);
            case Kind::store_mask:
                encoder_.vector(kMove, kScratch, 0, regs[1], regs[0] | kZeros);
                return encoder_.vector_memory(kNarrowWords, kScratch, 0, base, offset, mask(2));
            default:
                return;
        }
    }
};

}  // namespace

std::unique_ptr<VectorEncoder> avx512_encoder(VectorCode& code) {
    return std::make_unique<Avx512Encoder>(code);
}

}  // namespace tilewright::cpu
