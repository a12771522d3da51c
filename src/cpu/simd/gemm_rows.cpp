// Products of a few rows with the rows of an array: both are contiguous along k, so neither is
// transposed or packed.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/gemm_rows.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = hn::MaxLanes(DF());

// kM rows of A by kN rows of B: the lanes of an accumulator are neighbours in k and are added last.
template <int kM, int kN>
void block(const GemmArgs& g, std::int64_t m, std::int64_t n) {
    const DF d;
    const float* a = static_cast<const float*>(g.a) + m * g.a_row;
    const float* b = static_cast<const float*>(g.b) + n * g.ldb;
    VF sum[kM][kN];
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < kN; ++j) sum[i][j] = hn::Zero(d);
    }
    const auto step = [&](std::int64_t k, auto load) HWY_ATTR {
        VF lhs[kM];
#pragma GCC unroll 16
        for (int i = 0; i < kM; ++i) lhs[i] = load(a + i * g.a_row + k);
#pragma GCC unroll 16
        for (int j = 0; j < kN; ++j) {
            const VF rhs = load(b + j * g.ldb + k);
#pragma GCC unroll 16
            for (int i = 0; i < kM; ++i) sum[i][j] = hn::MulAdd(lhs[i], rhs, sum[i][j]);
        }
    };
    std::int64_t k = 0;
    for (; k + kLanes <= g.k; k += kLanes) {
        step(k, [d](const float* p) HWY_ATTR { return hn::LoadU(d, p); });
    }
    if (k < g.k) {
        const auto left = static_cast<std::size_t>(g.k - k);
        step(k, [d, left](const float* p) HWY_ATTR { return load_first(d, p, left); });
    }
    for (int i = 0; i < kM; ++i) {
        float* c = static_cast<float*>(g.c) + (m + i) * g.ldc + n;
        for (int j = 0; j < kN; ++j) {
            const float total = hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
            c[j] = g.accumulate ? c[j] * scale_of<float>(g, m + i, n + j) + total : total;
        }
    }
}

template <int kM, int kN>
void all_columns(const GemmArgs& g, std::int64_t m) {
    std::int64_t n = 0;
    for (; n + kN <= g.n; n += kN) block<kM, kN>(g, m, n);
    for (; n < g.n; ++n) block<kM, 1>(g, m, n);
}

void gemm_rows(const GemmArgs& g) {
    std::int64_t m = 0;
    for (; m + 2 <= g.m; m += 2) all_columns<2, 4>(g, m);
    if (m < g.m) all_columns<1, 8>(g, m);
}

}  // namespace

GemmFunction gemm_rows_f32() {
    return gemm_rows;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

GemmFunction vector_gemm_rows_f32(Target target) {
    TW_RETURN_FROM_TARGET(target, gemm_rows_f32())
}

}  // namespace tilewright::cpu
#endif
