// Register-blocked matrix products of f32, f64, i32, i64 and pairs of i16: lanes of B and C are
// contiguous, A is broadcast.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/gemm.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <type_traits>

#include "cpu/simd/gemm_avx2-inl.h"
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_lanes-inl.h"
#include "cpu/simd/vector_ops-inl.h"
#include "hwy/highway.h"
#include "support/integer.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The bytes of L1 for B. A block of B that fits is read in place. A larger one is cut in k when few
// rows use it, so that its lines come to L1 once and in order; with many rows its panels are copied
// if its rows are so far apart that they map to the same few sets of the cache.
constexpr std::int64_t kCacheBytes = HWY_TARGET == HWY_AVX2 ? 24 * 1024 : 40 * 1024;
// Where A's rows are contiguous they may come from slow memory: all of B, up to this size, then
// stays in L1, and a few rows of A use all its panels before the next ones are loaded.
constexpr std::int64_t kNearBytes = HWY_TARGET == HWY_AVX2 ? 24 * 1024 : 40 * 1024;
constexpr std::int64_t kFarRowBytes = 256;
constexpr std::int64_t kRowsWorthCopying = 32;
constexpr std::int64_t kCopiedDepth = HWY_TARGET == HWY_AVX2 ? 64 : 128;
constexpr std::int64_t kLeastDepth = 64;

// Rows of the register block for a panel of `vectors` vectors: rows * vectors accumulators (at
// least 8, to hide the latency of the FMA), the vectors of B and one broadcast fit the registers.
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

// Prefetches the next A, which is stored by columns, into L2: a few lines with each block of this
// product. A column touches many lines at once, which hardware does not predict.
class NextLines {
  public:
    NextLines(const GemmArgs& g, std::int64_t element, std::int64_t blocks)
        : at_(static_cast<const char*>(g.next_a)) {
        if (at_ == nullptr) return;
        row_bytes_ = g.a_col * element;
        lines_ = ceil_div(g.m * element, kLine);
        left_ = lines_ * g.k;
        each_ = ceil_div(left_, std::max<std::int64_t>(blocks, 1));
    }
    HWY_INLINE void fetch() {
        for (std::int64_t i = std::min(each_, left_); i > 0; --i, --left_) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
            __builtin_prefetch(at_ + column_ * kLine, 0, 2);
#endif
            if (++column_ == lines_) {
                column_ = 0;
                at_ += row_bytes_;
            }
        }
    }

  private:
    static constexpr std::int64_t kLine = 64;
    const char* at_;
    std::int64_t row_bytes_ = 0, lines_ = 0, column_ = 0;
    std::int64_t left_ = 0, each_ = 0;
};

// The element types of A, B and C, and how one step of k adds to a sum.
template <typename T>
struct Plain {
    using Element = T;
    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V multiply_add(D, V a, V b, V c) {
        if constexpr (std::is_floating_point_v<T>) {
            return hn::MulAdd(a, b, c);
        } else {
            return hn::Add(Mul()(D(), a, b), c);
        }
    }
};
#if HWY_ARCH_X86
// Words of A and B are pairs of i16, neighbours in k.
struct I16Pairs {
    using Element = std::int32_t;
    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V multiply_add(D d, V a, V b, V c) {
        const hn::Repartition<std::int16_t, D> d16;
        V unused = hn::Zero(d);
        return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), hn::BitCast(d16, b), c,
                                             unused);
    }
};
#endif

// Factors that C is multiplied by before a product is added: of rows, of lanes, or none.
template <typename T>
struct Scale {
    const T* rows = nullptr;
    const T* lanes = nullptr;

    // The factors for C from (row, lane) on.
    HWY_INLINE Scale from(std::int64_t row, std::int64_t lane) const {
        return {rows ? rows + row : nullptr, lanes ? lanes + lane : nullptr};
    }
};

// The scale of the first steps of k; later steps add to the result of these.
template <typename T>
Scale<T> scale_at(const GemmArgs& g, std::int64_t k) {
    if (k > 0) return {};
    return {static_cast<const T*>(g.row_scale), static_cast<const T*>(g.lane_scale)};
}

// One panel: all rows of A times up to `kVectors` vectors of B, over one block of k.
template <class Product>
struct Panel {
    using T = typename Product::Element;
    const T* a;
    std::int64_t a_row, a_col;
    const T* b;
    std::int64_t ldb;
    T* c;
    std::int64_t ldc;
    std::int64_t m, k;
    bool accumulate;
    Scale<T> scale;    // of the panel's part of C
    std::size_t tail;  // lanes of a partial panel
    NextLines* next;
    bool prefetch_c = false;  // see GemmArgs
};

// g++ otherwise folds the load of a vector of B into each of its uses: one load per FMA.
template <class V>
HWY_INLINE V kept_in_register(V v) {
#if defined(__GNUC__) && !defined(__clang__) && HWY_ARCH_X86
    asm("" : "+v"(v.raw));
#endif
    return v;
}

