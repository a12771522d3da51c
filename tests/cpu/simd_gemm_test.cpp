// Matrix products of every table against sums in long double, with the error bound of a k-term sum.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "cpu/simd/kernels.h"
#include "support/small_float.h"

namespace tilewright::cpu {
namespace {

template <typename T>
std::vector<T> random_values(std::int64_t n, std::mt19937& random) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& v : x) v = static_cast<T>(uniform(random));
    return x;
}

enum class Scale : std::uint8_t { none, rows, lanes };

struct Layout {
    bool k_major;  // A is stored [k][m]
    bool accumulate;
    std::int64_t pad;  // extra elements in every row of A, B and C
    Scale scale = Scale::none;
};

// Factors of C before a product is added to it, set in the product's arguments.
template <typename T>
class Factors {
  public:
    Factors(Scale scale, GemmArgs& g, std::mt19937& random)
        : scale_(scale), values_(random_values<T>(scale == Scale::rows ? g.m : g.n, random)) {
        if (scale == Scale::rows) g.row_scale = values_.data();
        if (scale == Scale::lanes) g.lane_scale = values_.data();
    }
    T operator()(std::int64_t row, std::int64_t lane) const {
        if (scale_ == Scale::none) return 1;
        return values_[static_cast<std::size_t>(scale_ == Scale::rows ? row : lane)];
    }

