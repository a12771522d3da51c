// Matrix products of bf16 pairs and of quads of bytes with AMX tiles. Compiled with AMX enabled, so
// nothing here may be shared with other translation units: no inline functions of the library or of
// ours.
#include <immintrin.h>

#include "cpu/simd/dot_products.h"

namespace tilewright::cpu {
namespace {

// A tile is 16 rows of 64 bytes: 16 x 16 elements of C, 16 rows x 16 words of A, or 16 words x 16
// lanes of B, which is exactly how words of two or four elements are stored.
constexpr std::int64_t kTile = 16;

struct alignas(64) TileConfig {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// The intrinsics do not tell the compiler that they read and write memory.
inline void memory_fence() {
    asm volatile("" ::: "memory");
}

// The contents of words. Tiles are named by constants, so each product is spelled out.
enum class Kind { bf16, ss, su, us, uu };

template <Kind kind>
GemmFunction by_avx512() {
    if constexpr (kind == Kind::bf16) {
        return avx512_gemm_bf16_pairs;
    } else {
        return avx512_gemm_i8_quads(kind == Kind::ss || kind == Kind::su,
                                    kind == Kind::ss || kind == Kind::us);
    }
}

#define TW_PRODUCT(c, a, b)                  \
    do {                                     \
        if constexpr (kind == Kind::bf16)    \
            _tile_dpbf16ps(c, a, b);         \
        else if constexpr (kind == Kind::ss) \
            _tile_dpbssd(c, a, b);           \
        else if constexpr (kind == Kind::su) \
            _tile_dpbsud(c, a, b);           \
        else if constexpr (kind == Kind::us) \
            _tile_dpbusd(c, a, b);           \
        else                                 \
            _tile_dpbuud(c, a, b);           \
    } while (false)

// kM x kN tiles of C (tiles 0 to 3) from kM of A (4, 5) and kN of B (6, 7). Strides in bytes.
template <Kind kind, int kM, int kN>
void block(const char* a, long a_stride, const char* b, long b_stride, char* c00, long c_stride,
           std::int64_t steps, bool accumulate) {
    char* c10 = c00 + kTile * c_stride;
    memory_fence();
    if (accumulate) {
        _tile_loadd(0, c00, c_stride);
        if constexpr (kN == 2) _tile_loadd(1, c00 + 64, c_stride);
        if constexpr (kM == 2) _tile_loadd(2, c10, c_stride);
        if constexpr (kM == 2 && kN == 2) _tile_loadd(3, c10 + 64, c_stride);
    } else {
        _tile_zero(0);
        if constexpr (kN == 2) _tile_zero(1);
        if constexpr (kM == 2) _tile_zero(2);
        if constexpr (kM == 2 && kN == 2) _tile_zero(3);
    }
    for (std::int64_t s = 0; s < steps; ++s, a += 64, b += kTile * b_stride) {
        _tile_loadd(6, b, b_stride);
        _tile_loadd(4, a, a_stride);
        TW_PRODUCT(0, 4, 6);
        if constexpr (kN == 2) {
            _tile_loadd(7, b + 64, b_stride);
            TW_PRODUCT(1, 4, 7);
        }
        if constexpr (kM == 2) {
            _tile_loadd(5, a + kTile * a_stride, a_stride);
            TW_PRODUCT(2, 5, 6);
        }
        if constexpr (kM == 2 && kN == 2) TW_PRODUCT(3, 5, 7);
    }
    _tile_stored(0, c00, c_stride);
    if constexpr (kN == 2) _tile_stored(1, c00 + 64, c_stride);
    if constexpr (kM == 2) _tile_stored(2, c10, c_stride);
    if constexpr (kM == 2 && kN == 2) _tile_stored(3, c10 + 64, c_stride);
    memory_fence();
}

// The part of C for A's rows and B's lanes from (m, n), over words [k, k + depth), by vectors.
template <Kind kind>
void by_vectors(const GemmArgs& g, std::int64_t m, std::int64_t rows, std::int64_t n,
                std::int64_t lanes, std::int64_t k, std::int64_t depth, bool accumulate) {
    if (rows == 0 || lanes == 0) return;
    GemmArgs part = g;
    part.m = rows;
    part.n = lanes;
    part.k = depth;
    part.a = static_cast<const std::uint32_t*>(g.a) + m * g.a_row + k * g.a_col;
    part.b = static_cast<const std::uint32_t*>(g.b) + k * g.ldb + n;
    part.c = static_cast<std::uint32_t*>(g.c) + m * g.ldc + n;
    part.accumulate = accumulate;
    part.row_scale = part.lane_scale = nullptr;  // C is scaled already
    by_avx512<kind>()(part);
}

// Whole tiles by AMX, the remainders in m, n and k by vectors.
template <Kind kind>
void gemm(const GemmArgs& g) {
    const std::int64_t m = g.m / kTile * kTile;
    const std::int64_t n = g.n / kTile * kTile;
    const std::int64_t steps = g.k / kTile;
    const std::int64_t k = steps * kTile;
    if (g.a_col != 1 || m == 0 || n == 0 || k == 0) return by_avx512<kind>()(g);
    // Tiles of C are loaded unscaled, so C is scaled first. Integers have no factors.
    if (g.accumulate && (g.row_scale || g.lane_scale)) avx512_scale(g);
    const TileConfig config;
    memory_fence();
    _tile_loadconfig(&config);
    const long a_stride = static_cast<long>(g.a_row * 4);
    const long b_stride = static_cast<long>(g.ldb * 4);
    const long c_stride = static_cast<long>(g.ldc * 4);
    // Rows of A, which often come from an array, stay in L1 while B is read again.
    for (std::int64_t i = 0; i < m;) {
        const bool tall = i + 2 * kTile <= m;
        const char* a =
            reinterpret_cast<const char*>(static_cast<const std::uint32_t*>(g.a) + i * g.a_row);
        for (std::int64_t j = 0; j < n;) {
            const bool wide = j + 2 * kTile <= n;
            const char* b =
                reinterpret_cast<const char*>(static_cast<const std::uint32_t*>(g.b) + j);
            char* c = reinterpret_cast<char*>(static_cast<std::uint32_t*>(g.c) + i * g.ldc + j);
            const auto f = tall ? (wide ? block<kind, 2, 2> : block<kind, 2, 1>)
                                : (wide ? block<kind, 1, 2> : block<kind, 1, 1>);
            f(a, a_stride, b, b_stride, c, c_stride, steps, g.accumulate);
            j += wide ? 2 * kTile : kTile;
        }
        i += tall ? 2 * kTile : kTile;
    }
    // Tile registers left in use would make every context switch slower.
    _tile_release();
    if (k < g.k) by_vectors<kind>(g, 0, m, 0, n, k, g.k - k, true);
    by_vectors<kind>(g, m, g.m - m, 0, n, 0, g.k, g.accumulate);
    by_vectors<kind>(g, 0, g.m, n, g.n - n, 0, g.k, g.accumulate);
}

#undef TW_PRODUCT

}  // namespace

void amx_gemm_bf16_pairs(const GemmArgs& args) {
    gemm<Kind::bf16>(args);
}

GemmFunction amx_gemm_i8_quads(bool a_signed, bool b_signed) {
    if (a_signed) return b_signed ? gemm<Kind::ss> : gemm<Kind::su>;
    return b_signed ? gemm<Kind::us> : gemm<Kind::uu>;
}

}  // namespace tilewright::cpu
