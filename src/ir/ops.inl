// The operations of the tile IR, one row each, in the order of ir::Op.
//
// Define a macro before including this file to get its text for each row. A macro that is not
// defined expands to the next one in this list, and TW_OP to nothing:
//
//   TW_UNARY, TW_APPROXIMABLE, TW_BINARY -> TW_FUNCTION -> TW_OP
//
//   TW_OP(op, op_class, dtypes)
//     An operation whose meaning is defined where it is used. `dtypes` says what operands may be: f
//     floats, i integers, b bool, and ~ if there is an approximate form.
//
//   TW_UNARY(op, function, value, vector, facts...)
//     An elementwise function of floats, complete: it needs no code anywhere else.
//       function  its name in C++ (declared in tilewright/lang/ops.h), in texts and in Python
//       value     its definition: the value at x, computed in type T
//       vector    its form in cpu/simd/vector_math-inl.h: VectorFloats<F>, VectorF32<F> where f64
//                 is left to the C library, ScalarLoop if there is none
//       facts     initialisers of ir::FunctionInfo (ir/op.h), in their order
//   TW_APPROXIMABLE: the same with an approximate form.
//   TW_BINARY: the same for x and y. `dtype`, that of the stored elements, may be narrower than T.
//
// docs/extending.md shows how to add one. Derivatives are in ir/passes/derivatives.cpp.

#ifndef TW_OP
#define TW_OP(op, op_class, dtypes)
#endif
#ifndef TW_FUNCTION
#define TW_FUNCTION(op, op_class, dtypes, function, value, vector, ...) TW_OP(op, op_class, dtypes)
#endif
#ifndef TW_UNARY
#define TW_UNARY(op, function, value, vector, ...) \
    TW_FUNCTION(op, unary, "f", function, value, vector, __VA_ARGS__)
#endif
#ifndef TW_APPROXIMABLE
#define TW_APPROXIMABLE(op, function, value, vector, ...) \
    TW_FUNCTION(op, unary, "f~", function, value, vector, __VA_ARGS__)
#endif
#ifndef TW_BINARY
#define TW_BINARY(op, function, value, vector, ...) \
    TW_FUNCTION(op, binary, "f", function, value, vector, __VA_ARGS__)
#endif

// clang-format off

// Sources.
TW_OP(constant, source, "fib")     // one value, splatted over the result type
TW_OP(iota, source, "fi")          // 0, 1, 2, ... along one axis
TW_OP(program_id, source, "i")     // i64 index of this program along one grid axis
TW_OP(num_programs, source, "i")   // i64 extent of one grid axis
TW_OP(extent, source, "i")         // i64 extent of one dimension of a Ref

// Memory. A lane outside the array reads `other` and is never written.
TW_OP(load, memory, "fib")         // Ref, indices[, mask[, other]] -> tile
TW_OP(store, memory, "fib")        // Ref, indices, tile[, mask]
TW_OP(atomic_add, memory, "fi")    // Ref, indices, tile[, mask] -> old values; likewise max, min, xchg
TW_OP(atomic_max, memory, "fi")
TW_OP(atomic_min, memory, "fi")
TW_OP(atomic_xchg, memory, "fi")
TW_OP(atomic_cas, memory, "fi")    // Ref, indices, expected, desired[, mask] -> old values

