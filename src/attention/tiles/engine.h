// Attention by tile programs, on CPUs and GPUs.
#pragma once

#include "attention/engine.h"

namespace tilewright::attn::tiles {

/// Supports every call.
const Engine& engine();

/// Do the queries of all heads of a group have one common stride in query and results?
bool has_joined_rows(const AttentionSpec& spec, const AttentionBuffers& buffers);

}  // namespace tilewright::attn::tiles
