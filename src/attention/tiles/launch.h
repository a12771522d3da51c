// What the launches of tile programs share: parts of calls, scratch, mask plans, extra inputs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "attention/buffers.h"
#include "attention/tiles/config.h"
#include "mask/plan.h"
#include "run/call_cache.h"

namespace tilewright::attn::tiles {

using run::cached;

/// Hands out the workspace of a launch piece by piece.
class Scratch {
  public:
    explicit Scratch(Tensor workspace) : workspace_(std::move(workspace)) {}

    Tensor take(DType dtype, const Tensor::Dims& shape);
    /// Bytes that `take` uses for such a tensor.
    static std::int64_t bytes(DType dtype, const Tensor::Dims& shape);

  private:
    Tensor workspace_;
    std::int64_t used_ = 0;
};

/// A call, or a part of one.
struct Work {
    AttentionSpec spec;
    AttentionBuffers buffers;
};

/// One packed sequence of a call, as a call of its own, with its results and gradients.
Work sequence(const AttentionSpec& spec, const AttentionBuffers& buffers, std::size_t n);

/// Calls body(n) for every packed sequence; `independent` ones run in parallel on the CPU.
void for_each_sequence(const AttentionSpec& spec, const std::function<void(std::size_t)>& body,
                       bool independent = true);

/// kv heads [first, first + count) of batches [b, b + batches), as a call of its own.
Work part(const AttentionSpec& spec, const AttentionBuffers& buffers, std::int64_t b,
          std::int64_t batches, std::int64_t first, std::int64_t count);

/// A mask as data for programs with these blocks; empty if there is none.
struct Plan {
    std::shared_ptr<const mask::MaskPlan> plan;
    /// The plan's headers, preceded by rows for the batches and heads of the larger call before the
    /// first ones here: programs count rows from the start of that call.
    Tensor headers;
    std::int64_t batch_rows = 0, head_rows = 0;  ///< rows of headers per batch, per head
};
Plan make_plan(const AttentionSpec& spec, const BlockMask& mask, const Options& options, bool by_kv,
               bool transpose_bits = false);
/// Queries of a forward program with a mask as data: the most allowed, unless such large tiles
/// would cover too many masked pairs.
std::int64_t planned_queries(const AttentionSpec& spec, const BlockMask& mask,
                             const TilesConfig& config);

/// Are at least three of four of the mask's blocks, in a plan of these sizes, whole?
bool is_mostly_whole(const AttentionSpec& spec, const BlockMask& mask, const Options& options);

/// The inputs of a forward program.
std::vector<Tensor> forward_inputs(const AttentionSpec& spec, const AttentionBuffers& buffers,
                                   const Features& features, const Plan& plan);
/// Do forward programs take any number of queries?
inline bool has_long_queries(const AttentionSpec& spec) {
    return spec.query_length >= 64;
}

/// The tensors of a program's extra inputs; `shift` if `Features::shifted`.
std::vector<Tensor> extras(const AttentionSpec& spec, const AttentionBuffers& buffers,
                           const Features& features, const Plan& plan, const Tensor& shift = {});

/// Bytes of scratch for one call or sequence.
std::int64_t forward_workspace(const AttentionSpec& spec, const TilesConfig& config);
std::int64_t backward_workspace(const AttentionSpec& spec, const TilesConfig& config);

/// Runs one call or sequence.
void launch_forward(const AttentionSpec& spec, const TilesConfig& config,
                    const AttentionBuffers& buffers);

/// Runs a call with all of its packed sequences.
void launch_backward(const AttentionSpec& spec, const TilesConfig& config,
                     const AttentionBuffers& buffers);

}  // namespace tilewright::attn::tiles
