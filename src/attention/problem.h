// The arguments of attention, checked, and what its programs are compiled for.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attention/tiles/features.h"
#include "mask/block_mask.h"
#include "mod/traced.h"
#include "run/call_cache.h"
#include "tilewright/attention.h"
#include "tilewright/run.h"

namespace tilewright::attn {

using run::cached;

/// Checked arguments, as BHSD views with unit stride in the last dimension.
struct Problem {
    Tensor query, key, value;
    Tensor segment_ids, kv_segment_ids;  ///< both given or both not, of one dtype
    Tensor sinks, seed, origin;          ///< undefined where not needed
    const mod::Traced* score = nullptr;
    const mod::Traced* mask = nullptr;           ///< a mask that the program evaluates itself
    BlockMask block_mask;                        ///< a mask as data
    std::shared_ptr<const mask::MaskPlan> plan;  ///< of it, once planned
    std::int64_t batch, query_heads, kv_heads, query_length, kv_length, head_dim, value_dim;
    std::vector<std::int64_t> starts, kv_starts;  ///< of packed sequences: N + 1, or empty
    tiles::Options options;
    tiles::Features features;
    tiles::InlinedMod plain_score;  ///< the score mod without the checked mode's parameter

    bool empty() const { return batch * query_heads * query_length == 0; }
    bool packed() const { return !starts.empty(); }
    /// Turns the mask's data, if there is any, into the plan of a program.
    void make_plan(bool by_kv);
    /// The tensors of the extra inputs of a program.
    std::vector<Tensor> extras() const;
    /// Captures of the score mod that have gradients, by their place among its captures.
    std::vector<bool> differentiable() const;
    /// One packed sequence, as a problem of its own.
    Problem sequence(std::size_t n) const;
    /// kv heads [first, first + count) of batches [b, b + batches), as a problem of its own.
    Problem part(std::int64_t b, std::int64_t batches, std::int64_t first,
                 std::int64_t count) const;
};

/// UserError names the argument that does not fit.
Problem check(const Tensor& query, const Tensor& key, const Tensor& value,
              const AttentionOptions& options);

/// UserError unless the argument has this type; a BHSD view with unit stride in the last dimension.
Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout);
void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected);

Tensor to_bhsd(const Tensor& x, Layout layout);
/// A new tensor of BHSD shape `shape` whose memory is in `layout`, as a BHSD view.
Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout);

/// Parts of tensors (batch, heads, ...) and (batch, heads, length, ...); undefined ones stay so.
Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count);
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count);
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count);

}  // namespace tilewright::attn
