// The bytecode of masks as the GPU's interpreter reads it; compiled by the host compiler and by
// NVRTC.
#pragma once

namespace twd::mask {

constexpr int kPiece = 64;    ///< rows and columns of a piece
constexpr int kElements = 8;  ///< adjacent columns of a lane, which share the decoding of each step
constexpr int kLanes = 32;    ///< threads of a thread block, which evaluates one piece
constexpr int kRegisters = 24;  ///< 48 KB of shared memory, the default limit of every GPU
constexpr int kMostRank = 8;
constexpr int kRangeBlock = 64;  ///< elements of an array for which one range is found

/// Element types, in the order of tilewright::DType.
enum Type : unsigned char {
    kBool,
    kI8,
    kU8,
    kI16,
    kU16,
    kI32,
    kU32,
    kI64,
    kU64,
    kF16,
    kBf16,
    kF32,
    kF64,
    kF8e4m3,
    kF8e5m2
};

enum Code : unsigned char {
    kNeg,
    kAbs,
    kSign,
    kSqrt,
    kFloor,
    kCeil,
    kRound,
    kIsNan,
    kNot,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kFloorDiv,
    kRem,
    kFloorMod,
    kMin,
    kMax,
    kAnd,
    kOr,
    kXor,
    kShiftLeft,
    kShiftRight,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kClamp,
    kFma,
    kSelect,
    kCast,
    kLoad,
    kRandomBits
};

/// One operation on scalars. Operands below kRegisters are registers, others are constants.
struct Step {
    Code code;
    Type in;              ///< type of the operands; kLoad: of the array's elements
    Type out;             ///< type of the result
    unsigned char array;  ///< kLoad: index of the array
    unsigned char rank;   ///< kLoad: number of operands before mask and other
    bool masked, other;   ///< kLoad: does it have a mask, and a value other than 0 outside?
    unsigned short result;
    unsigned short operands[kMostRank + 2];
};

/// An array that the mask reads; strides count elements.
struct Array {
    const void* data;
    long long extents[kMostRank];
    long long strides[kMostRank];
};

/// The first pair of a piece.
struct Place {
    long long b, h, q, kv;
};

struct PieceParameters {
    const Step* steps;
    /// Registers and constants hold integers extended to 64 bits, f64 as its bits, and other floats
    /// as the bits of the f32 with the same value, in the lower half.
    const unsigned long long* constants;
    const Array* arrays;
    const Place* places;
    unsigned char* bits;  ///< [pieces, 64, 8]: bit j % 8 of byte j / 8 is column j
    int num_steps;
    int scalars[4];  ///< registers of b, h, q, kv; negative: not read
    int result;      ///< operand that holds the result
};

/// Finds the minimum and maximum of every kRangeBlock elements in row-major order.
struct RangeParameters {
    Array array;
    Type type;
    int rank;
    long long size;
    /// [blocks, 3]: minimum and maximum, integers as in registers and floats as f64; and whether
    /// any is NaN.
    unsigned long long* ranges;
};

}  // namespace twd::mask
