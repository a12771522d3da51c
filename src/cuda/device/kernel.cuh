// What users' CUDA C++ includes as <tilewright.cuh>: elements, arithmetic of tiles, PTX.
//
// Elements in memory are `float`, `double`, integers, and `tw::f16`, `tw::bf16`, `tw::f8e4m3`,
// `tw::f8e5m2`, `tw::boolean`, which hold bits: `tw::widen(element)` is a number to compute with
// (a float for those), `tw::to<T>(number)` the nearest element.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/tile/memory.cuh"

namespace twd {

/// Values of attributes that are dtypes, in the same order as on the host.
enum class DType : int {
    boolean,
    i8,
    u8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    f16,
    bf16,
    f32,
    f64,
    f8e4m3,
    f8e5m2
};

/// A pointer to this block's element of a batch, whose elements lie along the grid's z axis: for
/// parameters of kernels with batches in the grid.
template <class T>
struct batched {
    T* data;
    i64 stride;  ///< elements from one element of the batch to the next
    TW_DEVICE operator T*() const { return data + stride * blockIdx.z; }
};

/// The element nearest to a number: tw::to<T>(x).
template <class S, class V>
TW_DEVICE S to(V value) {
    return narrow(S{}, static_cast<Register<S>>(value));
}

/// The sum over a warp, in all of its lanes.
template <class T>
TW_DEVICE T warp_sum(T value) {
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
    return value;
}

/// The sum over a one-dimensional block of up to 1,024 threads, a multiple of 32, in all of them.
/// `partial` is shared memory for 32 values, which may be reused after the call.
template <class T>
TW_DEVICE T block_sum(T value, T* partial) {
    const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
    value = warp_sum(value);
    if (lane == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_sum(lane < warps ? partial[lane] : T(0));
    __syncthreads();
    return value;
}

}  // namespace twd

/// The device library under the name that users know from the host.
namespace tw = twd;
