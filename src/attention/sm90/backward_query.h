// dQ where head_dim > 128 on Hopper, beside the backward's kernel that sums up their dK and dV.
#pragma once

#include <cstddef>

#include "attention/sm90/backward.h"

namespace tilewright::attn::sm90 {

/// Bytes of shared memory the kernel takes.
int backward_query_shared_bytes(const BackwardDesc& desc);

/// Bytes of scratch, aligned to 16: the counter of tiles, and lists that the device builds.
std::size_t backward_query_workspace_bytes(const BackwardDesc& desc);

/// The kernel's translation unit, compilable without a GPU, where head_dim > 128.
cuda::CompileRequest generate_backward_query(const BackwardDesc& desc);

/// Launches the loaded kernel on rows of `delta` (batch, heads, q_len).
void launch_backward_query(const BackwardInputs& inputs, const BackwardDesc& desc,
                           const cuda::Kernel& kernel, cuda::DeviceAddress delta,
                           cuda::DeviceAddress workspace, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
