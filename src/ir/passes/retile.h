// Retiling: cuts logical blocks into tiles that a machine can hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

struct RetileOptions {
    std::int64_t max_tile_elements = 16384;  ///< no tile of the result is larger
    std::int64_t rows = 64;                  ///< preferred sub-tile of a store, last two axes
    std::int64_t columns = 64;
    std::int64_t k_chunk = 256;  ///< most elements of a dot's contracted axis at a time
    /// Where the sub-tiles of a store go.
    enum class Schedule : std::uint8_t {
        loops,  ///< loops inside the program, for the caches of CPUs
        grid,   ///< further grid axes if the kernel stores only one block shape, else loops
    };
    Schedule schedule = Schedule::loops;
    /// With Schedule::grid: extents that are cut in place of a block's own, whatever size the tiles
    /// have, where programs that differ in one grid axis have blocks beside each other. Elements
    /// outside of the arrays are not masked, and the caller removes the grid axes.
    std::vector<std::int64_t> extents = {};
};

struct RetileReport {
    int stores = 0;     ///< stores and atomics cut into sub-tiles
    int grid_axes = 0;  ///< axes appended to the function's grid, which calls must launch
    bool rewritten = false;
    std::string refusal;  ///< op, type and reason where a block cannot be cut
    bool changed() const { return rewritten; }
};

/// Rewrites a kernel whose blocks are larger than a tile. Each store is cut into sub-tiles; walking
/// back from a sub-tile finds what it needs, so loads fetch only their part, reductions and dots
/// stream the axis they contract, and elementwise producers are fused in between. Mods are inlined
/// first. Kernels that fit are unchanged, and so are those of which a block cannot be cut: the
/// report then says why.
RetileReport try_retile(Function& function, const RetileOptions& options = {});
/// The same; UserError says why a block cannot be cut.
RetileReport retile(Function& function, const RetileOptions& options = {});

}  // namespace tilewright::ir
