// The built-in programs that `bench` and `dump` know by name.
#pragma once

#include <string>
#include <vector>

#include "attention/tiles/features.h"
#include "attention/tiles/options.h"
#include "tilewright/mod.h"
#include "tilewright/run.h"

namespace tilewright::cli {

/// z[m, n] = x[m, k] y[k, n]; inputs of one byte give f32 or i32, others their own dtype. A program
/// computes a block of z of up to 512 x 512 with all of k.
Call matmul(std::int64_t m, std::int64_t n, std::int64_t k);

/// A program with inputs of typical size.
struct Builtin {
    Call call;
    std::vector<Tensor> inputs;
};

/// Adds what an attention_backward program reads for each block of queries: whether they are
/// finite.
void add_blocks(Builtin& backward, const attn::tiles::Options& options,
                const attn::tiles::Features& features);

/// Names that `builtin` knows, in alphabetical order.
std::vector<std::string> builtin_names();

/// Texts of mods and the arrays that they read; empty text means no mod.
struct ModTexts {
    std::string mask, score;
    Bindings arrays = {};
};

/// The call for fixed extents only, so that its text can run by itself, as in twj.op.
Call fixed(const Call& call);

/// Attention with mods from text, as `dump flex` shows it, with the blocks for a CPU or a GPU.
Builtin flex_builtin(const char* op, DType dtype, const ModTexts& texts, bool backward, bool gpu);

/// The program `name` for elements of `dtype`. UserError in the name of the
/// command `op` lists the names if it is not one.
Builtin builtin(const char* op, const std::string& name, DType dtype, bool gpu);

/// The float dtype that --dtype names. UserError for other text.
DType float_dtype(const char* op, const std::string& text);

/// Reproducible values, uniform in [-1, 1); integers in [-128, 128), u8 in [0, 256).
Tensor random_values(DType dtype, Tensor::Dims shape, std::uint32_t seed);

}  // namespace tilewright::cli
