// The norms as tile programs: each loops over rows, or over one piece of long rows.
#pragma once

#include <compare>
#include <cstdint>

#include "tilewright/run.h"

namespace tilewright::norm {

/// What the programs are specialised for; the number of rows comes with the call.
struct Options {
    bool layer = false;  ///< LayerNorm: subtract the mean
    bool weight = false, bias = false;
    bool residual = false;  ///< forward: add an input; backward: add a gradient
    std::int64_t n = 0;     ///< elements of a row
    double eps = 0;
    DType output = f32;  ///< dtype of y
    bool interpret = false;
    std::int64_t rows_per_program = 8;  ///< in the forward pass; a multiple of tile_rows
    std::int64_t tile_rows = 1;         ///< rows in one tile; not for long rows
    /// Programs of the backward pass, and so parts of the weight's gradient. For long rows:
    /// programs per piece.
    std::int64_t parts = 64;
    /// A row is processed in tiles of this length, which divides n, one after another if that saves
    /// a GPU's registers; 0: in one tile. Not for long rows, and not with tile_rows.
    std::int64_t tile = 0;
    /// Backward: if not 0, the loop does not carry the sums for the gradients of weight and bias
    /// but keeps them in f32 scratch, for rows whose sums do not fit a GPU's registers. This many
    /// adjacent elements of a row belong to one thread: 16 bytes of x; it divides the tile. Not
    /// with tile_rows.
    std::int64_t scratch_vector = 0;
    int num_warps = 0;   ///< on a GPU; 0: chosen by what a program holds
    int num_stages = 0;  ///< of a GPU's loop over rows; 1: no prefetching
    auto operator<=>(const Options&) const = default;
};

/// Rows up to this length are one tile. Longer ones are split over programs, so that few rows use
/// all cores.
inline constexpr std::int64_t kLongestTile = 32768;

/// The number of pieces into which a long row is split.
std::int64_t pieces(const Options& options);

/// Inputs: x (rows, n), weight (n), bias (n), residual (rows, n), absent if the options say so.
/// Outputs: y (rows, n), inverse deviation (rows), then mean (rows) if `layer`, then x + residual
/// (rows, n) if `residual`.
Call forward(const Options& options);

/// Long rows, first step. Inputs: x and residual. Outputs (rows, pieces): sums of squared distances
/// from the mean of the piece (from 0 for RMSNorm), then sums if `layer`; then x + residual if
/// `residual`.
Call row_statistics(const Options& options);

/// Long rows, second step. Inputs: x (with the residual added), weight, bias, an absent one, and
/// the results of row_statistics. Outputs: those of forward, without x + residual.
Call forward_long(const Options& options);

/// Inputs: x (rows, n), dy (rows, n), inverse deviation (rows), mean (rows), weight (n), dsum
/// (rows, n). Outputs: dx (rows, n), then the parts of the gradients of weight and bias (parts, n),
/// if there are any, f32 or f64.
Call backward(const Options& options);

/// Long rows, first step. Inputs: those of backward, without dsum. Outputs (rows, pieces): sums of
/// dy * weight * normalised x, then, if `layer`, of dy * weight.
Call row_products(const Options& options);

/// Long rows, second step. Inputs: those of backward, then the results of row_products. Outputs:
/// those of backward.
Call backward_long(const Options& options);

/// The sum of (parts, n) over the parts, in a fixed order, in `dtype`.
Call sum_parts(DType dtype, bool interpret);

}  // namespace tilewright::norm