  private:
    Scale scale_;
    std::vector<T> values_;
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
    const Factors<T> factors(layout.scale, g, random);
    gemm(g);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < g.ldc; ++j) {
            const auto at = static_cast<std::size_t>(i * g.ldc + j);
            if (j >= n) {
                ASSERT_EQ(c[at], before[at]) << "written after row " << i;
                continue;
            }
            long double sum = 0;
            if (layout.accumulate) sum = static_cast<long double>(before[at]) * factors(i, j);
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

constexpr Layout kLayouts[] = {{false, false, 0},
                               {true, false, 3},
                               {false, true, 5},
                               {true, true, 0},
                               {false, true, 2, Scale::rows},
                               {true, true, 1, Scale::lanes},
                               {true, true, 0, Scale::rows},
                               {false, true, 0, Scale::lanes},
                               // C is not read, nor the factors.
                               {false, false, 1, Scale::rows}};

const Layout& some_layout(std::int64_t n) {
    return kLayouts[static_cast<std::size_t>(n) % std::size(kLayouts)];
}

TEST_P(Gemm, EveryRowRemainder) {
    for (std::int64_t m = 1; m <= 26; ++m) {
        for (const Layout& layout : kLayouts) check_both(m, 64, 5, layout);
    }
}

TEST_P(Gemm, EveryLaneRemainder) {
    for (std::int64_t n = 1; n <= 140; ++n) check_both(3, n, 4, some_layout(n));
    for (std::int64_t n : {1, 7, 31, 100, 129}) check_both(14, n, 9, some_layout(n));
}

TEST_P(Gemm, ManyRows) {
    for (std::int64_t n = 20; n <= 160; ++n) check_both(18, n, 6, some_layout(n));
    for (const Layout& layout : kLayouts) {
        for (const std::int64_t k : {1, 2, 3, 4, 127, 129, 257}) check_both(17, 72, k, layout);
    }
}

TEST_P(Gemm, BeyondTheCache) {
    // Large enough that B is split along k and, with many rows, copied.
    for (const Layout& layout : kLayouts) {
        check_both(2, 130, 301, layout);
        check_both(37, 100, 300, layout);
        check_both(16, 24, 39 * 128 + 1, layout);
    }
}

TEST_P(Gemm, NoStepsOfKGiveZeros) {
    for (const Layout& layout : kLayouts) {
        check_both(5, 20, 0, layout);
        check_both(33, 64, 0, layout);
    }
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

TEST_P(Gemm, RowsAsTheyLie) {
    const GemmFunction gemm = GetParam()->gemm_rows_f32;
    if (gemm == nullptr) GTEST_SKIP() << "this table transposes";
    for (const Layout& layout : kLayouts) {
        const bool accumulate = layout.accumulate;
        for (std::int64_t m = 1; m <= 5; ++m) {
            for (const std::int64_t n : {1, 3, 8, 21}) {
                for (const std::int64_t k : {0, 1, 7, 16, 67}) {
                    std::mt19937 random(static_cast<unsigned>(m * 73 + n * 7 + k));
                    const auto a = random_values<float>(m * (k + 2), random);
                    const auto b = random_values<float>(n * (k + 3), random);
                    auto c = random_values<float>(m * (n + 1), random);
                    const auto before = c;
                    GemmArgs g{m,        n,     k,        a.data(), k + 2,     1,
                               b.data(), k + 3, c.data(), n + 1,    accumulate};
                    const Factors<float> factors(layout.scale, g, random);
                    gemm(g);
                    for (std::int64_t i = 0; i < m * (n + 1); ++i) {
                        const auto at = static_cast<std::size_t>(i);
                        const std::int64_t row = i / (n + 1), column = i % (n + 1);
                        if (column == n) {
                            ASSERT_EQ(c[at], before[at]) << "written after row " << row;
                            continue;
                        }
                        double sum = 0;
                        if (accumulate) sum = double{before[at]} * factors(row, column);
                        double magnitude = std::fabs(sum);
                        for (std::int64_t l = 0; l < k; ++l) {
                            const double product =
                                double{a[static_cast<std::size_t>(row * (k + 2) + l)]} *
                                double{b[static_cast<std::size_t>(column * (k + 3) + l)]};
                            sum += product;
                            magnitude += std::fabs(product);
                        }
                        const double bound = static_cast<double>(k + 2) * 0x1p-24 * magnitude;
                        ASSERT_TRUE(std::fabs(c[at] - sum) <= bound)
                            << "C(" << row << ", " << column << ") of " << m << " x " << n << " x "
                            << k << ": " << c[at] << " for " << sum;
                    }
                }
            }
        }
    }
}

// A product of bf16 pairs: `k` pairs; A [m][k] or, k_major, [k][m] of pairs.
void check_pairs(const Kernels& table, std::int64_t m, std::int64_t n, std::int64_t k,
                 Layout layout) {
    std::mt19937 random(static_cast<unsigned>(m * 73 + n * 7 + k));
    const auto pairs = [&](std::int64_t count) {
        std::vector<std::uint16_t> x(static_cast<std::size_t>(2 * count));
        for (auto& v : x) v = f32_to_bf16(std::uniform_real_distribution<float>(-1, 1)(random));
        return x;
    };
    const auto a = pairs((m + layout.pad) * (k + layout.pad));
    const auto b = pairs(k * (n + layout.pad));
    auto c = random_values<float>(m * (n + layout.pad), random);
    const auto before = c;
    GemmArgs g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a.data();
    g.a_row = layout.k_major ? 1 : k + layout.pad;
    g.a_col = layout.k_major ? m + layout.pad : 1;
    g.b = b.data();
    g.ldb = n + layout.pad;
    g.c = c.data();
    g.ldc = n + layout.pad;
    g.accumulate = layout.accumulate;
    const Factors<float> factors(layout.scale, g, random);
    // The maxima so far are those of a row before the first one.
    auto maxima = random_values<float>(n + 1, random);
    const auto first = maxima;
    if (table.finds_maxima) g.maxima = maxima.data();
    table.gemm_bf16_pairs(g);
    for (std::int64_t j = 0; table.finds_maxima && j <= n; ++j) {
        float high = first[static_cast<std::size_t>(j)];
        for (std::int64_t i = 0; i < m && j < n; ++i) {
            high = std::max(high, c[static_cast<std::size_t>(i * g.ldc + j)]);
        }
        ASSERT_EQ(maxima[static_cast<std::size_t>(j)], high) << j << " of " << n;
    }
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < g.ldc; ++j) {
            const auto at = static_cast<std::size_t>(i * g.ldc + j);
            if (j >= n) {
                ASSERT_EQ(c[at], before[at]) << "written after row " << i;
                continue;
            }
            double sum = layout.accumulate ? double{before[at]} * factors(i, j) : 0;
            double magnitude = std::fabs(sum);
            for (std::int64_t l = 0; l < 2 * k; ++l) {
                const auto in_a = 2 * (i * g.a_row + l / 2 * g.a_col) + l % 2;
                const auto in_b = 2 * (l / 2 * g.ldb + j) + l % 2;
                const double product =
                    static_cast<double>(bf16_to_f32(a[static_cast<std::size_t>(in_a)])) *
                    static_cast<double>(bf16_to_f32(b[static_cast<std::size_t>(in_b)]));
                sum += product;
                magnitude += std::fabs(product);
            }
            const double bound = static_cast<double>(2 * k + 2) * 0x1p-24 * magnitude;
            ASSERT_TRUE(std::fabs(c[at] - sum) <= bound)
                << "C(" << i << ", " << j << ") of " << m << " x " << n << " x " << k
                << " pairs: " << c[at] << " for " << sum;
        }
    }
}

