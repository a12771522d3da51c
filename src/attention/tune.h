// Chooses configurations of attention by measurement.
#pragma once

#include <functional>

#include "attention/engine.h"

namespace tilewright::attn {

/// The engine's configuration for a call: its default or, if the caller asks for it, the one of its
/// trials whose `run` takes the least time. Each engine, spec, layout and mask density is measured
/// once and remembered in memory and on disk; nothing is measured while a CUDA graph is being
/// captured.
ConfigPtr configuration(const Engine& engine, const AttentionSpec& spec,
                        const AttentionBuffers& buffers,
                        const std::function<void(const EngineConfig&)>& run);

}  // namespace tilewright::attn
