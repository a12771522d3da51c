// Copies arrays so that TMA reads their rows fast (wide_rows.h).
#pragma once

#include "attention/sm90/wide_rows_parameters.h"
#include "cuda/device/ptx/memory.cuh"

extern "C" __global__ void __launch_bounds__(twd::attn::kWideThreads)
    attention_wide_rows(const __grid_constant__ twd::attn::WideRowsParameters p) {
    using namespace twd;
    using namespace twd::attn;
    const WideRows& c = p.arrays[blockIdx.y];
    const int chunks = (c.rows + kWideRows - 1) / kWideRows;
    const int head_index = blockIdx.x / chunks, chunk = blockIdx.x - head_index * chunks;
    if (head_index >= c.batch_heads) return;
    const int batch = head_index / c.heads, head = head_index - batch * c.heads;
    const int first = chunk * kWideRows, rows = min(kWideRows, c.rows - first);
    const u16* const source = static_cast<const u16*>(c.source) + batch * c.batch_stride +
                              head * c.head_stride + first * c.row_stride;
    u16* const target =
        static_cast<u16*>(c.target) + (static_cast<i64>(head_index) * c.rows + first) * c.pitch;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * c.copied; i += kWideThreads) {
        const int row = i / c.copied, vector = i - row * c.copied;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (vector < c.vectors) {
            words = ptx::load_once_128(source + row * c.row_stride + vector * 8);
        }
        *reinterpret_cast<uint4*>(target + row * c.pitch + vector * 8) = words;
    }
}
