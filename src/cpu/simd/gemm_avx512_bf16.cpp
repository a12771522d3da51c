// Matrix products of bf16 pairs with vdpbf16ps. Compiled with AVX512-BF16 enabled, so nothing here
// may be shared with other translation units: no inline functions of the library or of ours.
#include <immintrin.h>

#include "cpu/simd/dot_products.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
// Pairs of k per pass where B is larger than half of L1.
constexpr std::int64_t kDepth = 64;
constexpr std::int64_t kCacheBytes = 40 * 1024;

struct Panel {
    const std::uint32_t* a;
    std::int64_t a_row, a_col;
    const std::uint32_t* b;
    std::int64_t ldb;
    float* c;
    std::int64_t ldc;
    std::int64_t m, k;
    bool accumulate, prefetch_c;
    const float* row_scale;   // from row 0 on, or null
    const float* lane_scale;  // from the panel's first lane on, or null
    float* maxima;            // the same
    __mmask16 tail;           // lanes of a partial panel
};

// Rows of the register block by vectors of the panel: accumulators, the vectors of B and one
// broadcast fit 32 registers.
constexpr int block_rows(int vectors) {
    constexpr int kRows[] = {0, 12, 12, 8, 6};
    return kRows[vectors];
}

// g++ otherwise reads a vector of B from memory again for every row.
inline __m512i kept_in_register(__m512i v) {
#if !defined(__clang__)
    asm("" : "+v"(v));
#endif
    return v;
}

// `maxima` is also the maximum of the rows of C, for one vector of lanes; NaN propagates.
template <int kRows, int kVectors>
inline void add_to_maxima(float* maxima, __mmask16 lanes, const __m512 (&c)[kRows][kVectors],
                          int v) {
    __m512 high = _mm512_maskz_loadu_ps(lanes, maxima);
    __mmask16 is_nan = 0;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        // `high` where one of both is NaN. The form without a mask warns, as that of scalef does.
        high = _mm512_maskz_max_ps(0xffff, c[r][v], high);
        if (r % 2 == 0) {
            const __m512 next = c[r + 1 < kRows ? r + 1 : r][v];
            is_nan |= _mm512_cmp_ps_mask(c[r][v], next, _CMP_UNORD_Q);
        }
    }
    high = _mm512_mask_mov_ps(high, is_nan, _mm512_set1_ps(__builtin_nanf("")));
    _mm512_mask_storeu_ps(maxima, lanes, high);
}

template <int kRows, int kVectors, bool kPartial>
void block(const Panel& p, std::int64_t row) {
    __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    if (p.prefetch_c) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVectors; ++v) {
                __builtin_prefetch(p.c + (row + r) * p.ldc + v * kLanes, 1);
            }
        }
    }
    const std::uint32_t* a = p.a + row * p.a_row;
    const std::uint32_t* b = p.b;
    for (std::int64_t k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
        __m512i rhs[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            rhs[v] =
                kPartial ? _mm512_maskz_loadu_epi32(p.tail, b) : _mm512_loadu_si512(b + v * kLanes);
            rhs[v] = kept_in_register(rhs[v]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            __m512i lhs = _mm512_set1_epi32(static_cast<int>(a[r * p.a_row]));
            if constexpr (kVectors > 1) lhs = kept_in_register(lhs);
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) {
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)lhs, (__m512bh)rhs[v]);
            }
        }
    }
    const __mmask16 mask = kPartial ? p.tail : static_cast<__mmask16>(0xffff);
    // FMAs would take steps from the products of the next block, additions do not.
    const bool scales = p.row_scale != nullptr || p.lane_scale != nullptr;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
        const __m512 lane_scale = p.lane_scale
                                      ? _mm512_maskz_loadu_ps(mask, p.lane_scale + v * kLanes)
                                      : _mm512_set1_ps(1);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            float* c = p.c + (row + r) * p.ldc + v * kLanes;
            __m512 x = sum[r][v];
            if (p.accumulate && scales) {
                const __m512 scale =
                    p.row_scale ? _mm512_set1_ps(p.row_scale[row + r]) : lane_scale;
                x = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, c), scale, x);
            } else if (p.accumulate) {
                x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
            }
            _mm512_mask_storeu_ps(c, mask, x);
            sum[r][v] = x;
        }
        if (p.maxima) add_to_maxima<kRows, kVectors>(p.maxima + v * kLanes, mask, sum, v);
    }
}