// The register block: C (kRows x kVectors vectors) is summed from zero, then added to memory, so
// that the rounding errors of a long k grow only with its number of blocks.
template <int kRows, int kVectors, bool kPartial, class Product>
HWY_INLINE void block(const Panel<Product>& p, std::int64_t row) {
    using T = typename Product::Element;
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    V sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    }
    if (p.prefetch_c) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVectors; ++v) {
                __builtin_prefetch(p.c + (row + r) * p.ldc + v * kLanes, 1);
            }
        }
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
            for (int v = 0; v < kVectors; ++v) {
                sum[r][v] = Product::multiply_add(d, lhs, rhs[v], sum[r][v]);
            }
        }
    }
    const auto load = [&](const T* x) HWY_ATTR {
        return kPartial ? load_first(d, x, p.tail) : hn::LoadU(d, x);
    };
    // FMAs would take steps from the products of the next block, additions do not.
    const bool scales = p.scale.rows != nullptr || p.scale.lanes != nullptr;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
        const V lane_scale = p.scale.lanes ? load(p.scale.lanes + v * kLanes) : hn::Set(d, T{1});
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            T* c = p.c + (row + r) * p.ldc + v * kLanes;
            V x = sum[r][v];
            if (p.accumulate && scales) {
                const V scale = p.scale.rows ? hn::Set(d, p.scale.rows[row + r]) : lane_scale;
                x = Plain<T>::multiply_add(d, load(c), scale, x);
            } else if (p.accumulate) {
                x = hn::Add(load(c), x);
            }
            if constexpr (kPartial) {
                store_first(x, d, c, p.tail);
            } else {
                hn::StoreU(x, d, c);
            }
        }
    }
}

// Rows from `row` on in blocks of kRows, the remainder in smaller ones.
template <int kRows, int kVectors, bool kPartial, class Product>
void all_rows(const Panel<Product>& p, std::int64_t row = 0) {
    for (; row + kRows <= p.m; row += kRows) {
        p.next->fetch();
        block<kRows, kVectors, kPartial>(p, row);
    }
    if constexpr (kRows > 1) {
        if (row < p.m) all_rows<kRows - 1, kVectors, kPartial>(p, row);
    }
}

// Copies the panel's rows of B so that they are contiguous.
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

// The number of vectors of the next panel when `left` vectors are left.
int next_panel(std::int64_t left, std::int64_t rows) {
    if (rows <= block_rows(8) && left >= 8) return 8;  // few rows: parallelism from the width
    if (left >= kWidest) return left == kWidest + 1 ? (kWidest + 1) / 2 : kWidest;
    return static_cast<int>(left);
}

