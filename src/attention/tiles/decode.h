// Split-KV attention for few queries per head: keys and values are read once, split over programs.
#pragma once

#include "attention/tiles/features.h"
#include "tilewright/run.h"

namespace tilewright::attn::tiles {

/// Keys per program. A fixed number, so that results do not depend on batch size or threads.
inline constexpr std::int64_t kDecodeChunk = 2048;

/// One program per (batch, kv head, chunk); the query heads of a kv head share one pass over K and
/// V. Inputs: query (B, Hkv, group, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), then the extras.
/// Outputs, f32 or f64: out (B, Hkv, chunks, group, Ev), not divided by its sum; max (of scaled
/// scores), mark (of the exponent) and sum (B, Hkv, chunks, group). Plans and dropout are
/// unsupported here.
Call decode(const Options& options, const Features& features);

/// Combines the chunks in order. `score_mod`: the chunks had one. Inputs: decode's outputs, sinks
/// (Hkv, group) or absent. Outputs: out (B, Hkv, group, Ev) in `dtype`; lse and max_scores (B, Hkv,
/// group).
Call decode_combine(const Options& options, bool score_mod, bool sinks, DType dtype);

}  // namespace tilewright::attn::tiles