template <int kRows, int kVectors, bool kPartial>
void all_rows(const Panel& p, std::int64_t row) {
    for (; row + kRows <= p.m; row += kRows) block<kRows, kVectors, kPartial>(p, row);
    if constexpr (kRows > 1) {
        if (row < p.m) all_rows<kRows - 1, kVectors, kPartial>(p, row);
    }
}

}  // namespace

void avx512_gemm_bf16_pairs(const GemmArgs& g) {
    const bool fits = g.k * g.ldb * 4 <= kCacheBytes;
    const std::int64_t depth = fits ? (g.k > 0 ? g.k : 1) : kDepth;
    Panel p{};
    p.a_row = g.a_row;
    p.a_col = g.a_col;
    p.ldb = g.ldb;
    p.ldc = g.ldc;
    p.m = g.m;
    // k == 0 still writes C: one pass without steps.
    for (std::int64_t k = 0; k < g.k || k == 0; k += depth) {
        p.k = g.k - k < depth ? g.k - k : depth;
        p.a = static_cast<const std::uint32_t*>(g.a) + k * g.a_col;
        p.accumulate = g.accumulate || k > 0;
        p.prefetch_c = g.prefetch_c && k == 0;
        p.row_scale = k == 0 ? static_cast<const float*>(g.row_scale) : nullptr;
        const float* lane_scale = k == 0 ? static_cast<const float*>(g.lane_scale) : nullptr;
        for (std::int64_t n = 0; n < g.n;) {
            const std::int64_t left = (g.n - n) / kLanes;
            p.b = static_cast<const std::uint32_t*>(g.b) + k * g.ldb + n;
            p.c = static_cast<float*>(g.c) + n;
            p.lane_scale = lane_scale ? lane_scale + n : nullptr;
            p.maxima = g.maxima && k + depth >= g.k ? g.maxima + n : nullptr;
            if (left >= 4) {
                all_rows<block_rows(4), 4, false>(p, 0);
                n += 4 * kLanes;
            } else if (left == 3) {
                all_rows<block_rows(3), 3, false>(p, 0);
                n += 3 * kLanes;
            } else if (left == 2) {
                all_rows<block_rows(2), 2, false>(p, 0);
                n += 2 * kLanes;
            } else if (left == 1) {
                all_rows<block_rows(1), 1, false>(p, 0);
                n += kLanes;
            } else {
                p.tail = static_cast<__mmask16>((1u << (g.n - n)) - 1);
                all_rows<block_rows(1), 1, true>(p, 0);
                n = g.n;
            }
        }
    }
}

void avx512_scale(const GemmArgs& g) {
    const auto* rows = static_cast<const float*>(g.row_scale);
    const auto* lanes = static_cast<const float*>(g.lane_scale);
    for (std::int64_t m = 0; m < g.m; ++m) {
        float* c = static_cast<float*>(g.c) + m * g.ldc;
        for (std::int64_t n = 0; n < g.n; n += kLanes) {
            const std::int64_t left = g.n - n;
            const auto mask = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xffff);
            const __m512 scale =
                rows ? _mm512_set1_ps(rows[m]) : _mm512_maskz_loadu_ps(mask, lanes + n);
            _mm512_mask_storeu_ps(c + n, mask,
                                  _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, c + n), scale));
        }
    }
}

}  // namespace tilewright::cpu
