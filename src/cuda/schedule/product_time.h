// How long a product takes on a Hopper GPU, estimated.
#pragma once

#include <cstdint>

#include "cuda/schedule/program.h"
#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// What a product's kernel does.
struct ProductWork {
    /// The grid's last two axes: of tiles, where blocks are merged.
    std::int64_t rows = 0, columns = 0;
    std::int64_t tiles = 0;  ///< all, of batches, too; 0: depends on the call
    std::int64_t steps = 0;  ///< of 128 bytes along the inner dimension; 0: unknown
    /// Bytes from one row of an operand's array to the next; 0: unknown.
    std::int64_t left_pitch = 0, right_pitch = 0;
    bool swapped = false;  ///< it is computed as its transpose
    /// Instructions for each element of the result, between the product and its store.
    std::int64_t operations = 0;
};

/// Is a kernel's largest product computed as its transpose? Those of tf32 are whose right operand
/// does not lie along the inner dimension.
bool is_swapped(const ir::Function& kernel);

/// That of a kernel cut by `prepare_for_wgmma`.
ProductWork work_of(const ir::Function& cut);

/// Where clusters of thread blocks may be faster: tiles of 128 rows, and operands that they share
/// whose rows do not begin on 128 bytes.
bool gains_by_pairs(const ProductWork& work, const Tile& tile, Pairs pairs);

/// Estimated clocks of a kernel of such tiles. Where the grid depends on the call, those of an
/// element.
double clocks_of(const ProductWork& work, const Tile& tile);

/// The same for sums in f32 of `parts` and their addition, for a result of so many elements.
double clocks_of_parts(const ProductWork& work, const Tile& tile, std::int64_t parts,
                       std::int64_t elements);

}  // namespace tilewright::cuda::schedule
