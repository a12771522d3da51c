// The norms as tile programs: each walks over rows, or over one piece of a long row.
#pragma once

#include <compare>
#include <cstdint>

#include "tilewright/run.h"

namespace tilewright::norm {

/// What the programs are specialised by; the number of rows comes with the call.
struct Options {
    bool layer = false;  ///< LayerNorm: subtract the mean
    bool weight = false, bias = false;
    bool residual = false;  ///< forward: an input to add; backward: a gradient to add
    std::int64_t n = 0;     ///< elements of a row
    double eps = 0;
    DType output = f32;  ///< of y
    bool interpret = false;
    std::int64_t rows_per_program = 8;  ///< of forward, a multiple of tile_rows
    std::int64_t tile_rows = 1;         ///< rows done at once; not of long rows
    /// Programs of the backward pass, hence parts of the weight's gradient. Of long rows: programs
    /// of a piece.
    std::int64_t parts = 64;
    /// A row is done in tiles of this length, which divides n, one after the other where that saves
    /// a GPU's registers; 0: in one. Not of long rows, not with tile_rows.
    std::int64_t tile = 0;
    /// Backward: where not 0, the sums for the weight's and bias's gradients are f32 scratch
    /// instead of carried, for rows whose sums a GPU's registers do not hold. So many neighbours of
    /// a row are one thread's: 16 bytes of x; they divide the tile. Not with tile_rows.
    std::int64_t scratch_vector = 0;
    int num_warps = 0;   ///< of a GPU; 0: chosen by what a program holds
    int num_stages = 0;  ///< of a GPU's loop over rows; 1: nothing is loaded ahead
    auto operator<=>(const Options&) const = default;
};

/// Rows up to this length are one tile; longer ones are split over programs, so that few rows use
/// all cores.
inline constexpr std::int64_t kLongestTile = 32768;

/// Pieces that a long row is split into.
std::int64_t pieces(const Options& options);

/// Inputs x (rows, n), weight (n), bias (n), residual (rows, n), absent where the options say so.
/// Outputs y (rows, n), inverse deviation (rows), then mean (rows) if `layer`, then x + residual
/// (rows, n) if `residual`.
Call forward(const Options& options);

/// Long rows, first step. Inputs x and residual. Outputs (rows, pieces): sums of squared distances
/// from the mean of the piece (from 0 for RMSNorm), then sums if `layer`; then x + residual if
/// `residual`.
Call row_statistics(const Options& options);

/// Long rows, second step. Inputs x (with the residual), weight, bias, nothing, and what
/// row_statistics gave. Outputs as those of forward, without x + residual.
Call forward_long(const Options& options);

/// Inputs x (rows, n), dy (rows, n), inverse deviation (rows), mean (rows), weight (n), dsum (rows,
/// n). Outputs dx (rows, n), then the parts of the weight's and of the bias's gradient (parts, n)
/// if there are any, f32 or f64.
Call backward(const Options& options);

/// Long rows, first step. Inputs as those of backward, without dsum. Outputs (rows, pieces): sums
/// of dy * weight * normalised x, then, if `layer`, of dy * weight.
Call row_products(const Options& options);

/// Long rows, second step. Inputs as those of backward, then what row_products gave. Outputs as
/// those of backward.
Call backward_long(const Options& options);

/// Sum of (parts, n) over the parts, in a fixed order, in `dtype`.
Call sum_parts(DType dtype, bool interpret);

}  // namespace tilewright::norm
