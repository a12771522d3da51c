// Functions on traced values: elementwise maths, shapes, reductions, dot, random bits, debugging.
#pragma once

#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/ref.h"
#include "tilewright/lang/tile.h"

namespace TW_API tilewright {

/// Static extents of a tile.
using Extents = std::vector<std::int64_t>;

// ---- Sources. Locations default to the caller's line.

/// i64 scalar: the index of this program along a grid axis.
Tile program_id(int axis, std::source_location location = std::source_location::current());
/// i64 scalar: the extent of a grid axis.
Tile num_programs(int axis, std::source_location location = std::source_location::current());
/// 0, 1, ..., n - 1 as a rank-1 tile.
Tile iota(std::int64_t n, DType dtype = i32,
          std::source_location location = std::source_location::current());
/// A tile whose elements count 0, 1, ... along `axis`.
Tile iota(Extents shape, int axis, DType dtype = i32,
          std::source_location location = std::source_location::current());
/// A tile filled with a literal or a scalar. `shape` {} gives a scalar.
Tile full(Extents shape, Operand value, DType dtype,
          std::source_location location = std::source_location::current());
Tile zeros(Extents shape, DType dtype,
           std::source_location location = std::source_location::current());
Tile ones(Extents shape, DType dtype,
          std::source_location location = std::source_location::current());
/// A scalar constant.
Tile constant(Operand value, DType dtype,
              std::source_location location = std::source_location::current());

// ---- Elementwise. Floating-point functions of an integer return f32. `approx` allows the
// hardware's approximation if there is one.

Tile exp(Operand x, bool approx = false);
Tile exp2(Operand x, bool approx = false);
Tile expm1(Operand x);
Tile log(Operand x, bool approx = false);
Tile log2(Operand x, bool approx = false);
Tile log1p(Operand x);
Tile tanh(Operand x, bool approx = false);
Tile sigmoid(Operand x, bool approx = false);
Tile erf(Operand x);
Tile erfc(Operand x);  ///< 1 - erf(x) without cancellation
Tile cbrt(Operand x);
Tile sin(Operand x, bool approx = false);
Tile cos(Operand x, bool approx = false);
Tile sqrt(Operand x, bool approx = false);
Tile rsqrt(Operand x, bool approx = false);
Tile reciprocal(Operand x);  ///< 1 / x
Tile square(Operand x);
Tile abs(Operand x);
Tile sign(Operand x);
Tile floor(Operand x);
Tile ceil(Operand x);
Tile round(Operand x);  ///< to nearest, ties to even
Tile isnan(Operand x);
Tile relu(Operand x);                           ///< max(x, 0)
Tile silu(Operand x);                           ///< x * sigmoid(x)
Tile gelu(Operand x, bool approximate = true);  ///< tanh form by default, as in JAX; else erf
Tile softplus(Operand x);                       ///< log(1 + exp(x)) without overflow

Tile pow(Operand x, Operand y);        ///< also of integers if y is a literal integer from 0 to 64
Tile nextafter(Operand x, Operand y);  ///< the float of their dtype after x towards y
Tile minimum(Operand x, Operand y);    ///< NaN propagates
Tile maximum(Operand x, Operand y);    ///< NaN propagates
Tile clamp(Operand x, Operand low, Operand high);
Tile floordiv(Operand x, Operand y);        ///< rounds towards minus infinity, Python's `//`
Tile floormod(Operand x, Operand y);        ///< sign of the divisor, Python's `%`
Tile cdiv(Operand x, Operand y);            ///< integers: x / y rounded up
Tile fma(Operand a, Operand b, Operand c);  ///< a * b + c, rounded once
/// `condition` (bool) chooses element by element.
Tile where(Operand condition, Operand if_true, Operand if_false);

Tile cast(Operand x, DType dtype);
/// The same bits as another dtype of equal width.
Tile bitcast(Operand x, DType dtype);

// ---- Shapes. Negative axes count from the end.

Tile reshape(Operand x, Extents shape);
/// Result axis i is operand axis permutation[i]; an empty list reverses the axes.
Tile transpose(Operand x, std::vector<int> permutation = {});
Tile expand_dims(Operand x, int axis);
Tile squeeze(Operand x, int axis);  ///< drops an axis of extent 1
Tile broadcast_to(Operand x, Extents shape);
/// Static slice; empty strides mean all 1.
Tile slice(Operand x, Extents starts, Extents sizes, Extents strides = {});
Tile concatenate(const std::vector<Tile>& parts, int axis,
                 std::source_location location = std::source_location::current());
/// Tiles of equal shape, stacked along a new axis.
Tile stack(const std::vector<Tile>& parts, int axis,
           std::source_location location = std::source_location::current());

// ---- Reductions and scans. Without an axis, reductions are over all axes. Sums of bool and of
// integers narrower than 32 bits are 32-bit; sums and products of f16 and bf16 accumulate in f32.

Tile sum(Operand x, std::optional<int> axis = {}, bool keepdims = false);
Tile prod(Operand x, std::optional<int> axis = {}, bool keepdims = false);
Tile max(Operand x, std::optional<int> axis = {}, bool keepdims = false);
Tile min(Operand x, std::optional<int> axis = {}, bool keepdims = false);
Tile mean(Operand x, std::optional<int> axis = {}, bool keepdims = false);
Tile any(Operand x, std::optional<int> axis = {}, bool keepdims = false);
/// i32 index of the first of the largest elements; argmin of the smallest.
Tile argmax(Operand x, int axis, bool keepdims = false);
Tile argmin(Operand x, int axis, bool keepdims = false);

Tile cumsum(Operand x, int axis = 0, bool reverse = false);
Tile cumprod(Operand x, int axis = 0, bool reverse = false);
Tile cummax(Operand x, int axis = 0, bool reverse = false);
Tile cummin(Operand x, int axis = 0, bool reverse = false);
/// Running log(sum(exp(x))) without overflow; minus infinity adds nothing.
Tile cumlogsumexp(Operand x, int axis = 0, bool reverse = false);

/// How an f32 dot computes its products.
enum class Precision : std::uint8_t {
    ieee,    ///< f32 products (default)
    tf32,    ///< operands rounded to tf32, where the hardware has it
    tf32x3,  ///< three tf32 products, nearly as accurate as f32
};

/// Options of `dot`.
struct DotOptions {
    bool trans_a = false;  ///< a is stored [.., k, m]
    bool trans_b = false;  ///< b is stored [.., n, k]
    /// Added to the product; has the result's dtype and broadcasts to its shape.
    std::optional<Operand> acc = {};
    Precision precision = Precision::ieee;
};

/// Matrix product [m, k] x [k, n] -> [m, n], or batched [b, m, k] x [b, k, n]. The result and its
/// accumulation are f32 for f16, bf16 and f8 operands, i32 for i8 and u8; other dtypes keep theirs.
Tile dot(Operand a, Operand b, DotOptions options = {});

// ---- Random numbers: philox4x32-10 (Salmon et al., 2011), the same bits on every device.

/// u32 bits for each element of `counter` (any integer tile), given the scalar `seed`.
Tile random_bits(Operand seed, Operand counter);
/// f32 uniform in [0, 1).
Tile uniform(Operand seed, Operand counter);

// ---- Debugging.

/// Prints `format`, which has one {} per operand, once for each program.
void debug_print(std::string format, const std::vector<Tile>& operands = {},
                 std::source_location location = std::source_location::current());
/// In the checked mode, a false element is an error with this message.
void debug_check(Operand condition, std::string message);

}  // namespace tilewright
