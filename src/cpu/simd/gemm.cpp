// Register-blocked matrix products of f32 and f64: lanes of B and C are contiguous, A is broadcast.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/gemm.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// What B may take of L1, in bytes. A block of B that fits is read where it lies. A larger one is
// cut in k when few rows use it, so that its lines come to L1 once and in order; with many rows its
// panels are copied, since rows a power of two apart fall on the same few sets of the cache.
constexpr std::int64_t kCacheBytes = HWY_TARGET == HWY_AVX2 ? 24 * 1024 : 40 * 1024;
constexpr std::int64_t kRowsWorthCopying = 32;
constexpr std::int64_t kCopiedDepth = 128;

// Rows of the register block for a panel of so many vectors: rows * vectors accumulators (at least
// 8, to hide the latency of the FMA), the vectors of B and one broadcast fit the registers.
constexpr int block_rows(int vectors) {
#if HWY_TARGET == HWY_AVX2
    constexpr int kRows[] = {0, 8, 6, 4};
    return vectors <= 3 ? kRows[vectors] : 1;
#else
    constexpr int kRows[] = {0, 12, 12, 8, 6};
    return vectors <= 4 ? kRows[vectors] : 2;
#endif
}
// Vectors of the widest panel of the general case.
constexpr int kWidest = HWY_TARGET == HWY_AVX2 ? 3 : 4;

// One panel: all rows of A times up to `kVectors` vectors of B, over one block of k.
template <typename T>
struct Panel {
    const T* a;
    std::int64_t a_row, a_col;
    const T* b;
    std::int64_t ldb;
    T* c;
    std::int64_t ldc;
    std::int64_t m, k;
    bool accumulate;
    std::size_t tail;  // lanes of a partial panel
};

// g++ otherwise folds the load of a vector of B into each of its uses: one load per FMA.
template <class V>
HWY_INLINE V kept_in_register(V v) {
#if defined(__GNUC__) && !defined(__clang__) && HWY_ARCH_X86
    asm("" : "+v"(v.raw));
#endif
    return v;
}

// The register block: C (kRows x kVectors vectors) from zero, then added to memory, so that the
// rounding errors of a long k grow with its blocks only.
template <int kRows, int kVectors, bool kPartial, typename T>
HWY_INLINE void block(const Panel<T>& p, std::int64_t row) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    V sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    }
    const T* HWY_RESTRICT a = p.a + row * p.a_row;
    const T* HWY_RESTRICT b = p.b;
    for (std::int64_t k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
        V rhs[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            rhs[v] = kPartial ? load_first(d, b, p.tail) : hn::LoadU(d, b + v * kLanes);
            if constexpr (kRows > 1) rhs[v] = kept_in_register(rhs[v]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            V lhs = hn::Set(d, a[r * p.a_row]);
            if constexpr (kVectors > 1) lhs = kept_in_register(lhs);
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(lhs, rhs[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            T* c = p.c + (row + r) * p.ldc + v * kLanes;
            if constexpr (kPartial) {
                const V old = p.accumulate ? load_first(d, c, p.tail) : hn::Zero(d);
                store_first(hn::Add(old, sum[r][v]), d, c, p.tail);
            } else {
                const V old = p.accumulate ? hn::LoadU(d, c) : hn::Zero(d);
                hn::StoreU(hn::Add(old, sum[r][v]), d, c);
            }
        }
    }
}

// Rows from `row` on in blocks of kRows, the remainder in smaller ones.
template <int kRows, int kVectors, bool kPartial, typename T>
void all_rows(const Panel<T>& p, std::int64_t row = 0) {
    for (; row + kRows <= p.m; row += kRows) block<kRows, kVectors, kPartial>(p, row);
    if constexpr (kRows > 1) {
        if (row < p.m) all_rows<kRows - 1, kVectors, kPartial>(p, row);
    }
}

// The panel's rows of B one behind the other.
template <typename T>
void copy_panel(const T* b, std::int64_t ldb, std::int64_t k, std::int64_t width, T* copy) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    for (std::int64_t i = 0; i < k; ++i, b += ldb, copy += width) {
        if (width < kLanes) {
            std::copy_n(b, width, copy);
            continue;
        }
        for (std::int64_t n = 0; n < width; n += kLanes)
            hn::StoreU(hn::LoadU(d, b + n), d, copy + n);
    }
}

// Vectors of the next panel when `left` vectors are left.
int next_panel(std::int64_t left, std::int64_t rows) {
    if (rows <= block_rows(8) && left >= 8) return 8;  // few rows: width gives the parallelism
    if (left >= kWidest) return left == kWidest + 1 ? (kWidest + 1) / 2 : kWidest;
    return static_cast<int>(left);
}

// Calls all_rows for a panel of `vectors` vectors (0: the partial one).
template <typename T>
void run_panel(const Panel<T>& p, int vectors) {
    switch (vectors) {
        case 0:
            return all_rows<block_rows(1), 1, true>(p);
        case 1:
            return all_rows<block_rows(1), 1, false>(p);
        case 2:
            return all_rows<block_rows(2), 2, false>(p);
        case 3:
            return all_rows<block_rows(3), 3, false>(p);
#if HWY_TARGET != HWY_AVX2
        case 4:
            return all_rows<block_rows(4), 4, false>(p);
#endif
        default:
            return all_rows<block_rows(8), 8, false>(p);
    }
}

template <typename T>
void gemm(const GemmArgs& g) {
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    HWY_ALIGN T copy[kCopiedDepth * kWidest * kLanes];
    const bool fits = g.k * g.ldb * kSize <= kCacheBytes;
    const bool copied = !fits && g.m >= kRowsWorthCopying;
    const std::int64_t depth =
        fits ? std::max<std::int64_t>(g.k, 1)
             : (copied ? kCopiedDepth
                       : std::clamp<std::int64_t>(kCacheBytes / (g.n * kSize), 16, 128));
    Panel<T> p{};
    p.a_row = g.a_row;
    p.a_col = g.a_col;
    p.ldc = g.ldc;
    p.m = g.m;
    // k == 0 still writes C: one pass of no steps.
    for (std::int64_t k = 0; k < g.k || k == 0; k += depth) {
        p.k = std::min(depth, g.k - k);
        p.a = static_cast<const T*>(g.a) + k * g.a_col;
        p.accumulate = g.accumulate || k > 0;
        for (std::int64_t n = 0; n < g.n;) {
            const int vectors = next_panel((g.n - n) / kLanes, g.m);
            const std::int64_t width = vectors == 0 ? g.n - n : vectors * kLanes;
            p.b = static_cast<const T*>(g.b) + k * g.ldb + n;
            p.ldb = g.ldb;
            p.c = static_cast<T*>(g.c) + n;
            p.tail = static_cast<std::size_t>(width);
            if (copied) {
                copy_panel(p.b, g.ldb, p.k, width, copy);
                p.b = copy;
                p.ldb = width;
            }
            run_panel(p, vectors);
            n += width;
        }
    }
}

}  // namespace

GemmFunction gemm_f32() {
    return gemm<float>;
}
GemmFunction gemm_f64() {
    return gemm<double>;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

GemmFunction vector_gemm_f32(Target target){TW_RETURN_FROM_TARGET(target, gemm_f32())} GemmFunction
    vector_gemm_f64(Target target) {
    TW_RETURN_FROM_TARGET(target, gemm_f64())
}

}  // namespace tilewright::cpu
#endif
