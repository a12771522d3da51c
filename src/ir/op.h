// The operations of the tile IR: one enum, one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/dtype.h"

namespace tilewright::ir {

/// Every operation. Semantics (promotion, overflow, NaN, rounding, out-of-bounds lanes) are defined
/// in docs/reference/ir.md; docs/reference/ops.md lists operands, attributes and result types.
enum class Op : std::uint8_t {
    // Sources.
    constant,      ///< one value, splatted over the result type
    iota,          ///< 0, 1, 2, ... along one axis
    program_id,    ///< i64 index of this program along one grid axis
    num_programs,  ///< i64 extent of one grid axis
    extent,        ///< i64 extent of one dimension of a Ref

    // Memory. A lane outside the array reads `other` and is never written.
    load,        ///< Ref, indices[, mask[, other]] -> tile
    store,       ///< Ref, indices, tile[, mask]
    atomic_add,  ///< Ref, indices, tile[, mask] -> old values; likewise max, min, xchg
    atomic_max,
    atomic_min,
    atomic_xchg,
    atomic_cas,  ///< Ref, indices, expected, desired[, mask] -> old values

    // Elementwise, one operand.
    neg,
    abs,
    sign,
    exp,
    exp2,
    expm1,
    log,
    log2,
    log1p,
    tanh,
    logistic,
    erf,
    sin,
    cos,
    sqrt,
    rsqrt,
    floor,
    ceil,
    round,  ///< to nearest, ties to even
    isnan,
    bitwise_not,  ///< logical not for bool

    // Elementwise, two operands of one type.
    add,
    sub,
    mul,
    div,       ///< integers truncate towards zero
    floordiv,  ///< rounds towards minus infinity
    rem,       ///< sign of the dividend (C)
    floormod,  ///< sign of the divisor (Python)
    pow,
    min,  ///< NaN propagates
    max,  ///< NaN propagates
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    shift_left,
    shift_right,  ///< arithmetic for signed types, logical for unsigned

    // Comparisons: two operands of one type -> bool. NaN compares false, except ne.
    eq,
    ne,
    lt,
    le,
    gt,
    ge,

    // Elementwise, three operands.
    select,  ///< bool, if_true, if_false
    clamp,   ///< value, low, high: min(max(value, low), high)
    fma,     ///< a * b + c, rounded once

    // Conversions.
    cast,     ///< to the result's dtype: nearest even; float to integer truncates and saturates
    bitcast,  ///< same width, same bits

    // Shape.
    broadcast,    ///< a scalar, or equal rank with extents of 1 repeated
    reshape,      ///< same elements in row-major order
    transpose,    ///< permutation of axes
    expand_dims,  ///< inserts an axis of extent 1
    slice,        ///< static starts, sizes, strides
    concatenate,  ///< along one axis

    // Across lanes.
    reduce,  ///< one axis, dropped from the shape
    scan,    ///< associative prefix along one axis
    dot,     ///< a, b[, acc]: matrix product, rank 2 or 3 (batch first)

    // Others.
    random_bits,  ///< philox4x32-10: key (u64 scalar), counter (u64 tile) -> u32 tile
    debug_print,  ///< format text with {} per operand
    debug_check,  ///< bool tile, text: the checked mode reports a false element

    // Structured control flow.
    for_loop,    ///< lo, hi, step, carries...; one block (iv, carries...) -> results
    while_loop,  ///< carries...; blocks: condition (carries) -> bool, body (carries) -> carries
    if_else,     ///< bool scalar; two blocks without arguments yielding the results
    call,        ///< a mod (a Function of rank-0 parameters), applied elementwise by broadcasting
    yield,       ///< ends every block
};

inline constexpr int kNumOps = static_cast<int>(Op::yield) + 1;

enum class OpClass : std::uint8_t {
    source,
    memory,
    unary,
    binary,
    comparison,
    ternary,
    convert,
    shape,
    lanes,
    other,
    control
};

/// One row of the op table.
struct OpInfo {
    Op op;
    std::string_view name;  ///< as printed
    OpClass op_class;
    bool floats;    ///< accepts float operands
    bool integers;  ///< accepts integer operands
    bool booleans;  ///< accepts bool operands
    bool approx;    ///< has an approximate form (flag `approx`)
};

const OpInfo& info(Op op);
inline std::string_view name(Op op) {
    return info(op).name;
}
std::optional<Op> parse_op(std::string_view name);
/// True when operands of `op` may have this element type (select, load, ...: the values).
bool accepts(Op op, DType dtype);

/// True for ops that apply element by element: unary, binary, comparison, ternary, convert.
bool is_elementwise(Op op);
/// True when removing an unused instruction or merging two equal ones changes nothing.
bool is_pure(Op op);

/// Kind of a reduce or scan.
enum class Reduction : std::uint8_t { sum, prod, max, min, any, all, argmax, argmin };
inline constexpr int kNumReductions = 8;
std::string_view name(Reduction kind);
std::optional<Reduction> parse_reduction(std::string_view text);

/// Multiplication precision of a dot of f32 operands.
enum class Precision : std::uint8_t { ieee, tf32, tf32x3 };
inline constexpr int kNumPrecisions = 3;
std::string_view name(Precision precision);
std::optional<Precision> parse_precision(std::string_view text);

}  // namespace tilewright::ir
