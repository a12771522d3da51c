// Emulated asynchronous copies: they are done at once.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

inline void cp_async_16(u32 target, const void* source, u32 valid = 16) {
    if (target % 16 != 0 || reinterpret_cast<std::uintptr_t>(source) % 16 != 0) {
        std::fprintf(stderr, "misaligned cp.async\n");
        std::abort();
    }
    std::memset(memory + target, 0, 16);
    if (valid != 0) std::memcpy(memory + target, source, valid);
}
inline void cp_async_commit() {}
template <int kPending>
inline void cp_async_wait() {}

}  // namespace twd::ptx
