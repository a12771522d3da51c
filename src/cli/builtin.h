// The built-in programs that `bench` and `dump` know by name.
#pragma once

#include <string>
#include <vector>

#include "tilewright/mod.h"
#include "tilewright/run.h"

namespace tilewright::cli {

/// z[m, n] = x[m, k] y[k, n], all of one dtype: one program per 256 x 512 block of z, with all of
/// k.
Call matmul(std::int64_t m, std::int64_t n, std::int64_t k);

/// Softmax of every row of x[rows, n]. On a GPU `exp` is the hardware's, of relative error 2^-22,
/// where the results have 16 bits.
Call softmax(std::int64_t n, bool gpu);

/// A program with inputs of a usual size.
struct Builtin {
    Call call;
    std::vector<Tensor> inputs;
};

/// Names that `builtin` knows, in alphabetical order.
std::vector<std::string> builtin_names();

/// Texts of mods and the arrays that they read; an empty text is no mod.
struct ModTexts {
    std::string mask, score;
    Bindings arrays = {};
};

/// The call for the extents it is given alone, so that its text runs by itself, as in twj.op.
Call fixed(const Call& call);

/// Attention with mods from texts, as `dump flex` shows it, in the blocks of a CPU or of a GPU.
Builtin flex_builtin(DType dtype, const ModTexts& texts, bool backward, bool gpu);

/// The program `name` for elements of `dtype`. UserError names the known ones.
Builtin builtin(const std::string& name, DType dtype, bool gpu);

/// The float dtype that --dtype names. UserError for anything else.
DType float_dtype(const char* op, const std::string& text);

/// Repeatable values, uniform in [-1, 1); integers in [-128, 128), u8 in [0, 256).
Tensor random_values(DType dtype, Tensor::Dims shape, std::uint32_t seed);

}  // namespace tilewright::cli
