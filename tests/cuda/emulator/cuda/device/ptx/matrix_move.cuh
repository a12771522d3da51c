// Emulated ldmatrix.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

template <bool kTransposed, int kCount>
inline void emulate_ldmatrix(u32* words, u32 row) {
    if (row % 16 != 0) {
        std::fprintf(stderr, "misaligned ldmatrix\n");
        std::abort();
    }
    const std::uint64_t address = row;
    const int lane = emulator::current % 32;
    emulator::collective(&address, 1, [&](emulator::Warp& warp) {
        const auto element = [&](int tile, int r, int c) {
            u16 bits;
            std::memcpy(&bits, memory + warp.slots[8 * tile + r][0] + 2 * c, 2);
            return static_cast<u32>(bits);
        };
        for (int tile = 0; tile < kCount; ++tile) {
            const int g = lane / 4, t = lane % 4 * 2;
            words[tile] = kTransposed ? element(tile, t, g) | element(tile, t + 1, g) << 16
                                      : element(tile, g, t) | element(tile, g, t + 1) << 16;
        }
    });
}
#define TW_EMULATED_LDMATRIX(name, transposed)                  \
    inline void name(u32& a, u32& b, u32 row) {                 \
        u32 w[2];                                               \
        emulate_ldmatrix<transposed, 2>(w, row);                \
        a = w[0], b = w[1];                                     \
    }                                                           \
    inline void name(u32& a, u32& b, u32& c, u32& d, u32 row) { \
        u32 w[4];                                               \
        emulate_ldmatrix<transposed, 4>(w, row);                \
        a = w[0], b = w[1], c = w[2], d = w[3];                 \
    }
TW_EMULATED_LDMATRIX(ldmatrix, false)
TW_EMULATED_LDMATRIX(ldmatrix_transposed, true)

inline void load_fragment_pair(u32& a, u32& b, u32 address) {
    if (address % 8 != 0) emulator::fail("a misaligned load of 8 bytes");
    std::memcpy(&a, memory + address, 4);
    std::memcpy(&b, memory + address + 4, 4);
}

inline void stmatrix(u32 row, const u32 (&s)[4]) {
    const std::uint64_t words[5] = {row, s[0], s[1], s[2], s[3]};
    const int lane = emulator::current % 32;
    emulator::collective(words, 5, [&](emulator::Warp& warp) {
        for (int tile = 0; tile < 4; ++tile) {
            const u32 word = static_cast<u32>(warp.slots[lane][1 + tile]);
            const u32 to = static_cast<u32>(warp.slots[8 * tile + lane / 4][0]) + lane % 4 * 4;
            std::memcpy(memory + to, &word, 4);
            emulator::write_shared(to, emulator::current);
        }
    });
}

}  // namespace twd::ptx
