// Compiler built-ins that users' CUDA C++ may use and generated kernels do not, on the host.
#pragma once

#include <array>

#include "cuda/device/ptx/types.cuh"

#define __host__
#define __constant__ static
#define __noinline__
#define __restrict__ __restrict

template <class T>
inline T __shfl_down_sync(unsigned, T value, int by,
                          const emulator::Here& here = emulator::Here::current()) {
    const int lane = emulator::current % 32 + by;
    return shuffle_from(value, static_cast<unsigned>(lane < 32 ? lane : emulator::current % 32),
                        here);
}
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
    return 1.0 / std::sqrt(x);
}
inline void __threadfence() {}

namespace emulator {

template <class... P>
struct UserKernel {
    void (*function)(P...);

    template <std::size_t... I>
    void call(void** p, std::index_sequence<I...>) const {
        function(*static_cast<P*>(p[I])...);
    }
    void run(void** p, const unsigned* grid, const unsigned* block, unsigned seed) const {
        gridDim = {grid[0], grid[1], grid[2]};
        blockDim = {block[0], block[1], block[2]};
        const int threads = static_cast<int>(block[0] * block[1] * block[2]);
        for (unsigned z = 0; z < grid[2]; ++z) {
            for (unsigned y = 0; y < grid[1]; ++y) {
                for (unsigned x = 0; x < grid[0]; ++x) {
                    blockIdx = {x, y, z};
                    run_block(threads, seed++, [&] { call(p, std::index_sequence_for<P...>()); });
                }
            }
        }
        blockDim = {};
    }
};
template <class... P>
UserKernel<P...> user_kernel(void (*function)(P...)) {
    return {function};
}
template <class F>
struct Sizes;
template <class... P>
struct Sizes<void (*)(P...)> {
    using Array = std::array<unsigned long, sizeof...(P) + 1>;
    static constexpr Array kSizes{sizeof(P)..., 0};
};

}  // namespace emulator

#define TW_EMULATED_KERNEL(symbol, ...)                                                      \
    extern "C" void run_user_##symbol(void** p, const unsigned* grid, const unsigned* block, \
                                      unsigned seed) {                                       \
        emulator::user_kernel(&__VA_ARGS__).run(p, grid, block, seed);                       \
    }                                                                                        \
    extern "C" {                                                                             \
    extern const emulator::Sizes<decltype(&__VA_ARGS__)>::Array sizes_##symbol;              \
    const emulator::Sizes<decltype(&__VA_ARGS__)>::Array sizes_##symbol =                    \
        emulator::Sizes<decltype(&__VA_ARGS__)>::kSizes;                                     \
    }
