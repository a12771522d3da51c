// Integer names, element tags and the function qualifier that all device headers use.
//
// Each header beside this one has one family of instructions. Comments name a section of the PTX
// ISA by its instruction, because section numbers change between editions. Only these files have
// inline assembly.
#pragma once

#include "cuda/device/compact.cuh"

#define TW_DEVICE __device__ __forceinline__

namespace twd {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

/// Element tags: they select an instruction by overload. Two 16-bit elements share one u32, the one
/// with the lower index in the lower half.
struct F16 {};
struct Bf16 {};
struct Tf32 {};
struct E4m3 {};
struct E5m2 {};
struct S8 {};
struct U8 {};

/// Encoded by the host; a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

TW_DEVICE u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

}  // namespace twd
