// What the launches of kernels whose tiles are of queries share: the forward, and dQ where
// head_dim > 128.
#pragma once

#include "attention/sm90/forward_parameters.h"
#include "attention/sm90/problem.h"

namespace tilewright::attn::sm90 {

/// Tiles of `rows` query rows of `group` heads side by side in one (batch, head), packed sequences
/// with tiles of their own.
std::int64_t query_tiles_of(const ProblemDesc& desc, int rows, int group);

/// The parameters that follow from the problem, with an order of the tiles that keeps in L2 what
/// they share; `out`: what the kernel writes. The caller adds lists, the tile counter and what is
/// its own.
twd::attn::ForwardParameters query_tile_parameters(const ProblemInputs& inputs,
                                                   const ProblemDesc& desc, const DeviceTensor& out,
                                                   int rows, int group);

/// The lists of a mask made for tiles of 64 * `strips` rows and blocks of `block` keys; UserError
/// for a mask of other ones.
twd::attn::MaskLists query_lists(const DeviceMask& mask, int strips, int block);

}  // namespace tilewright::attn::sm90
