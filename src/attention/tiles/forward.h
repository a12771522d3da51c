// Attention forward as a tile program: one block of queries, a loop over blocks of keys.
#pragma once

#include "attention/tiles/features.h"
#include "tilewright/run.h"

namespace tilewright::attn::tiles {

/// Inputs: query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), segment ids (B, L) and
/// (B, S) in i32 or both absent, sinks (Hq) or absent, then the extras. Outputs: out (B, Hq, L, Ev)
/// in value's dtype; lse and max_scores (B, Hq, L), natural log, f32 or f64; a row with nothing to
/// attend to gives 0, -inf, -inf. `dynamic_queries`: L may change from call to call and is at least
/// block_q.
Call forward(const Options& options, const Features& features, bool dynamic_queries);

/// Inputs: those of `forward`, and lse (B, Hq, L). Outputs (B, Hq, L), f32 or f64. For rows whose
/// lse is finite with a magnitude of `kInexactLse` or more: the largest score (including the sink),
/// and the log of the sum of exp(score - largest), -inf if there is no score. For other rows: 0 and
/// lse.
Call row_sums(Options options, const Features& features, bool dynamic_queries);

}  // namespace tilewright::attn::tiles
