// The arrays of a call in the form the Hopper kernels want: what TMA can read and write, small
// arrays, masks as lists.
#pragma once

#include "attention/buffers.h"
#include "attention/sm90/problem.h"
#include "mask/plan.h"

namespace tilewright::attn::sm90 {

/// 0 for tensors that are not there.
cuda::DeviceAddress address_of(const Tensor& tensor);
DeviceTensor view_of(const Tensor& tensor);

/// The tensor where TMA can write it, else a new one of its type.
Tensor writable(const char* argument, const Tensor& tensor);
/// The tensor where TMA can read it, else a copy of it.
Tensor readable(const char* argument, const Tensor& tensor);

/// What both passes are given of a call, without what they write, masks and scratch; with the
/// arrays that were made for it, which live as long as this.
struct PlacedArrays {
    Tensor query, key, value, sinks, q_starts, kv_starts;

    PlacedArrays(const AttentionSpec& spec, const AttentionBuffers& buffers, ProblemInputs& inputs);
};

/// The mask of a call, with its diagonals, as lists for such tiles: copied to the GPU once, they
/// live as long as the plan they come from.
DeviceMask lists_on(const AttentionSpec& spec, const AttentionBuffers& buffers,
                    const mask::PlanOptions& options);
/// For tiles of queries: the forward's, and where head_dim > 128 the backward's too.
DeviceMask query_lists_on(const AttentionSpec& spec, const AttentionBuffers& buffers);

}  // namespace tilewright::attn::sm90
