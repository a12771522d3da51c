// Retiling: logical blocks become tiles that a machine can hold.
#pragma once

#include <cstdint>

#include "ir/function.h"

namespace tilewright::ir {

struct RetileOptions {
    std::int64_t max_tile_elements = 16384;  ///< no tile of the result is larger
    std::int64_t rows = 64;                  ///< preferred sub-tile of a store, last two axes
    std::int64_t columns = 64;
    std::int64_t k_chunk = 256;  ///< at most this much of a dot's contracted axis at a time
    /// Where the sub-tiles of a store go.
    enum class Schedule : std::uint8_t {
        loops,  ///< loops inside the program: CPU caches
        grid,   ///< further grid axes where the kernel stores one block shape only, else loops
    };
    Schedule schedule = Schedule::loops;
};

struct RetileReport {
    int stores = 0;     ///< stores and atomics cut into sub-tiles
    int grid_axes = 0;  ///< axes appended to the function's grid; calls must launch that grid
    bool rewritten = false;
    bool changed() const { return rewritten; }
};

/// Rewrites a kernel whose blocks are larger than a tile. Each store is cut into sub-tiles; what a
/// sub-tile needs is found by walking back from it, so loads fetch only their part, reductions and
/// dots stream the axis they contract, and elementwise producers are fused in between. Mods are
/// inlined first. Kernels that fit are left alone. UserError names the op, its type and the reason
/// when a block cannot be separated; the function is unchanged then.
RetileReport retile(Function& function, const RetileOptions& options = {});

}  // namespace tilewright::ir
