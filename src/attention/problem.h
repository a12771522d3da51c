// The arguments of attention, checked, and what its programs are compiled for.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
    Device device;                       ///< of all tensors
    Tensor segment_ids, kv_segment_ids;  ///< both given or both not, contiguous, both i32 or i64
    Tensor kv_lengths;  ///< (batch), or (sequences) of packed ones, contiguous, i32 or i64; or none
    Tensor sinks;       ///< undefined where not needed
    Tensor shift;       ///< see tiles::Features::shifted; undefined where it is not
    std::uint64_t seed = 0;                ///< of dropout
    std::array<std::int64_t, 4> origin{};  ///< see tiles::Extra
    const mod::Traced* score = nullptr;
    const mod::Traced* mask = nullptr;           ///< a mask that the program evaluates itself
    std::vector<Tensor> captured;                ///< arrays of the score mod, then of that mask
    BlockMask block_mask;                        ///< a mask as data
    std::shared_ptr<const mask::MaskPlan> plan;  ///< of it, once planned
    Tensor plan_headers;  ///< the plan's, after a row for each one that batches and heads before
                          ///< the first ones here would have
    std::int64_t batch, query_heads, kv_heads, query_length, kv_length, head_dim, value_dim;
    /// Keys of the caller. The views here end after the last one that a query may attend by
    /// position or length, so that no program reads what lies there.
    std::int64_t given_kv_length;
    std::vector<std::int64_t> starts, kv_starts;  ///< of packed sequences: N + 1, or empty
    bool is_part = false;                         ///< of a larger call, from `origin` on
    bool deterministic = true;
    std::string engine;       ///< that the caller asked for; empty: the fastest that can serve
    bool max_scores = false;  ///< the caller asked for them
    AttentionBlocks forward_blocks, backward_blocks;  ///< hints of the caller
    bool autotune = false;
    bool gradient = false;  ///< the backward pass will follow
    tiles::Options options;
    tiles::Features features;
    tiles::InlinedMod plain_score;  ///< the score mod without the checked mode's parameter

    bool empty() const { return batch * query_heads * query_length == 0; }
    bool packed() const { return !starts.empty(); }
    /// Calls body(n) for every packed sequence; on the CPU, if they are `independent`, several at
    /// once.
    void for_each_sequence(const std::function<void(std::size_t)>& body,
                           bool independent = true) const;
    bool on_gpu() const { return device.kind == Device::Kind::cuda; }
    /// Long enough, in a type of fast products, that longer blocks pay on a CPU.
    bool is_long() const;
    /// Blocks of programs for warps, where those of warpgroups were chosen.
    void use_warp_blocks();
    /// The blocks of the backward pass, where they differ from those of the forward.
    void use_backward_blocks();
    /// Takes the blocks that are given, as far as lengths and machine allow.
    void use_blocks(const AttentionBlocks& wish);
    /// Turns the mask's data, if there is any, into the plan of a program.
    void make_plan(bool by_kv);
    /// The tensors of the extra inputs of a program.
    std::vector<Tensor> extras() const;
    /// Captures of the score mod that have gradients, by their place among its captures.
    std::vector<bool> differentiable() const;
    /// The part of an array like the caller's keys that is like `key`; the rest becomes 0.
    Tensor attended_part(const Tensor& given) const;
    /// One packed sequence, as a problem of its own.
    Problem sequence(std::size_t n) const;
    /// kv heads [first, first + count) of batches [b, b + batches), as a problem of its own.
    Problem part(std::int64_t b, std::int64_t batches, std::int64_t first,
                 std::int64_t count) const;
};

/// UserError names the argument that does not fit.
Problem check(const Tensor& query, const Tensor& key, const Tensor& value,
              const AttentionOptions& options);

/// UserError unless the argument has this type and lies on this device; a BHSD view with unit
/// stride in the last dimension.
Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout,
                   Device device);
/// UserError unless the tensor, if there is one, lies on this device, that of the query.
void expect_device(const char* argument, const Tensor& tensor, Device device);
void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected);

/// UserError unless a tensor of the caller can take a result of this BHSD shape; its BHSD view.
Tensor check_output(const char* argument, const Tensor& tensor, DType dtype,
                    const Tensor::Dims& shape, Layout layout, Device device);
/// The same for a number per row, without gaps.
void check_rows(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device);

Tensor to_bhsd(const Tensor& x, Layout layout);
/// A new tensor of BHSD shape `shape` whose memory is in `layout`, as a BHSD view.
Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout, Device device);

/// Parts of tensors (batch, heads, ...) and (batch, heads, length, ...); undefined ones stay so.
Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count);
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count);
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count);

}  // namespace tilewright::attn