TEST_P(Gemm, Bf16Pairs) {
    const Kernels& table = *GetParam();
    if (table.gemm_bf16_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    for (const Layout& layout : kLayouts) {
        for (std::int64_t m = 1; m <= 50; ++m) check_pairs(table, m, 64, 17, layout);
        for (std::int64_t n = 1; n <= 100; ++n) check_pairs(table, 33, n, 16, layout);
        for (std::int64_t k = 0; k <= 40; ++k) check_pairs(table, 35, 50, k, layout);
        check_pairs(table, 64, 128, 300, layout);
        check_pairs(table, 5, 200, 200, layout);
    }
}

// Where A has triangles or rows of zeros, and B an infinity in a lane of its own, so that products
// with zeros count there: lanes of another panel have the same bits in both products.
TEST_P(Gemm, ZerosOfPairsChangeNothing) {
    const Kernels& table = *GetParam();
    if (table.gemm_bf16_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    constexpr std::int64_t kRows = 70, kLanes = 80, kPairs = 90;
    enum Zeros : std::uint8_t { kAfter, kBefore, kBand, kAll };
    for (const Zeros zeros : {kAfter, kBefore, kBand, kAll}) {
        for (const bool k_major : {false, true}) {
            std::mt19937 random(zeros + 10U * k_major);
            const auto number = [&] {
                return f32_to_bf16(std::uniform_real_distribution<float>(-1, 1)(random));
            };
            const std::int64_t a_row = k_major ? 1 : kPairs, a_col = k_major ? kRows : 1;
            std::vector<std::uint16_t> a(static_cast<std::size_t>(2 * kRows * kPairs)),
                b(static_cast<std::size_t>(2 * kPairs * kLanes));
            for (auto& x : b) x = number();
            for (std::int64_t row = 0; row < kRows; ++row) {
                for (std::int64_t k = 0; k < 2 * kPairs; ++k) {
                    const bool after = k > 2 * row + 1, before = k < 2 * row;
                    const bool is_zero = (zeros == kAfter && after) ||
                                         (zeros == kBefore && before) ||
                                         (zeros == kBand && (k > 2 * row + 40 || before)) ||
                                         zeros == kAll || row == 30;
                    const auto at = 2 * (row * a_row + k / 2 * a_col) + k % 2;
                    const std::uint16_t zero = k % 3 == 0 ? 0x8000 : 0;
                    a[static_cast<std::size_t>(at)] = is_zero ? zero : number();
                }
            }
            const auto product = [&](const std::vector<std::uint16_t>& by) {
                std::vector<float> c(static_cast<std::size_t>(kRows * kLanes), 2.5F);
                GemmArgs g{kRows,     kLanes, kPairs,   a.data(), a_row, a_col,
                           by.data(), kLanes, c.data(), kLanes,   true};
                table.gemm_bf16_pairs(g);
                return c;
            };
            auto infinite = b;
            for (std::int64_t k = 0; k < 2 * kPairs; ++k) {
                const auto at = 2 * (k / 2 * kLanes + 7) + k % 2;
                infinite[static_cast<std::size_t>(at)] =
                    f32_to_bf16(std::numeric_limits<float>::infinity());
            }
            const auto have = product(b), want = product(infinite);
            for (std::int64_t row = 0; row < kRows; ++row) {
                for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                    const auto at = static_cast<std::size_t>(row * kLanes + lane);
                    if (lane == 7) {
                        ASSERT_TRUE(std::isnan(want[at])) << row << " of case " << zeros;
                    } else {
                        ASSERT_EQ(have[at], want[at])
                            << row << ", " << lane << " of case " << zeros << ", " << k_major;
                    }
                }
            }
        }
    }
}

TEST_P(Gemm, NanIsTheMaximum) {
    const Kernels& table = *GetParam();
    if (!table.finds_maxima) GTEST_SKIP() << "this table finds no maxima";
    constexpr std::int64_t kRows = 17, kLanes = 70;
    const std::vector<std::uint16_t> b(static_cast<std::size_t>(2 * kLanes), f32_to_bf16(1));
    for (std::int64_t row = 0; row < kRows; ++row) {
        std::vector<std::uint16_t> a(static_cast<std::size_t>(2 * kRows), f32_to_bf16(1));
        a[static_cast<std::size_t>(2 * row)] = f32_to_bf16(std::numeric_limits<float>::quiet_NaN());
        std::vector<float> c(static_cast<std::size_t>(kRows * kLanes));
        std::vector<float> maxima(static_cast<std::size_t>(kLanes),
                                  -std::numeric_limits<float>::infinity());
        GemmArgs g{kRows, kLanes, 1, a.data(), 1, 1, b.data(), kLanes, c.data(), kLanes, false};
        g.maxima = maxima.data();
        table.gemm_bf16_pairs(g);
        for (const float high : maxima) ASSERT_TRUE(std::isnan(high)) << row << ": " << high;
    }
}

// A product of integers, `group` elements of A and B to a word W, against wrapping sums.
template <typename A, typename B, typename C, typename W>
void check_integers(GemmFunction gemm, std::int64_t m, std::int64_t n, std::int64_t k,
                    Layout layout) {
    constexpr auto kGroup = static_cast<std::int64_t>(sizeof(W) / sizeof(A));
    std::mt19937_64 random(static_cast<unsigned>(m * 73 + n * 7 + k));
    const auto words = [&]<typename T>(T, std::int64_t count) {
        std::vector<T> x(static_cast<std::size_t>(kGroup * count));
        // Extremes are frequent, so that products and their sums would overflow narrower types.
        for (T& v : x) {
            v = random() % 4 == 0 ? std::numeric_limits<T>::min() : static_cast<T>(random());
        }
        return x;
    };
    const auto a = words(A{}, (m + layout.pad) * (k + layout.pad));
    const auto b = words(B{}, k * (n + layout.pad));
    std::vector<C> c(static_cast<std::size_t>(m * (n + layout.pad)));
    for (C& v : c) v = static_cast<C>(random());
    const auto before = c;
    GemmArgs g{.m = m,
               .n = n,
               .k = k,
               .a = a.data(),
               .a_row = layout.k_major ? 1 : k + layout.pad,
               .a_col = layout.k_major ? m + layout.pad : 1,
               .b = b.data(),
               .ldb = n + layout.pad,
               .c = c.data(),
               .ldc = n + layout.pad,
               .accumulate = layout.accumulate};
    gemm(g);
    using U = std::make_unsigned_t<C>;
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < g.ldc; ++j) {
            const auto at = static_cast<std::size_t>(i * g.ldc + j);
            U sum = layout.accumulate || j >= n ? static_cast<U>(before[at]) : 0;
            for (std::int64_t l = 0; j < n && l < kGroup * k; ++l) {
                const auto in_a = kGroup * (i * g.a_row + l / kGroup * g.a_col) + l % kGroup;
                const auto in_b = kGroup * (l / kGroup * g.ldb + j) + l % kGroup;
                sum += static_cast<U>(static_cast<C>(a[static_cast<std::size_t>(in_a)])) *
                       static_cast<U>(static_cast<C>(b[static_cast<std::size_t>(in_b)]));
            }
            ASSERT_EQ(static_cast<U>(c[at]), sum)
                << "C(" << i << ", " << j << ") of " << m << " x " << n << " x " << k;
        }
    }
}

