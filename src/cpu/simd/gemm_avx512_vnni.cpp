// Matrix products of quads of 8-bit integers with vpdpbusd. Compiled with AVX512-VNNI enabled, so
// nothing here may be shared with other translation units: no inline functions of the library or of
// ours.
#include <immintrin.h>

#include "cpu/simd/dot_products.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
// Quads of k per pass where B is larger than half of L1.
constexpr std::int64_t kDepth = 64;
constexpr std::int64_t kCacheBytes = 40 * 1024;

struct Panel {
    const std::uint32_t* a;
    std::int64_t a_row, a_col;
    const std::uint32_t* b;
    std::int64_t ldb;
    std::int32_t* c;
    std::int64_t ldc;
    std::int64_t m, k;
    bool accumulate;
    __mmask16 tail;  // lanes of a partial panel
};

// Rows of the register block by vectors of the panel: accumulators, the vectors of B, one broadcast
// and a constant fit 32 registers.
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

// vpdpbusd multiplies unsigned bytes by signed ones. Operands of the same kind are made different
// by flipping the highest bit of A, which adds or subtracts 128; each column of C is then off by
// 128 times the sum of B's column, and its sums start from a correction of that.
template <bool kSignedA, bool kSignedB>
struct Product {
    static constexpr bool kFlips = kSignedA == kSignedB;

    static __m512i multiply_add(__m512i sum, __m512i a, __m512i b) {
        if constexpr (kSignedB) {
            return _mm512_dpbusd_epi32(sum, a, b);
        } else {
            return _mm512_dpbusd_epi32(sum, b, a);
        }
    }
    static __m512i highest_bits() { return _mm512_set1_epi32(static_cast<int>(0x80808080u)); }
};

template <int kVectors, bool kPartial>
inline void load_b(const Panel& p, const std::uint32_t* b, __m512i (&rhs)[kVectors]) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
        rhs[v] =
            kPartial ? _mm512_maskz_loadu_epi32(p.tail, b) : _mm512_loadu_si512(b + v * kLanes);
        rhs[v] = kept_in_register(rhs[v]);
    }
}

// The initial sums of each column of a panel.
template <class P, int kVectors, bool kPartial>
void start(const Panel& p, __m512i (&from)[kVectors]) {
    __m512i sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = _mm512_setzero_si512();
    if constexpr (P::kFlips) {
        const std::uint32_t* b = p.b;
        for (std::int64_t k = 0; k < p.k; ++k, b += p.ldb) {
            __m512i rhs[kVectors];
            load_b<kVectors, kPartial>(p, b, rhs);
            for (int v = 0; v < kVectors; ++v) {
                sum[v] = P::multiply_add(sum[v], P::highest_bits(), rhs[v]);
            }
        }
    }
    for (int v = 0; v < kVectors; ++v) from[v] = _mm512_sub_epi32(_mm512_setzero_si512(), sum[v]);
}

template <class P, int kRows, int kVectors, bool kPartial>
void block(const Panel& p, std::int64_t row, const __m512i (&from)[kVectors]) {
    __m512i sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = from[v];
    }
    const std::uint32_t* a = p.a + row * p.a_row;
    const std::uint32_t* b = p.b;
    for (std::int64_t k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
        __m512i rhs[kVectors];
        load_b<kVectors, kPartial>(p, b, rhs);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            __m512i lhs = _mm512_set1_epi32(static_cast<int>(a[r * p.a_row]));
            if constexpr (P::kFlips) lhs = _mm512_xor_si512(lhs, P::highest_bits());
            if constexpr (kVectors > 1) lhs = kept_in_register(lhs);
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) {
                sum[r][v] = P::multiply_add(sum[r][v], lhs, rhs[v]);
            }
        }
    }
    const __mmask16 mask = kPartial ? p.tail : static_cast<__mmask16>(0xffff);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            std::int32_t* c = p.c + (row + r) * p.ldc + v * kLanes;
            __m512i x = sum[r][v];
            if (p.accumulate) x = _mm512_add_epi32(_mm512_maskz_loadu_epi32(mask, c), x);
            _mm512_mask_storeu_epi32(c, mask, x);
        }
    }
}

template <class P, int kRows, int kVectors, bool kPartial>
void all_rows(const Panel& p, std::int64_t row, const __m512i (&from)[kVectors]) {
    for (; row + kRows <= p.m; row += kRows) block<P, kRows, kVectors, kPartial>(p, row, from);
    if constexpr (kRows > 1) {
        if (row < p.m) all_rows<P, kRows - 1, kVectors, kPartial>(p, row, from);
    }
}

template <class P, int kVectors, bool kPartial = false>
void panel(const Panel& p) {
    __m512i from[kVectors];
    start<P, kVectors, kPartial>(p, from);
    all_rows<P, block_rows(kVectors), kVectors, kPartial>(p, 0, from);
}

template <bool kSignedA, bool kSignedB>
void gemm(const GemmArgs& g) {
    using P = Product<kSignedA, kSignedB>;
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
        for (std::int64_t n = 0; n < g.n;) {
            const std::int64_t left = (g.n - n) / kLanes;
            p.b = static_cast<const std::uint32_t*>(g.b) + k * g.ldb + n;
            p.c = static_cast<std::int32_t*>(g.c) + n;
            if (left >= 4) {
                panel<P, 4>(p);
                n += 4 * kLanes;
            } else if (left == 3) {
                panel<P, 3>(p);
                n += 3 * kLanes;
            } else if (left == 2) {
                panel<P, 2>(p);
                n += 2 * kLanes;
            } else if (left == 1) {
                panel<P, 1>(p);
                n += kLanes;
            } else {
                p.tail = static_cast<__mmask16>((1u << (g.n - n)) - 1);
                panel<P, 1, true>(p);
                n = g.n;
            }
        }
    }
}

}  // namespace

GemmFunction avx512_gemm_i8_quads(bool a_signed, bool b_signed) {
    if (a_signed) return b_signed ? gemm<true, true> : gemm<true, false>;
    return b_signed ? gemm<false, true> : gemm<false, false>;
}

}  // namespace tilewright::cpu
