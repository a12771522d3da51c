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

/// Shapes of what programs leave that split the keys: the sums of values, and three numbers per
/// row.
struct PartShapes {
    Tensor::Dims out, rows;
};
/// For queries (B, H, rows, ..) over `kv_length` keys, `split_k` of them per program.
PartShapes part_shapes(const Tensor::Dims& query, std::int64_t kv_length, std::int64_t split_k,
                       std::int64_t value_dim);

/// Combines the chunks of decode, or of the forward program with `Options::split_k`, in order.
/// `score_mod`: the chunks had one. Inputs: the program's four outputs, for H heads of kv (decode)
/// or of queries; sinks (H, rows), (H, 1) or absent. Outputs: out (B, H, rows, Ev) in `dtype`; lse
/// and max_scores (B, H, rows). `block_rows`: rows of a program; 0: all.
Call decode_combine(const Options& options, bool score_mod, bool sinks, DType dtype,
                    std::int64_t block_rows = 0, bool dynamic_rows = false);

}  // namespace tilewright::attn::tiles
