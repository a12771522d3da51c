// Copies of arrays that TMA reads slowly: rows that begin off lines of 128 bytes, or that end
// within 32 bytes (docs/explanation/hardware/hopper.md). Rows of a copy do neither.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "attention/sm90/device_tensor.h"

namespace tilewright::attn::sm90 {

/// Is the length of a row an odd multiple of 16 bytes? Such rows are slowest.
constexpr bool is_odd(int columns) {
    return columns % 16 != 0;
}

/// Bytes of a copy of an array of 16-bit elements, a multiple of 128.
std::size_t wide_bytes(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                       std::int64_t columns);

/// The kernel that copies; can be compiled without a GPU.
cuda::CompileRequest generate_wide_rows();
/// Loads it; call it before a launch is captured in a graph.
void load_wide_rows(int device);

/// Queues copies of those of up to four arrays that TMA reads slowly, one after the other from
/// `memory` on (aligned to 128), and makes the arrays stand for their copies, whose columns are a
/// multiple of 16: those past the last are 0.
void widen_rows(std::initializer_list<DeviceTensor*> arrays, cuda::DeviceAddress memory, int device,
                cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
