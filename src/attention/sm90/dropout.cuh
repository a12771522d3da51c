// Which pairs of a block dropout drops: decided by random bits that depend only on the pair's
// place.
#pragma once

#include "cuda/device/ptx/types.cuh"
#include "cuda/device/scalar.cuh"

namespace twd::attn {

/// The key of a head's random bits.
TW_DEVICE u64 dropout_key_of(u64 seed, int batch, int head) {
    const u64 pair = (static_cast<u64>(static_cast<u32>(batch)) << 32 | static_cast<u32>(head))
                     << 1;
    return static_cast<u64>(scalar::philox(seed, pair | 1)) << 32 | scalar::philox(seed, pair);
}

/// One bit for each of a thread's kCount accumulator registers: register 4 j + 2 r + e is the pair
/// of `row` + 8 r and `column` + 8 j + e.
template <int kCount>
struct Dropped {
    u32 words[(kCount + 31) / 32];

    TW_DEVICE bool operator[](int i) const { return (words[i / 32] >> i % 32 & 1) != 0; }
};

/// The pairs whose random bits are below `threshold`. With kRowsAreKeys, rows are keys and columns
/// are queries.
template <int kCount, bool kRowsAreKeys>
TW_DEVICE Dropped<kCount> find_dropped(u64 key, u32 threshold, u32 row, u32 column) {
    Dropped<kCount> result;
    TW_UNROLL
    for (int word = 0; word < (kCount + 31) / 32; ++word) {
        const int registers = kCount - 32 * word < 32 ? kCount - 32 * word : 32;
        u32 bits = 0;
        // NOTE: not unrolled, since 50 instructions per pair would fill the instruction cache and
        // take seconds to compile.
#pragma unroll 1
        for (int j = 0; j < registers / 4; ++j) {
            TW_UNROLL
            for (int i = 0; i < 4; ++i) {
                const u32 r = row + 8 * (i / 2), c = column + 8 * (8 * word + j) + i % 2;
                const u64 pair =
                    kRowsAreKeys ? static_cast<u64>(c) << 32 | r : static_cast<u64>(r) << 32 | c;
                bits = bits >> 1 | (scalar::philox(key, pair) < threshold ? 1u << 31 : 0);
            }
        }
        result.words[word] = bits >> (32 - registers);
    }
    return result;
}

}  // namespace twd::attn