// Calls all_rows for a panel of `vectors` vectors (0: the partial one).
template <class Product>
void run_panel(const Panel<Product>& p, int vectors) {
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

// All panels of B for each block of rows. Returns the rows done: the rest do not fill a block.
template <class Product>
std::int64_t whole_row_blocks(Panel<Product> p, std::int64_t n) {
    using T = typename Product::Element;
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    constexpr int kRows = block_rows(kWidest);
    const T* b = p.b;
    const Scale<T> scale = p.scale;
    T* c = p.c;
    std::int64_t row = 0;
    for (; row + kRows <= p.m; row += kRows) {
        for (std::int64_t lane = 0; lane < n;) {
            const int vectors = next_panel((n - lane) / kLanes, p.m);
            p.b = b + lane;
            p.c = c + lane;
            p.scale = scale.from(0, lane);
            p.tail = static_cast<std::size_t>(n - lane);
            p.next->fetch();
            switch (vectors) {
                case 0:
                    block<kRows, 1, true>(p, row);
                    break;
                case 1:
                    block<kRows, 1, false>(p, row);
                    break;
                case 2:
                    block<kRows, 2, false>(p, row);
                    break;
                case 3:
                    block<kRows, 3, false>(p, row);
                    break;
                default:
                    block<kRows, kWidest, false>(p, row);
                    break;
            }
            lane += vectors == 0 ? n - lane : vectors * kLanes;
        }
    }
    return row;
}

#if HWY_TARGET == HWY_AVX2
constexpr std::int64_t kPackedLanes = 24;
constexpr std::int64_t kRowsWorthPacking = 16;

// 4 rows of A times one packed panel. Not a Panel: its members would be read again after the
// assembly.
template <int kVectors, bool kRowMajor>
HWY_NOINLINE void packed_block(const float* a, std::int64_t a_row, std::int64_t a_col,
                               const float* b, float* c, std::int64_t ldc, std::int64_t k,
                               bool accumulate, Scale<float> scale) {
    const hn::ScalableTag<float> d;
    hn::Vec<decltype(d)> sum[4][3];
    if (k >= 4) {
        four_rows<kVectors, kRowMajor>(a, kRowMajor ? a_row : a_col, b, k / 4, sum);
    } else {
        for (auto& row : sum) std::fill_n(row, 3, hn::Zero(d));
    }
    for (k %= 4; k > 0; --k, a += a_col, b += kVectors * 8) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            const auto lhs = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 3
            for (int v = 0; v < kVectors; ++v) {
                sum[r][v] = hn::MulAdd(lhs, hn::LoadU(d, b + v * 8), sum[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r, c += ldc) {
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
            auto x = sum[r][v];
            if (accumulate) {
                const auto factor = scale.rows    ? hn::Set(d, scale.rows[r])
                                    : scale.lanes ? hn::LoadU(d, scale.lanes + v * 8)
                                                  : hn::Set(d, 1.0F);
                x = hn::MulAdd(hn::LoadU(d, c + v * 8), factor, x);
            }
            hn::StoreU(x, d, c + v * 8);
        }
    }
}

// Packs a panel so that its rows are contiguous.
template <int kVectors>
void pack(const float* b, std::int64_t ldb, std::int64_t steps, float* HWY_RESTRICT packed) {
    const hn::ScalableTag<float> d;
    for (; steps > 0; --steps, b += ldb, packed += kVectors * 8) {
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) hn::StoreU(hn::LoadU(d, b + v * 8), d, packed + v * 8);
    }
}

// All rows of A times panels of B that are packed so that a panel's rows are contiguous: at other
// strides its lines share few sets and banks of L1. Every block of rows uses all panels.
template <bool kRowMajor>
void gemm_packed(const GemmArgs& g) {
    constexpr std::int64_t kMostLanes = 3 * kPackedLanes, kMostSteps = 128;
    HWY_ALIGN float packed[kMostSteps * kMostLanes];
    const std::int64_t depth = ceil_div(ceil_div(g.k, ceil_div(g.k, kMostSteps)), 4) * 4;
    const std::int64_t blocks = g.m / 4;
    NextLines next(g, sizeof(float), ceil_div(g.k, depth) * blocks * ceil_div(g.n, kPackedLanes));
    for (std::int64_t first = 0; first < g.k; first += depth) {
        const std::int64_t steps = std::min(depth, g.k - first);
        const bool accumulate = g.accumulate || first > 0;
        const Scale<float> scale = scale_at<float>(g, first);
        const float* a = static_cast<const float*>(g.a) + first * g.a_col;
        for (std::int64_t n = 0; n < g.n; n += kMostLanes) {
            const float* b = static_cast<const float*>(g.b) + first * g.ldb + n;
            float* c = static_cast<float*>(g.c) + n;
            const std::int64_t lanes = std::min(kMostLanes, g.n - n);
            const std::int64_t threes = lanes / kPackedLanes * kPackedLanes;
            const std::int64_t whole = threes + (lanes - threes) / 16 * 16;
            for (std::int64_t l = 0; l < threes; l += kPackedLanes) {
                pack<3>(b + l, g.ldb, steps, packed + l * steps);
            }
            if (threes < whole) pack<2>(b + threes, g.ldb, steps, packed + threes * steps);
            for (std::int64_t row = 0; row < blocks * 4; row += 4) {
                const float* rows = a + row * g.a_row;
                float* out = c + row * g.ldc;
                const auto panel = [&](auto block, std::int64_t l) HWY_ATTR {
                    next.fetch();
                    block(rows, g.a_row, g.a_col, packed + l * steps, out + l, g.ldc, steps,
                          accumulate, scale.from(row, n + l));
                };
                for (std::int64_t l = 0; l < threes; l += kPackedLanes) {
                    panel(packed_block<3, kRowMajor>, l);
                }
                if (threes < whole) panel(packed_block<2, kRowMajor>, threes);
            }
            // Rows and lanes that do not fill a block.
            const auto rest = [&](std::int64_t row, std::int64_t l, std::int64_t width) HWY_ATTR {
                Panel<Plain<float>> p{a + row * g.a_row,
                                      g.a_row,
                                      g.a_col,
                                      b + l,
                                      g.ldb,
                                      c + row * g.ldc + l,
                                      g.ldc,
                                      g.m - row,
                                      steps,
                                      accumulate,
                                      scale.from(row, n + l),
                                      static_cast<std::size_t>(width),
                                      &next};
                run_panel(p, static_cast<int>(width / 8));
            };
            if (blocks * 4 < g.m) {
                for (std::int64_t l = 0; l < whole; l += kPackedLanes) {
                    rest(blocks * 4, l, std::min(kPackedLanes, whole - l));
                }
            }
            for (std::int64_t l = whole; l < lanes;) {
                const std::int64_t width = lanes - l >= 8 ? 8 : lanes - l;
                rest(0, l, width);
                l += width;
            }
        }
    }
}
#endif

template <class Product>
void gemm(const GemmArgs& g) {
    using T = typename Product::Element;
#if HWY_TARGET == HWY_AVX2
    if constexpr (std::is_same_v<T, float>) {
        if (g.m >= kRowsWorthPacking && g.n >= kPackedLanes && g.k > 0) {
            if (g.a_col == 1) return gemm_packed<true>(g);
            if (g.a_row == 1) return gemm_packed<false>(g);
        }
    }
#endif
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    HWY_ALIGN T copy[kCopiedDepth * kWidest * kLanes];
    const std::int64_t bytes = g.k * g.ldb * kSize;
    const std::int64_t near_depth = kNearBytes / std::max<std::int64_t>(g.ldb * kSize, 1);
    const bool near = g.a_col == 1 && g.n > kWidest * kLanes &&
                      near_depth >= std::min<std::int64_t>(g.k, kLeastDepth);
    const bool fits = bytes <= kCacheBytes;
    const bool many_rows = !fits && g.m >= kRowsWorthCopying;
    const bool copied =
        many_rows && !near && g.ldb > kWidest * kLanes && g.ldb * kSize > kFarRowBytes;
    std::int64_t depth = std::max<std::int64_t>(g.k, 1);
    if (near) {
        // Parts of equal depth: a short one would have the same overhead.
        depth = ceil_div(depth, ceil_div(depth, near_depth));
    } else if (many_rows) {
        depth = kCopiedDepth;
    } else if (!fits) {
        depth = std::clamp<std::int64_t>(kCacheBytes / (g.n * kSize), 16, kCopiedDepth);
    }
    // Estimates the number of blocks of C.
    NextLines next(g, kSize,
                   ceil_div(g.k, depth) * ceil_div(g.m, block_rows(kWidest)) *
                       ceil_div(g.n, kWidest * kLanes));
    Panel<Product> p{};
    p.next = &next;
    p.a_row = g.a_row;
    p.a_col = g.a_col;
    p.ldc = g.ldc;
    // k == 0 still writes C: one pass without steps.
    for (std::int64_t k = 0; k < g.k || k == 0; k += depth) {
        p.k = std::min(depth, g.k - k);
        p.a = static_cast<const T*>(g.a) + k * g.a_col;
        p.accumulate = g.accumulate || k > 0;
        p.prefetch_c = g.prefetch_c && k == 0;
        const Scale<T> scale = scale_at<T>(g, k);
        p.scale = scale;
        p.b = static_cast<const T*>(g.b) + k * g.ldb;
        p.ldb = g.ldb;
        p.c = static_cast<T*>(g.c);
        p.m = g.m;
        const std::int64_t done = near ? whole_row_blocks(p, g.n) : 0;
        if (done == g.m) continue;
        p.m -= done;
        p.a += done * g.a_row;
        p.c += done * g.ldc;
        const T* b = p.b;
        for (std::int64_t n = 0; n < g.n;) {
            const int vectors = next_panel((g.n - n) / kLanes, p.m);
            const std::int64_t width = vectors == 0 ? g.n - n : vectors * kLanes;
            p.b = b + n;
            p.scale = scale.from(done, n);
            p.ldb = g.ldb;
            p.tail = static_cast<std::size_t>(width);
            if (copied) {
                copy_panel(p.b, g.ldb, p.k, width, copy);
                p.b = copy;
                p.ldb = width;
            }
            run_panel(p, vectors);
            p.c += width;
            n += width;
        }
    }
}

}  // namespace

GemmFunction gemm_f32() {
    return gemm<Plain<float>>;
}
GemmFunction gemm_f64() {
    return gemm<Plain<double>>;
}
GemmFunction gemm_i32() {
    return gemm<Plain<std::int32_t>>;
}
GemmFunction gemm_i64() {
    return gemm<Plain<std::int64_t>>;
}
GemmFunction gemm_i16_pairs() {
#if HWY_ARCH_X86
    return gemm<I16Pairs>;
#else
    return nullptr;
#endif
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

// clang-format off
GemmFunction vector_gemm_f32(Target target) { TW_RETURN_FROM_TARGET(target, gemm_f32()) }
GemmFunction vector_gemm_f64(Target target) { TW_RETURN_FROM_TARGET(target, gemm_f64()) }
GemmFunction vector_gemm_i32(Target target) { TW_RETURN_FROM_TARGET(target, gemm_i32()) }
GemmFunction vector_gemm_i64(Target target) { TW_RETURN_FROM_TARGET(target, gemm_i64()) }
GemmFunction vector_gemm_i16_pairs(Target target) { TW_RETURN_FROM_TARGET(target, gemm_i16_pairs()) }
// clang-format on

}  // namespace tilewright::cpu
#endif
