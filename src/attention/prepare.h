// From the arguments of attention to a spec and buffers, in steps.
#pragma once

#include "attention/buffers.h"
#include "tilewright/attention.h"

namespace tilewright::attn {

/// Runs all of the steps below, in order. UserError names the argument that does not fit.
AttentionCall prepare(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options);

/// Checks arrays and numbers, but not mods and masks. Drops the keys after the last one that any
/// query may attend to.
AttentionCall check_arguments(const Tensor& query, const Tensor& key, const Tensor& value,
                              const AttentionOptions& options);

/// Drops the keys of a sequence after the last one that a query may attend to: at most `most` keys
/// are left, with kv - q <= `right` (-1: unbounded).
void end_keys(AttentionSpec& spec, AttentionBuffers& buffers, std::int64_t right,
              std::int64_t most);

/// UserError where a mod that may be evaluated for some pair reads an array without elements.
void check_captures(const AttentionOptions& options, const AttentionSpec& spec);

/// Builds the mask as data from everything worth materialising. True when the programs must
/// evaluate the mask mod themselves.
bool build_mask(const AttentionOptions& options, AttentionCall& call);

/// Traces the score mod, and the mask mod if programs evaluate it, into functions.
void trace_mods(const AttentionOptions& options, bool evaluates_mask, AttentionCall& call);

/// Puts the arrays that these mods capture on the device of the call.
void place_captures(const AttentionOptions& options, AttentionCall& call);

}  // namespace tilewright::attn
