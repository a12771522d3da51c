// What the launches of kernels with tiles of queries share: the forward pass, and dQ where head_dim
// > 128.
#pragma once

#include "attention/sm90/forward_parameters.h"
#include "attention/sm90/problem.h"

namespace tilewright::attn::sm90 {

/// The number of tiles in one (batch, head), each of `rows` query rows of `group` heads. Each
/// packed sequence may add a partial one.
std::int64_t query_tiles_of(const ProblemDesc& desc, int rows, int group);

/// The parameters that follow from the problem, with an order of tiles that keeps shared data in
/// L2. `out` is what the kernel writes. The caller adds lists, the tile counter and its own
/// parameters.
twd::attn::ForwardParameters query_tile_parameters(const ProblemInputs& inputs,
                                                   const ProblemDesc& desc, const DeviceTensor& out,
                                                   int rows, int group);

/// The lists of a mask made for tiles of 64 * `strips` rows and blocks of `block` keys; UserError
/// if it was made for others.
twd::attn::MaskLists query_lists(const DeviceMask& mask, int strips, int block);

}  // namespace tilewright::attn::sm90
