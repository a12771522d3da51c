// Keys that no query of a tile attends to, for engines in which infinities and NaN of such keys
// reach the results.
#pragma once

#include <functional>

#include "attention/buffers.h"
#include "attention/tiles/config.h"

namespace tilewright::attn::tiles {

/// Returns a function to call after the forward pass: it recomputes the blocks of queries whose
/// results are infinite or NaN, with programs that isolate such keys. Their kernels are compiled in
/// the background meanwhile.
std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers);
/// The same for a call or a packed sequence, with the features of the whole call.
std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers,
                             const Features& features);

/// A copy of keys or values with 0 for infinities and NaN.
Tensor finite_keys(const AttentionSpec& spec, const Tensor& keys);

}  // namespace tilewright::attn::tiles