template <typename A, typename B, typename C, typename W>
void check_integers(GemmFunction gemm) {
    if (gemm == nullptr) GTEST_SKIP() << "this table widens";
    constexpr Layout kPlain[] = {
        {false, false, 0}, {true, false, 3}, {false, true, 5}, {true, true, 0}};
    const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
        for (const Layout& layout : kPlain) check_integers<A, B, C, W>(gemm, m, n, k, layout);
    };
    for (std::int64_t m = 1; m <= 26; ++m) check(m, 64, 5);
    for (std::int64_t n = 1; n <= 100; ++n) check(7, n, 4);
    for (std::int64_t k = 0; k <= 40; ++k) check(35, 50, k);
    check(37, 100, 300);
    check(2, 130, 301);
    check(64, 128, 130);
}

TEST_P(Gemm, Integers) {
    check_integers<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(GetParam()->gemm_i32);
    check_integers<std::int64_t, std::int64_t, std::int64_t, std::int64_t>(GetParam()->gemm_i64);
}

TEST_P(Gemm, I16Pairs) {
    check_integers<std::int16_t, std::int16_t, std::int32_t, std::int32_t>(
        GetParam()->gemm_i16_pairs);
}

TEST_P(Gemm, QuadsOfBytes) {
    const auto gemm = GetParam()->gemm_i8_quads;
    if (gemm == nullptr) GTEST_SKIP() << "this table widens";
    using S = std::int8_t;
    using U = std::uint8_t;
    check_integers<S, S, std::int32_t, std::int32_t>(gemm(true, true));
    check_integers<S, U, std::int32_t, std::int32_t>(gemm(true, false));
    check_integers<U, S, std::int32_t, std::int32_t>(gemm(false, true));
    check_integers<U, U, std::int32_t, std::int32_t>(gemm(false, false));
}

INSTANTIATE_TEST_SUITE_P(Tables, Gemm, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
