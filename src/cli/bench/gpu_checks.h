// Compares what a benchmark computes on a GPU with f64 on the CPU.
#pragma once

#include <functional>

#include "cli/bench/flex_cases.h"
#include "cli/bench/measure.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

/// Compares one direction of a problem with f64 and notes in its row what came out, or does
/// nothing.
using Check = std::function<void(bool backward, Row& row)>;

/// Compares the first head of the first batch, where mods see the same arguments, and of gradients
/// only the query's. Long problems without mods compare only the last rows. `on_host` are the
/// options for the CPU.
Check check_first_head(const AttentionInputs& in, const AttentionOptions& on_gpu,
                       const AttentionOptions& on_host);

/// Compares every result: out, dQ, dK, dV and the gradients of captures. For problems that the CPU
/// computes in a moment.
Check check_all(const AttentionInputs& in, const AttentionOptions& on_gpu,
                const AttentionOptions& on_host);

}  // namespace tilewright::cli
