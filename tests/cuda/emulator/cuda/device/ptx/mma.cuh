// Emulated mma.sync, by the fragment tables of the PTX ISA.
#pragma once

#include <vector>

#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/matrix_move.cuh"

namespace twd::ptx {

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

template <class Tag>
inline int byte_of(Tag, u32 word, int which) {
    const auto byte = static_cast<u8>(word >> (8 * which));
    return std::is_same_v<Tag, S8> ? static_cast<signed char>(byte) : byte;
}

template <class Left, class Right>
inline void mma_m16n8k32(Left left, Right right, int& d0, int& d1, int& d2, int& d3, u32 a0, u32 a1,
                         u32 a2, u32 a3, u32 b0, u32 b1) {
    const std::uint64_t words[6] = {a0, a1, a2, a3, b0, b1};
    const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
    int* d[4] = {&d0, &d1, &d2, &d3};
    emulator::collective(words, 6, [&](emulator::Warp& warp) {
        for (int e = 0; e < 4; ++e) {
            const int m = g + e / 2 * 8, n = 2 * t + e % 2;
            auto sum = static_cast<u32>(*d[e]);
            for (int k = 0; k < 32; ++k) {
                const int in = k % 16, a_lane = m % 8 * 4 + in / 4, b_lane = n * 4 + in / 4;
                const int a_word = (m >= 8 ? 1 : 0) + (k >= 16 ? 2 : 0),
                          b_word = 4 + (k >= 16 ? 1 : 0);
                sum += static_cast<u32>(
                    byte_of(left, static_cast<u32>(warp.slots[a_lane][a_word]), in % 4) *
                    byte_of(right, static_cast<u32>(warp.slots[b_lane][b_word]), in % 4));
            }
            *d[e] = static_cast<int>(sum);
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

template <int kRows, int kColumns>
struct Blocks {};
template <bool kTransposed>
struct Moved {};
template <int kSteps, bool kTransposed>
struct Loads {};

/// Registers of the functions that are generated with kernels (cuda/codegen/mma_steps.h).
struct Given {
    template <class... Registers>
    explicit Given(Registers&&... given) {
        (collect(given), ...);
    }
    void expect(std::size_t sums_count, std::size_t words_count) const {
        if (sums.size() == sums_count && words.size() == words_count) return;
        std::fprintf(stderr, "multiply: wrong number of registers\n");
        std::abort();
    }
    std::vector<float*> sums;
    std::vector<u32> words;

  private:
    void collect(float& sum) { sums.push_back(&sum); }
    void collect(u32 word) { words.push_back(word); }
};

inline void load_words(bool transposed, u32* d, u32 address) {
    if (transposed) {
        ldmatrix_transposed(d[0], d[1], d[2], d[3], address);
    } else {
        ldmatrix(d[0], d[1], d[2], d[3], address);
    }
}

/// One step along k: words of the left operand, addresses of the right one.
template <class Tag>
inline void multiply_step(Tag tag, int rows, int columns, bool transposed, float* const* sums,
                          const u32* left, const u32* right) {
    for (int column = 0; column < columns; ++column) {
        u32 b[4];
        load_words(transposed, b, right[column / 2]);
        for (int row = 0; row < rows; ++row) {
            float* const* const d = sums + 4 * (2 * (column / 2 * rows + row) + column % 2);
            const u32* const a = left + 4 * row;
            const int half = 2 * (column % 2);
            mma_m16n8k16(tag, *d[0], *d[1], *d[2], *d[3], a[0], a[1], a[2], a[3], b[half],
                         b[half + 1]);
        }
    }
}

template <class Tag, int kRows, int kColumns, bool kTransposed, class... Registers>
inline void multiply(Tag tag, Blocks<kRows, kColumns>, Moved<kTransposed>, Registers&&... given) {
    const Given all(given...);
    all.expect(4 * kRows * kColumns, 4 * kRows + kColumns / 2);
    multiply_step(tag, kRows, kColumns, kTransposed, all.sums.data(), all.words.data(),
                  all.words.data() + 4 * kRows);
}

template <class Tag, int kRows, int kColumns, bool kTransposed, int kSteps, bool kLeft,
          class... Registers>
inline void multiply(Tag tag, Blocks<kRows, kColumns>, Moved<kTransposed>, Loads<kSteps, kLeft>,
                     Registers&&... given) {
    const Given all(given...);
    all.expect(4 * kRows * kColumns, kSteps * (kRows + kColumns / 2));
    for (int step = 0; step < kSteps; ++step) {
        u32 left[4 * kRows];
        for (int row = 0; row < kRows; ++row) {
            load_words(kLeft, left + 4 * row, all.words[step * kRows + row]);
        }
        multiply_step(tag, kRows, kColumns, kTransposed, all.sums.data(), left,
                      all.words.data() + kSteps * kRows + step * (kColumns / 2));
    }
}

}  // namespace twd::ptx
