// Matrix products of every table against sums in long double, with the error bound of a k-term sum.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {
namespace {

template <typename T>
std::vector<T> random_values(std::int64_t n, std::mt19937& random) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& v : x) v = static_cast<T>(uniform(random));
    return x;
}

struct Layout {
    bool k_major;  // A lies [k][m]
    bool accumulate;
    std::int64_t pad;  // extra elements in every row of A, B and C
};

template <typename T>
void check(GemmFunction gemm, std::int64_t m, std::int64_t n, std::int64_t k, Layout layout) {
    std::mt19937 random(static_cast<unsigned>(m * 73 + n * 7 + k));
    GemmArgs g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a_row = layout.k_major ? 1 : k + layout.pad;
    g.a_col = layout.k_major ? m + layout.pad : 1;
    g.ldb = n + layout.pad;
    g.ldc = n + layout.pad;
    g.accumulate = layout.accumulate;
    const auto a = random_values<T>((m + layout.pad) * (k + layout.pad), random);
    const auto b = random_values<T>(k * g.ldb, random);
    auto c = random_values<T>(m * g.ldc, random);
    const auto before = c;
    g.a = a.data();
    g.b = b.data();
    g.c = c.data();
    gemm(g);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < g.ldc; ++j) {
            const auto at = static_cast<std::size_t>(i * g.ldc + j);
            if (j >= n) {
                ASSERT_EQ(c[at], before[at]) << "written behind row " << i;
                continue;
            }
            long double sum = layout.accumulate ? before[at] : 0;
            long double magnitude = std::fabs(sum);
            for (std::int64_t l = 0; l < k; ++l) {
                const long double product =
                    static_cast<long double>(
                        a[static_cast<std::size_t>(i * g.a_row + l * g.a_col)]) *
                    static_cast<long double>(b[static_cast<std::size_t>(l * g.ldb + j)]);
                sum += product;
                magnitude += std::fabs(product);
            }
            const long double error = std::fabs(static_cast<long double>(c[at]) - sum);
            const long double bound =
                static_cast<long double>(k + 1) * std::numeric_limits<T>::epsilon() / 2 * magnitude;
            ASSERT_TRUE(error <= bound) << "C(" << i << ", " << j << ") of " << m << " x " << n
                                        << " x " << k << ": " << c[at] << " for " << sum;
        }
    }
}

class Gemm : public testing::TestWithParam<const Kernels*> {
  protected:
    void check_both(std::int64_t m, std::int64_t n, std::int64_t k, Layout layout) {
        check<float>(GetParam()->gemm_f32, m, n, k, layout);
        check<double>(GetParam()->gemm_f64, m, n, k, layout);
    }
};

constexpr Layout kLayouts[] = {
    {false, false, 0}, {true, false, 3}, {false, true, 5}, {true, true, 0}};

TEST_P(Gemm, EveryRowRemainder) {
    for (std::int64_t m = 1; m <= 26; ++m) {
        for (const Layout& layout : kLayouts) check_both(m, 64, 5, layout);
    }
}

TEST_P(Gemm, EveryLaneRemainder) {
    for (std::int64_t n = 1; n <= 140; ++n) check_both(3, n, 4, kLayouts[n % 4]);
    for (std::int64_t n : {1, 7, 31, 100, 129}) check_both(14, n, 9, kLayouts[n % 4]);
}

TEST_P(Gemm, BeyondTheCache) {
    // Large enough that B is cut in k, and, with many rows, copied.
    for (const Layout& layout : kLayouts) {
        check_both(2, 130, 301, layout);
        check_both(37, 100, 300, layout);
    }
}

TEST_P(Gemm, NoSteps) {
    check_both(5, 20, 0, kLayouts[0]);
    check_both(5, 20, 0, kLayouts[2]);
}

TEST_P(Gemm, NanAndInfinityPass) {
    const std::vector<float> a = {1, std::numeric_limits<float>::quiet_NaN()};
    const std::vector<float> b(64, std::numeric_limits<float>::infinity());
    std::vector<float> c(128);
    GemmArgs g{2, 64, 1, a.data(), 1, 1, b.data(), 64, c.data(), 64, false};
    GetParam()->gemm_f32(g);
    EXPECT_EQ(c[0], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(c[64]));
}

INSTANTIATE_TEST_SUITE_P(Tables, Gemm, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
