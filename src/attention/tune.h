// Configurations of attention by measurement.
#pragma once

#include <functional>

#include "attention/engine.h"

namespace tilewright::attn {

/// The configuration of an engine for a call: what it chooses, or, where the caller asks for that,
/// the one of its trials whose `run` takes the least time. Measured once for each engine, spec,
/// layout and density of the mask, then remembered in memory and on disk; not while a CUDA graph is
/// captured.
ConfigPtr configuration(const Engine& engine, const AttentionSpec& spec,
                        const AttentionBuffers& buffers,
                        const std::function<void(const EngineConfig&)>& run);

}  // namespace tilewright::attn