// Elementwise, one operand.
TW_OP(neg, unary, "fi")
TW_OP(abs, unary, "fi")
TW_OP(sign, unary, "fi")
TW_APPROXIMABLE(exp, exp, std::exp(x), VectorFloats<Exp>,
    .meaning = "the exponential, e^x",
    .cuda = {.f32 = "expf", .f64 = "exp", .approx = "scalar::exp_approx", .wrapped = true},
    .numpy = "exp", .jax = "exp", .torch = "exp",
    .ulps = {1.5, 1.5}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_APPROXIMABLE(exp2, exp2, std::exp2(x), VectorF32<Exp2>,
    .meaning = "2^x",
    .cuda = {.f32 = "exp2f", .f64 = "exp2", .approx = "ptx::exp2_approx", .wrapped = true},
    .numpy = "exp2", .jax = "exp2", .torch = "exp2",
    .ulps = {1.5, 1.5}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_UNARY(expm1, expm1, std::expm1(x), VectorFloats<Expm1>,
    .meaning = "e^x - 1, accurate for small x",
    .cuda = {.f32 = "expm1f", .f64 = "expm1", .wrapped = true},
    .numpy = "expm1", .jax = "expm1", .torch = "expm1",
    .ulps = {4, 4}, .monotone_from = kEverywhere, .work = Work::function)
TW_APPROXIMABLE(log, log, std::log(x), VectorFloats<Log>,
    .meaning = "the natural logarithm",
    .cuda = {.f32 = "logf", .f64 = "log", .approx = "scalar::log_approx", .wrapped = true},
    .numpy = "log", .jax = "log", .torch = "log",
    .ulps = {2, 2}, .monotone_from = 0, .work = Work::long_function)
TW_APPROXIMABLE(log2, log2, std::log2(x), VectorFloats<Log2>,
    .meaning = "the logarithm to base 2",
    .cuda = {.f32 = "log2f", .f64 = "log2", .approx = "ptx::log2_approx", .wrapped = true},
    .numpy = "log2", .jax = "log2", .torch = "log2",
    .ulps = {3, 3}, .monotone_from = 0, .work = Work::function)
TW_UNARY(log1p, log1p, std::log1p(x), VectorFloats<Log1p>,
    .meaning = "the logarithm of 1 + x, accurate for small x",
    .cuda = {.f32 = "log1pf", .f64 = "log1p", .wrapped = true},
    .numpy = "log1p", .jax = "log1p", .torch = "log1p",
    .ulps = {3, 3}, .monotone_from = -1, .work = Work::function)
TW_APPROXIMABLE(tanh, tanh, std::tanh(x), VectorFloats<Tanh>,
    .meaning = "the hyperbolic tangent",
    .cuda = {.f32 = "tanhf", .f64 = "tanh", .approx = "ptx::tanh_approx", .wrapped = true},
    .numpy = "tanh", .jax = "tanh", .torch = "tanh",
    .ulps = {5, 4}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_APPROXIMABLE(logistic, sigmoid, ir::logistic(x), VectorFloats<Logistic>,
    .meaning = "1 / (1 + exp(-x))",
    .cuda = {.f32 = "scalar::logistic", .f64 = "scalar::logistic",
             .approx = "scalar::logistic_approx", .wrapped = true},
    .jax = "logistic", .torch = "sigmoid",
    .ulps = {3, 3}, .monotone_from = kEverywhere, .work = Work::function)
TW_UNARY(erf, erf, std::erf(x), VectorF32<Erf>,
    .meaning = "the error function",
    .cuda = {.f32 = "erff", .f64 = "erf", .wrapped = true},
    .jax = "erf", .torch = "erf",
    .ulps = {2, 1.5}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_UNARY(erfc, erfc, std::erfc(x), VectorF32<Erfc>,
    .meaning = "the complementary error function, 1 - erf(x) without cancellation",
    .cuda = {.f32 = "erfcf", .f64 = "erfc"},
    .jax = "erfc", .torch = "erfc",
    .ulps = {5, 5}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_UNARY(cbrt, cbrt, std::cbrt(x), VectorF32<Cbrt>,
    .meaning = "the cube root",
    .cuda = {.f32 = "cbrtf", .f64 = "cbrt"},
    .numpy = "cbrt", .jax = "cbrt", .torch = "cbrt",
    .ulps = {1, 4}, .monotone_from = kEverywhere, .work = Work::long_function)
TW_APPROXIMABLE(sin, sin, std::sin(x), VectorFloats<Sin>,
    .meaning = "the sine",
    .cuda = {.f32 = "sinf", .f64 = "sin", .approx = "ptx::sin_approx", .wrapped = true},
    .numpy = "sin", .jax = "sin", .torch = "sin",
    .ulps = {3, 3}, .work = Work::long_function)
TW_APPROXIMABLE(cos, cos, std::cos(x), VectorFloats<Cos>,
    .meaning = "the cosine",
    .cuda = {.f32 = "cosf", .f64 = "cos", .approx = "ptx::cos_approx", .wrapped = true},
    .numpy = "cos", .jax = "cos", .torch = "cos",
    .ulps = {3, 3}, .work = Work::long_function)
TW_APPROXIMABLE(sqrt, sqrt, std::sqrt(x), VectorFloats<Sqrt>,
    .meaning = "the square root",
    .cuda = {.f32 = "sqrtf", .f64 = "sqrt", .wrapped = true},
    .numpy = "sqrt", .jax = "sqrt", .torch = "sqrt",
    .ulps = {0.5, 0.5}, .monotone_from = 0, .work = Work::function)
TW_APPROXIMABLE(rsqrt, rsqrt, T{1} / std::sqrt(x), VectorFloats<Rsqrt>,
    .meaning = "1 / sqrt(x)",
    .cuda = {.f32 = "rsqrtf", .f64 = "rsqrt", .approx = "ptx::rsqrt_approx", .wrapped = true},
    .jax = "rsqrt", .torch = "rsqrt",
    .ulps = {1.5, 1.5}, .monotone_from = kAboveZero, .work = Work::function)
TW_UNARY(floor, floor, std::floor(x), VectorFloats<Floor>,
    .meaning = "x rounded towards minus infinity",
    .cuda = {.f32 = "floorf", .f64 = "floor", .wrapped = true},
    .numpy = "floor", .jax = "floor")
TW_UNARY(ceil, ceil, std::ceil(x), VectorFloats<Ceil>,
    .meaning = "x rounded towards infinity",
    .cuda = {.f32 = "ceilf", .f64 = "ceil", .wrapped = true},
    .numpy = "ceil", .jax = "ceil")
TW_UNARY(round, round, std::nearbyint(x), VectorFloats<Round>,
    .meaning = "x rounded to the nearest integer, ties to even",
    .cuda = {.f32 = "rintf", .f64 = "rint", .wrapped = true},
    .numpy = "rint")
TW_OP(isnan, unary, "f")
TW_OP(bitwise_not, unary, "ib")    // logical not for bool

// Elementwise, two operands of one type.
TW_OP(add, binary, "fi")
TW_OP(sub, binary, "fi")
TW_OP(mul, binary, "fi")
TW_OP(div, binary, "fi")           // integers truncate towards zero
TW_OP(floordiv, binary, "fi")      // rounds towards minus infinity
TW_OP(rem, binary, "fi")           // sign of the dividend (C)
TW_OP(floormod, binary, "fi")      // sign of the divisor (Python)
TW_BINARY(pow, pow, std::pow(x, y), VectorF32<Pow>,
    .meaning = "x to the power of y",
    .cuda = {.f32 = "powf", .f64 = "pow", .wrapped = true},
    .torch = "pow",
    .ulps = {1, 3}, .work = Work::long_function)
TW_BINARY(nextafter, nextafter, ir::next_after(dtype, x, y), VectorWide<NextAfter>,
    .meaning = "the float next to x towards y, of their dtype",
    .cuda = {.f32 = "nextafterf", .f64 = "nextafter", .narrow = "next_after"},
    .numpy = "nextafter", .jax = "nextafter", .torch = "nextafter")
TW_OP(min, binary, "fib")          // NaN propagates
TW_OP(max, binary, "fib")          // NaN propagates
TW_OP(bitwise_and, binary, "ib")
TW_OP(bitwise_or, binary, "ib")
TW_OP(bitwise_xor, binary, "ib")
TW_OP(shift_left, binary, "i")
TW_OP(shift_right, binary, "i")    // arithmetic for signed types, logical for unsigned

// Comparisons: two operands of one type -> bool. NaN compares false, except ne.
TW_OP(eq, comparison, "fib")
TW_OP(ne, comparison, "fib")
TW_OP(lt, comparison, "fib")
TW_OP(le, comparison, "fib")
TW_OP(gt, comparison, "fib")
TW_OP(ge, comparison, "fib")

// Elementwise, three operands.
TW_OP(select, ternary, "fib")      // bool, if_true, if_false
TW_OP(clamp, ternary, "fi")        // value, low, high: min(max(value, low), high)
TW_OP(fma, ternary, "f")           // a * b + c, rounded once

// Conversions.
TW_OP(cast, convert, "fib")        // to the result's dtype: nearest even; float to integer truncates and saturates
TW_OP(bitcast, convert, "fi")      // same width, same bits

// Shape.
TW_OP(broadcast, shape, "fib")     // a scalar, or equal rank with extents of 1 repeated
TW_OP(reshape, shape, "fib")       // same elements in row-major order
TW_OP(transpose, shape, "fib")     // permutation of axes
TW_OP(expand_dims, shape, "fib")   // inserts an axis of extent 1
TW_OP(slice, shape, "fib")         // static starts, sizes, strides
TW_OP(concatenate, shape, "fib")   // along one axis

// Across lanes.
TW_OP(reduce, lanes, "fib")        // one axis, dropped from the shape
TW_OP(scan, lanes, "fib")          // associative prefix along one axis
TW_OP(associative_scan, lanes, "fib")  // the same with a function of the user's, on one or more operands
TW_OP(sort, lanes, "fib")          // elements along one axis in order, or the first of them
TW_OP(argsort, lanes, "fib")       // their i32 places
TW_OP(dot, lanes, "fi")            // a, b[, acc]: matrix product, rank 2 or 3 (batch first)

// Others.
TW_OP(random_bits, other, "i")     // philox4x32-10: key (u64 scalar), counter (u64 tile) -> u32 tile
TW_OP(debug_print, other, "fib")   // format text with {} per operand
TW_OP(debug_check, other, "b")     // bool tile, text: the checked mode reports a false element

// Structured control flow.
TW_OP(for_loop, control, "fib")    // lo, hi, step, carries...; one block (iv, carries...) -> results
TW_OP(while_loop, control, "fib")  // carries...; blocks: condition (carries) -> bool, body (carries) -> carries
TW_OP(if_else, control, "fib")     // bool scalar; two blocks without arguments yielding the results
TW_OP(call, control, "fib")        // a mod (a Function of rank-0 parameters), applied elementwise by broadcasting
TW_OP(yield, control, "fib")       // ends every block

// clang-format on

#undef TW_OP
#undef TW_FUNCTION
#undef TW_UNARY
#undef TW_APPROXIMABLE
#undef TW_BINARY
