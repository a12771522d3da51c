// Emulated mma.sync, by the fragment tables of the PTX ISA.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace tw::ptx {

template <class Tag>
inline float half_of(Tag, u32 word, int which) {
    const auto bits = static_cast<u16>(which == 0 ? word : word >> 16);
    if constexpr (sizeof(Tag) != 0 && std::is_same_v<Tag, F16>) return from_bits(F16{}, bits);
    return __uint_as_float(static_cast<u32>(bits) << 16);
}

template <class Tag>
inline void mma_m16n8k16(Tag tag, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1,
                         u32 a2, u32 a3, u32 b0, u32 b1) {
    const std::uint64_t words[6] = {a0, a1, a2, a3, b0, b1};
    const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
    float* d[4] = {&d0, &d1, &d2, &d3};
    emulator::collective(words, 6, [&](emulator::Warp& warp) {
        for (int e = 0; e < 4; ++e) {
            const int m = g + e / 2 * 8, n = 2 * t + e % 2;
            float sum = *d[e];
            for (int k = 0; k < 16; ++k) {
                const int in = k % 8, a_lane = m % 8 * 4 + in / 2, b_lane = n * 4 + in / 2;
                const int a_word = (m >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0),
                          b_word = 4 + (k >= 8 ? 1 : 0);
                sum += half_of(tag, static_cast<u32>(warp.slots[a_lane][a_word]), in % 2) *
                       half_of(tag, static_cast<u32>(warp.slots[b_lane][b_word]), in % 2);
            }
            *d[e] = sum;
        }
    });
}

inline void mma_m16n8k8(Tf32, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2,
                        u32 a3, u32 b0, u32 b1) {
    const std::uint64_t words[6] = {a0, a1, a2, a3, b0, b1};
    const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
    float* d[4] = {&d0, &d1, &d2, &d3};
    emulator::collective(words, 6, [&](emulator::Warp& warp) {
        for (int e = 0; e < 4; ++e) {
            const int m = g + e / 2 * 8, n = 2 * t + e % 2;
            float sum = *d[e];
            for (int k = 0; k < 8; ++k) {
                const int a_word = (m >= 8 ? 1 : 0) + (k >= 4 ? 2 : 0),
                          b_word = 4 + (k >= 4 ? 1 : 0);
                sum += __uint_as_float(static_cast<u32>(warp.slots[m % 8 * 4 + k % 4][a_word])) *
                       __uint_as_float(static_cast<u32>(warp.slots[n * 4 + k % 4][b_word]));
            }
            *d[e] = sum;
        }
    });
}

inline void mma_m8n8k4(double& d0, double& d1, double a, double b) {
    const std::uint64_t words[2] = {bits_as<std::uint64_t>(a), bits_as<std::uint64_t>(b)};
    const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
    double* d[2] = {&d0, &d1};
    emulator::collective(words, 2, [&](emulator::Warp& warp) {
        for (int e = 0; e < 2; ++e) {
            for (int k = 0; k < 4; ++k) {
                *d[e] += bits_as<double>(warp.slots[g * 4 + k][0]) *
                         bits_as<double>(warp.slots[(2 * t + e) * 4 + k][1]);
            }
        }
    });
}

}  // namespace tw::ptx
