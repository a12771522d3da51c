// The arrays of a call in the form that the Hopper kernels need: tensors that TMA can read and
// write, small arrays, and masks as lists.
#pragma once

#include <memory>

#include "attention/buffers.h"
#include "attention/sm90/mask_lists.h"
#include "attention/sm90/problem.h"
#include "mask/plan.h"

namespace tilewright::attn::sm90 {

/// 0 for undefined tensors.
cuda::DeviceAddress address_of(const Tensor& tensor);
DeviceTensor view_of(const Tensor& tensor);

/// The tensor itself if TMA can write it, else a new one of its type and shape.
Tensor writable(const char* argument, const Tensor& tensor);
/// The tensor itself if TMA can read it, else a copy of it.
Tensor readable(const char* argument, const Tensor& tensor);

/// Fills in the inputs that both passes share, except for outputs, masks and scratch, and owns the
/// arrays that had to be made for the call.
struct PlacedArrays {
    Tensor query, key, value, sinks, q_starts, kv_starts;

    PlacedArrays(const AttentionSpec& spec, const AttentionBuffers& buffers, ProblemInputs& inputs);
};

/// The call's mask, diagonals included, as lists for tiles of these sizes. They are copied to the
/// GPU once and kept as long as the plan they come from.
std::shared_ptr<const UploadedLists> lists_on(const AttentionSpec& spec,
                                              const AttentionBuffers& buffers,
                                              const mask::PlanOptions& options);
/// Lists for tiles of queries, as the backward needs them where head_dim > 128.
std::shared_ptr<const UploadedLists> query_lists_on(const AttentionSpec& spec,
                                                    const AttentionBuffers& buffers);

}  // namespace tilewright::attn::sm90
