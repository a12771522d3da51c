// The Hopper kernel for dQ where head_dim > 128, next to the main kernel, which accumulates dK and
// dV.
#pragma once

#include <cstddef>

#include "attention/sm90/backward.h"

namespace tilewright::attn::sm90 {

/// Bytes of shared memory that the kernel takes.
int backward_query_shared_bytes(const BackwardDesc& desc);

/// Bytes of scratch, aligned to 16: the tile counter, and lists that the device builds.
std::size_t backward_query_workspace_bytes(const BackwardDesc& desc);

/// The kernel's translation unit where head_dim > 128; can be compiled without a GPU.
cuda::CompileRequest generate_backward_query(const BackwardDesc& desc);

/// Launches the loaded kernel; `delta` has rows (batch, heads, q_len).
void launch_backward_query(const BackwardInputs& inputs, const BackwardDesc& desc,
                           const cuda::Kernel& kernel, cuda::DeviceAddress delta,
                           cuda::DeviceAddress workspace, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
