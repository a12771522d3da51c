// Stores a warpgroup's accumulator as 64 rows of 16-bit elements.
#pragma once

#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace twd::attn {

/// An accumulator multiplied by `factor`, as pairs of 16-bit elements.
template <typename Element, int kCount>
TW_DEVICE void pack_rows(Element, const float (&accumulator)[kCount], float factor,
                         u32 (&words)[kCount / 2]) {
    TW_UNROLL
    for (int i = 0; i < kCount; i += 2) {
        words[i / 2] = ptx::pack(Element{}, accumulator[i] * factor, accumulator[i + 1] * factor);
    }
}

/// Stores the first kColumns columns of 64 rows of words (word_of(i): registers 2 i and 2 i + 1 of
/// an accumulator): rows lane / 4 and lane / 4 + 8 of each warp. `target` is this thread's first
/// row, with `rows` left in the tensor from there; its other row is `further` elements away. Each
/// lane stores 16 bytes: the quad transposes its words by shuffles, which needs no shared memory
/// and no barrier.
template <int kColumns, typename WordOf>
TW_DEVICE void store_words(const WordOf& word_of, u16* target, i64 further, int rows) {
    // NOTE: read again, so that values derived from it occupy no registers in the loop.
    const int quad_lane = ptx::lane_index() % 4;
    const bool odd = quad_lane & 1, upper = quad_lane & 2;
    TW_UNROLL
    for (int group = 0; group < (kColumns + 31) / 32; ++group) {
        TW_UNROLL
        for (int r = 0; r < 2; ++r) {
            u32 w[4];
            TW_UNROLL
            for (int j = 0; j < 4; ++j) w[j] = word_of(2 * (4 * group + j) + r);
            // 4 x 4 transposition: lane t of the quad gets the four words of the t-th group of 8
            // columns.
            u32 x = __shfl_xor_sync(~0u, upper ? w[0] : w[2], 2);
            u32 y = __shfl_xor_sync(~0u, upper ? w[1] : w[3], 2);
            const u32 a = upper ? x : w[0], b = upper ? y : w[1];
            const u32 c = upper ? w[2] : x, d = upper ? w[3] : y;
            x = __shfl_xor_sync(~0u, odd ? a : b, 1);
            y = __shfl_xor_sync(~0u, odd ? c : d, 1);
            const uint4 words = odd ? make_uint4(x, b, y, d) : make_uint4(a, x, c, y);
            const int first_column = group * 32 + quad_lane * 8;
            if (8 * r < rows && first_column < kColumns) {
                *reinterpret_cast<uint4*>(target + r * further + first_column) = words;
            }
        }
    }
}

/// The same for an accumulator, multiplied by `factor` for each of the two rows.
template <int kColumns, typename Element, int kCount>
TW_DEVICE void store_rows(Element, const float (&accumulator)[kCount], const float (&factor)[2],
                          u16* target, i64 further, int rows) {
    store_words<kColumns>(
        [&](int word) {
            const int i = 2 * word;
            return i < kCount ? ptx::pack(Element{}, accumulator[i] * factor[word % 2],
                                          accumulator[i + 1] * factor[word % 2])
                              : 0;
        },
        target, further, rows);
}

/// The same as f32, 8 bytes a lane.
template <int kColumns, int kCount>
TW_DEVICE void store_floats(const float (&accumulator)[kCount], const float (&factor)[2],
                            float* target, i64 further, int rows) {
    const int first_column = ptx::lane_index() % 4 * 2;
    TW_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
        TW_UNROLL
        for (int r = 0; r < 2; ++r) {
            if (8 * r >= rows) continue;
            const int i = 4 * j + 2 * r;
            *reinterpret_cast<float2*>(target + r * further + 8 * j + first_column) =
                make_float2(accumulator[i] * factor[r], accumulator[i + 1] * factor[r]);
        }
    }
}

}  // namespace twd::attn
