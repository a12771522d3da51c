// Blocks of programs beside each other as one block, which can be cut into tiles of any size.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// The two axes of what a kernel stores.
struct MergedBlocks {
    std::vector<int> axes;              ///< grid axes that count the blocks; -1: there is only one
    std::vector<std::int64_t> sizes;    ///< of a block
    std::vector<std::int64_t> extents;  ///< of all blocks together, where an array has elements
};

/// The blocks of a kernel whose programs differ in position only: each block begins at the
/// program's position times its size, the blocks cover the arrays that are stored, and extents are
/// static. Nothing where that does not show in the kernel's form.
std::optional<MergedBlocks> mergeable_blocks(const ir::Function& kernel);

/// After `retile` with these extents, from the grid of rank `old_rank`: removes the merged axes
/// from the grid, whose extents become 1. False, and the kernel must not be used, if a position is
/// used otherwise than to begin blocks.
bool remove_merged_axes(ir::Function& cut, const MergedBlocks& merged, std::size_t old_rank);

}  // namespace tilewright::cuda::schedule
