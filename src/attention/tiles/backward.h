// Attention backward as tile programs: delta, the five GEMMs, and the sum of the parts of dQ.
#pragma once

#include "attention/tiles/features.h"
#include "tilewright/run.h"

namespace tilewright::attn::tiles {

/// Inputs: out and dout (B, Hq, L, Ev), lse (B, Hq, L), dlse (B, Hq, L) or absent. Outputs (B, Hq,
/// L), f32 or f64: log2 of the softmax's denominator (+inf for a row with nothing to attend to, so
/// that its probabilities are 0) and delta = sum(out * dout) - dlse. With `looks`, the queries (B,
/// Hq, L, E) are one more input, and the last output (B, Hq, blocks of queries) is true where a
/// block of queries or of dout holds an infinity or NaN (or sums of out * dout overflow).
Call backward_preprocess(const Options& options, bool dlse, bool looks);

/// Does `backward` read that output, `Extra::not_finite`?
bool looks_for_infinities(const Options& options, const Features& features);

/// Without limits other than a diagonal, a split's first block of keys is attended by every query
/// that any of its keys is. Its products are then written, not added, and the rows of dQ before
/// them are neither cleared by `backward` nor read by `sum_parts`.
bool writes_first_products(const Options& options, const Features& features);

/// One program per (batch, kv head, split) loops over its kv blocks, and for each over the query
/// blocks of all heads of the group; dK and dV stay in the program, dQ is added to the split's
/// part. Inputs: query, key, value, dout, log2 denominator, delta, segment ids (B, L) and (B, S) or
/// both absent, the extras (of a plan by keys), then the gradient buffers, which are added to.
/// Outputs: the parts of dQ (splits, B, Hq, L, E), unscaled, f32 or f64; dK and dV in the inputs'
/// dtypes; the updated gradient buffers. Every sum has a fixed order. With `options.fragments`:
/// parts (splits, B, Hq, blocks of queries, block_q * E), for which zeros are the last input. Their
/// lines hold blocks in an order of their own (which `sum_parts` undoes): block_q and E are
/// multiples of 8, and E is static. With `options.unordered` as well: one program per (batch, kv
/// head, block of keys), and all add to one part, in any order.
Call backward(const Options& options, const Features& features, const ScoreDerivative& derivative);

/// The same of `Options::separate`, in two calls, for captures without gradients. The plan's tiles
/// are of `step_q` queries by keys, with bits as keys x queries, or of `step_k` keys by queries.
/// Inputs: query, key,
/// value, dout, log2 denominator, delta, segment ids or both absent, the extras. Keys and values
/// that no query attends are finite. Outputs: dK and dV, as far as they are wanted; dQ, scaled and
/// in the dtype of the queries. No sum depends on the order of programs.
Call backward_of_keys(const Options& options, const Features& features,
                      const ScoreDerivative& derivative);
Call backward_of_queries(const Options& options, const Features& features,
                         const ScoreDerivative& derivative);

/// Splits of the keys of each (batch, kv head): some programs for each of many cores when there are
/// few heads. A matter of shapes alone, so that the result does not depend on the machine; each
/// split has its own sums of dQ.
std::int64_t num_splits(bool gpu, std::int64_t batch, std::int64_t kv_heads,
                        std::int64_t kv_length);

/// A copy of keys or values (B, H, S, E) with 0 for infinities and NaN.
Call finite_copy(const Options& options, DType dtype);

/// Gradient of the sinks. Inputs: sinks (Hq), lse and delta (B, Hq, L), and the shift of each row
/// if `shifted` (`Features::shifted`). Output: (Hq), f32 or f64.
Call sinks_backward(const Options& options, bool shifted);

/// out = the sum over the copies (copies, n), in order, in `dtype`.
Call sum_copies(const Options& options, DType dtype);

/// dQ (B, Hq, L, E) = scale * the sum of the parts, in order, in `dtype`. `queries` is L, for parts
/// in fragments. `written`: the result of `writes_first_products`.
Call sum_parts(const Options& options, DType dtype, bool written, std::int64_t queries = 0);

}  // namespace tilewright::attn::tiles
