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

// Steps [first, last) of k.
struct Steps {
    std::int64_t first, last;
};

// Which words hold an element other than 0 or -0.
inline __mmask16 nonzero(__mmask16 lanes, const std::uint32_t* words) {
    return _mm512_mask_test_epi32_mask(lanes, _mm512_maskz_loadu_epi32(lanes, words),
                                       _mm512_set1_epi32(0x7fff7fff));
}

inline __mmask16 first_lanes(std::int64_t lanes) {
    return static_cast<__mmask16>(lanes >= kLanes ? 0xffff : (1u << lanes) - 1);
}

// The rows [row, end) of A are 0 outside of these steps, where its rows or its columns lie side by
// side. It costs a few loads where A begins and ends with other elements.
Steps steps_with_products(const GemmArgs& g, std::int64_t row, std::int64_t end) {
    const auto* const a = static_cast<const std::uint32_t*>(g.a);
    const auto at = [&](std::int64_t r, std::int64_t k) {
        return (a[r * g.a_row + k * g.a_col] & 0x7fff7fffu) != 0;
    };
    Steps steps{0, g.k};
    const bool from_first = at(row, 0) || at(end - 1, 0),
               to_last = at(row, g.k - 1) || at(end - 1, g.k - 1);
    if ((from_first && to_last) || (g.a_row != 1 && g.a_col != 1)) return steps;
    if (g.a_row == 1) {
        const auto any = [&](std::int64_t k) {
            for (std::int64_t r = row; r < end; r += kLanes) {
                if (nonzero(first_lanes(end - r), a + r + k * g.a_col) != 0) return true;
            }
            return false;
        };
        while (steps.last > 0 && !any(steps.last - 1)) --steps.last;
        while (steps.first < steps.last && !any(steps.first)) ++steps.first;
        return steps;
    }
    steps = {g.k, 0};
    for (std::int64_t r = row; r < end; ++r) {
        const std::uint32_t* const words = a + r * g.a_row;
        for (std::int64_t k = g.k; k > steps.last;) {
            const std::int64_t begin = k - steps.last > kLanes ? k - kLanes : steps.last;
            const unsigned found = nonzero(first_lanes(k - begin), words + begin);
            if (found != 0) steps.last = begin + 32 - __builtin_clz(found);
            k = begin;
        }
        for (std::int64_t k = 0; k < steps.first;) {
            const std::int64_t lanes = steps.first - k < kLanes ? steps.first - k : kLanes;
            const unsigned found = nonzero(first_lanes(lanes), words + k);
            if (found != 0) steps.first = k + __builtin_ctz(found);
            k += lanes;
        }
    }
    return steps.first < steps.last ? steps : Steps{0, 0};
}

// True if no element of B is infinite or NaN in these steps and `lanes` lanes.
bool is_finite(const std::uint32_t* b, std::int64_t ldb, Steps steps, std::int64_t lanes) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (std::int64_t k = steps.first; k < steps.last; ++k) {
        for (std::int64_t l = 0; l < lanes; l += kLanes) {
            const __m512i words = _mm512_maskz_loadu_epi32(first_lanes(lanes - l), b + k * ldb + l);
            found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, exponent), exponent);
        }
    }
    return found == 0;
}

// Groups of rows of A, each with the steps in which it is not 0. A mask leaves triangles of zeros
// in the probabilities of attention, and products with them are left out where B is finite: they
// are zeros, which change no sum.
class RowGroups {
  public:
    static constexpr std::int64_t kRows = 24;  // a multiple of most register blocks

    explicit RowGroups(const GemmArgs& g) {
        constexpr std::int64_t kLeastSteps = 16;
        if (g.k < kLeastSteps || g.m > kMost * kRows || has_corners(g)) return;
        Steps before{0, 0}, after{g.k, g.k};  // of k, in which some group is 0
        for (std::int64_t row = 0; row < g.m; row += kRows) {
            const std::int64_t end = row + kRows < g.m ? row + kRows : g.m;
            const Steps steps = steps_with_products(g, row, end);
            steps_[row / kRows] = steps;
            if (steps.first > before.last) before.last = steps.first;
            if (steps.last < after.first) after.first = steps.last;
        }
        // Groups of zeros alone have no steps at all.
        if (before.last == 0 && after.first == g.k) return;
        before_ = before;
        after_ = after;
        any_ = true;
    }

    // May products be left out in these lanes of B?
    bool leaves_out(const GemmArgs& g, std::int64_t lane, std::int64_t lanes) const {
        if (!any_) return false;
        const auto* const b = static_cast<const std::uint32_t*>(g.b) + lane;
        return is_finite(b, g.ldb, before_, lanes) && is_finite(b, g.ldb, after_, lanes);
    }
    // Those of the group with this row, among those of a pass.
    Steps steps(std::int64_t row, Steps pass) const {
        const Steps& own = steps_[row / kRows];
        const std::int64_t first = own.first > pass.first ? own.first : pass.first;
        const std::int64_t last = own.last < pass.last ? own.last : pass.last;
        return {first, last > first ? last : first};
    }

  private:
    static constexpr std::int64_t kMost = 32;

    // False where A may have triangles or rectangles of zeros along its edges.
    static bool has_corners(const GemmArgs& g) {
        const auto* const a = static_cast<const std::uint32_t*>(g.a);
        const std::int64_t row = (g.m - 1) * g.a_row, step = (g.k - 1) * g.a_col;
        const auto is = [&](std::int64_t at) { return (a[at] & 0x7fff7fffu) != 0; };
        return is(0) && is(row) && is(step) && is(row + step);
    }

    Steps steps_[kMost];
    Steps before_{0, 0}, after_{0, 0};
    bool any_ = false;
};

// All rows of a panel for the steps of a pass, from pass.first on; `groups` may be null.
template <int kVectors, bool kPartial>
void panel(const Panel& p, const RowGroups* groups, Steps pass) {
    constexpr int kRows = block_rows(kVectors);
    if (groups == nullptr) return all_rows<kRows, kVectors, kPartial>(p, 0);
    for (std::int64_t row = 0; row < p.m; row += RowGroups::kRows) {
        const Steps steps = groups->steps(row, pass);
        Panel part = p;
        part.m = row + RowGroups::kRows < p.m ? row + RowGroups::kRows : p.m;
        part.k = steps.last - steps.first;
        part.a += (steps.first - pass.first) * p.a_col;
        part.b += (steps.first - pass.first) * p.ldb;
        all_rows<kRows, kVectors, kPartial>(part, row);
    }
}

}  // namespace

void avx512_gemm_bf16_pairs(const GemmArgs& g) {
    const RowGroups groups(g);
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
            const std::int64_t lanes = left >= 4 ? 4 * kLanes : left >= 1 ? left * kLanes : g.n - n;
            const RowGroups* const parts = groups.leaves_out(g, n, lanes) ? &groups : nullptr;
            const Steps pass{k, k + p.k};
            if (left >= 4) {
                panel<4, false>(p, parts, pass);
            } else if (left == 3) {
                panel<3, false>(p, parts, pass);
            } else if (left == 2) {
                panel<2, false>(p, parts, pass);
            } else if (left == 1) {
                panel<1, false>(p, parts, pass);
            } else {
                p.tail = first_lanes(lanes);
                panel<1, true>(p, parts, pass);
            }
            n += lanes;
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
