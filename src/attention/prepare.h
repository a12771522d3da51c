// From the arguments of attention to a spec and buffers, in steps.
#pragma once

#include "attention/buffers.h"
#include "tilewright/attention.h"

namespace tilewright::attn {

/// All of the steps below, in their order. UserError names the argument that does not fit.
AttentionCall prepare(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options);

/// What the arrays and numbers are, without mods and masks. Ends the keys after the last one that a
/// query may attend.
AttentionCall check_arguments(const Tensor& query, const Tensor& key, const Tensor& value,
                              const AttentionOptions& options);

/// Ends the keys of a sequence after the last one that a query may attend: at most kv - q = `right`
/// (-1: unbounded) and `most` keys.
void end_keys(AttentionSpec& spec, AttentionBuffers& buffers, std::int64_t right,
              std::int64_t most);

/// UserError where a mod that a pair may evaluate reads an array without elements.
void check_captures(const AttentionOptions& options, const AttentionSpec& spec);

/// The mask as data, of everything that is worth being data. True when programs must evaluate the
/// mask mod themselves.
bool build_mask(const AttentionOptions& options, AttentionCall& call);

/// The score mod, and the mask mod where programs evaluate it, as functions.
void trace_mods(const AttentionOptions& options, bool evaluates_mask, AttentionCall& call);

/// The arrays that these mods capture, on the device of the call.
void place_captures(const AttentionOptions& options, AttentionCall& call);

}  // namespace tilewright::attn
