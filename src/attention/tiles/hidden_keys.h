// Keys that no query of a tile attends, for engines whose results they reach where they are
// infinite or NaN.
#pragma once

#include <functional>

#include "attention/buffers.h"
#include "attention/tiles/config.h"

namespace tilewright::attn::tiles {

/// What computes blocks of queries of a forward again whose result is infinite or NaN, in programs
/// that keep such keys apart; to be called after the forward. Their kernels are compiled in the
/// background meanwhile.
std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers);
/// The same of a call or a packed sequence with features of the whole call.
std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers,
                             const Features& features);

/// A copy of keys or values with 0 for infinities and NaN.
Tensor finite_keys(const AttentionSpec& spec, const Tensor& keys);

}  // namespace tilewright::attn::tiles
