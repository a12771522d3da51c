// The operations of the tile IR: one enum, one table.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "tilewright/dtype.h"

namespace tilewright::ir {

/// Every operation, as ir/ops.inl lists them. Semantics (promotion, overflow, NaN, rounding,
/// out-of-bounds lanes) are defined in docs/reference/ir.md; docs/reference/ops.md lists operands,
/// attributes and result types.
enum class Op : std::uint8_t {
#define TW_OP(op, op_class, dtypes) op,
#include "ir/ops.inl"
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

/// A row of the op table.
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
/// True when operands of `op` may have this element type (for select, load, ...: the values).
bool accepts(Op op, DType dtype);

/// How expensive an elementwise function is.
enum class Work : std::uint8_t {
    little,         ///< a few instructions
    function,       ///< counted as transcendental (ProgramCost)
    long_function,  ///< as above; GPUs compute it once instead of again for each layout
};

// Where a function starts to be monotone (FunctionInfo::monotone_from).
inline constexpr double kEverywhere = -std::numeric_limits<double>::infinity();
inline constexpr double kAboveZero = std::numeric_limits<double>::denorm_min();
inline constexpr double kNowhere = std::numeric_limits<double>::infinity();

/// An elementwise function of floats: the facts of its row in ir/ops.inl.
struct FunctionInfo {
    Op op;
    std::string_view name;  ///< in C++, texts of mods and Python
    int operands;

    std::string_view meaning;  ///< of x and y, for docs/reference/ops.md and Python's help

    /// Its functions in CUDA C++.
    struct Cuda {
        std::string_view f32, f64;
        std::string_view approx = {};  ///< the approximate form for f32; "": `f32`
        /// For narrower floats, with their type as the first argument, where the result depends on
        /// the format, so that rounding an f32 result would be wrong. "": rounds that of `f32`.
        std::string_view narrow = {};
        bool wrapped = false;  ///< cuda/device/tile/scalar.cuh has it under the op's name
    } cuda;

    // Names in other libraries; "": none, or one that needs a special rule there.
    std::string_view numpy = {};  ///< the ufunc
    std::string_view jax = {};    ///< the primitive
    std::string_view torch = {};  ///< the operators of aten and prims

    /// Largest error of the CPU's kernels in units in the last place; 0: exact.
    struct Ulps {
        double f32 = 0, f64 = 0;
    } ulps = {};
    double monotone_from = kNowhere;  ///< monotone from here on
    Work work = Work::little;
};

/// Null for ops that are not elementwise functions of floats.
const FunctionInfo* function_info(Op op);

/// True for ops that apply element by element: unary, binary, comparison, ternary, convert.
bool is_elementwise(Op op);
/// True when removing an unused instruction or merging two equal ones changes nothing.
bool is_pure(Op op);

/// Kind of a reduce or scan.
enum class Reduction : std::uint8_t { sum, prod, max, min, any, all, argmax, argmin, logsumexp };
inline constexpr int kNumReductions = 9;
std::string_view name(Reduction kind);
std::optional<Reduction> parse_reduction(std::string_view text);

/// Multiplication precision of a dot of f32 operands.
enum class Precision : std::uint8_t { ieee, tf32, tf32x3 };
inline constexpr int kNumPrecisions = 3;
std::string_view name(Precision precision);
std::optional<Precision> parse_precision(std::string_view text);

}  // namespace tilewright::ir
