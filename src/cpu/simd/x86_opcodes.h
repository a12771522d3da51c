// The x86-64 vector instructions that code for runs and for small tiles is made of.
#pragma once

#include <optional>

#include "cpu/simd/x86_encoder.h"
#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu::x86 {

inline constexpr Opcode kLoad{1, 0, 0x10}, kStore{1, 0, 0x11}, kStream{1, 0, 0x2B},
    kMove{1, 0, 0x28}, kBroadcast{2, 1, 0x18}, kAdd{1, 0, 0x58}, kSqrt{1, 0, 0x51},
    kFma213{2, 1, 0xA8}, kFma231{2, 1, 0xB8}, kFma132{2, 1, 0x98}, kCompareFloats{1, 0, 0xC2};
// `prefix` 2 is F3: scalars, and some conversions.
inline constexpr Opcode kLoadScalar{1, 2, 0x10}, kStoreScalar{1, 2, 0x11}, kZero{1, 1, 0xEF},
    kBroadcastLane{2, 1, 0x58};
// Of words of 32 bits. The first comparison is EVEX alone, and so is the shuffle of quarters of 128
// bits; that of halves, and the other comparisons, are VEX here.
inline constexpr Opcode kCompareWords{3, 1, 0x1F}, kEqualWords{1, 1, 0x76},
    kGreaterWords{1, 1, 0x66}, kAddWords{1, 1, 0xFE}, kToFloat{1, 0, 0x5B}, kSwapWords{3, 1, 0x04},
    kPairs{1, 0, 0xC6}, kQuarters{3, 1, 0x23}, kHalves{3, 1, 0x46}, kPermute{2, 1, 0x16};

// Bytes, gathers, and what takes the place of masks in VEX code.
inline constexpr Opcode kWidenBytes{2, 1, 0x31}, kBroadcastByte{2, 1, 0x78}, kGather{2, 1, 0x92},
    kMaskedLoad{2, 1, 0x2C}, kMaskedStore{2, 1, 0x2E}, kBlendBySigns{3, 1, 0x4A},
    kBlendKnown{3, 1, 0x0C}, kAnd{1, 1, 0xDB}, kOr{1, 1, 0xEB},
    kXor = kZero, kUpperHalf{3, 1, 0x39}, kPackWords{1, 1, 0x6B}, kPackHalves{1, 1, 0x63},
    kAbsoluteBytes{2, 1, 0x1C};

constexpr bool is(Opcode a, Opcode b) {
    return a.map == b.map && a.prefix == b.prefix && a.byte == b.byte;
}

/// Beside a mask (EVEX): zeros in the lanes that it leaves out.
inline constexpr int kZeros = 0x80;
/// The same: the operand in memory is one word for all lanes.
inline constexpr int kToAll = 0x10;

/// An instruction on two vectors of f32 or i32. Minima and maxima of floats are the second operand
/// where one is NaN.
inline std::optional<Opcode> arithmetic_opcode(ir::Op op, DType dtype) {
    using ir::Op;
    const bool f32 = dtype == DType::f32;
    if (!f32 && dtype != DType::i32) return std::nullopt;
    switch (op) {
        case Op::add:
            return f32 ? kAdd : Opcode{1, 1, 0xFE};
        case Op::sub:
            return f32 ? Opcode{1, 0, 0x5C} : Opcode{1, 1, 0xFA};
        case Op::mul:
            return f32 ? Opcode{1, 0, 0x59} : Opcode{2, 1, 0x40};
        case Op::min:
            return f32 ? Opcode{1, 0, 0x5D} : Opcode{2, 1, 0x39};
        case Op::max:
            return f32 ? Opcode{1, 0, 0x5F} : Opcode{2, 1, 0x3D};
        case Op::div:
            if (f32) return Opcode{1, 0, 0x5E};
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

/// The predicate of a comparison; -1: none.
inline int predicate(ir::Op op, bool floats) {
    using ir::Op;
    switch (op) {
        case Op::eq:
            return 0;
        case Op::ne:
            return 4;
        case Op::lt:
            return floats ? 0x11 : 1;
        case Op::le:
            return floats ? 0x12 : 2;
        case Op::ge:
            return floats ? 0x1D : 5;
        case Op::gt:
            return floats ? 0x1E : 6;
        default:
            return -1;
    }
}

}  // namespace tilewright::cpu::x86
