// The mathematical functions of every table against f64, within the bounds of
// docs/explanation/numerics.md.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ir/function_values.h"
#include "tests/cpu/simd_support.h"

namespace tilewright::cpu {
namespace {

using ir::Op;

struct Function {
    Op op;
    long double (*exact)(long double);
    double f32_ulps;
    double f64_ulps;
};

/// The functions of one operand, with the bounds of their rows.
const std::vector<Function>& functions() {
    static const std::vector<Function> all = [] {
        std::vector<Function> rows;
        const auto add = [&rows](Op op, long double (*exact)(long double)) {
            const auto& ulps = ir::function_info(op)->ulps;
            rows.push_back({op, exact, ulps.f32, ulps.f64});
        };
#define TW_UNARY(row, function, value, ...)         \
    add(Op::row, [](long double x) -> long double { \
        using T [[maybe_unused]] = long double;     \
        return value;                               \
    });
#define TW_APPROXIMABLE TW_UNARY
#include "ir/ops.inl"
        return rows;
    }();
    return all;
}

/// Error of `got` in units of the last place of a float type at `want`.
template <typename T>
double error_in_ulps(T got, long double want) {
    if (std::isnan(got) || std::isnan(want)) {
        return std::isnan(got) == std::isnan(want) ? 0 : INFINITY;
    }
    // What rounds to infinity may be infinity.
    const long double largest = std::numeric_limits<T>::max();
    if (std::isinf(got)) return (got > 0) == (want > 0) && std::fabs(want) > largest ? 0 : INFINITY;
    if (std::isinf(want)) return INFINITY;
    const int exponent =
        std::max(want == 0 ? -100000 : std::ilogb(want), std::numeric_limits<T>::min_exponent - 1);
    const long double place = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits + 1);
    return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / place);
}

template <typename T>
void check(const Kernels& table, const Function& function, const std::vector<T>& x) {
    constexpr DType kDType = sizeof(T) == 4 ? DType::f32 : DType::f64;
    const double bound = sizeof(T) == 4 ? function.f32_ulps : function.f64_ulps;
    std::vector<T> y(x.size());
    Strip s;
    s.rows = 1;
    s.lanes = static_cast<std::int64_t>(x.size());
    s.in[0] = {x.data(), 0, 1};
    s.out = y.data();
    table.elementwise(function.op, kDType, kDType, false)(s);
    double worst = 0;
    T where = 0;
    T value = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = error_in_ulps(y[i], function.exact(x[i]));
        if (!(error <= worst)) {
            worst = error;
            where = x[i];
            value = y[i];
        }
    }
    EXPECT_TRUE(worst <= bound) << table.name << " " << ir::name(function.op) << "(" << where
                                << ") = " << value << " is off by " << worst << " ulp";
    testing::Test::RecordProperty(std::string(ir::name(function.op)), std::to_string(worst));
}

/// f of x as one strip, of one or two operands.
template <typename T>
std::vector<T> applied(const Kernels& table, Op op, const std::vector<T>& x,
                       const std::vector<T>& y = {}) {
    constexpr DType kDType = sizeof(T) == 4 ? DType::f32 : DType::f64;
    std::vector<T> out(x.size());
    Strip s;
    s.rows = 1;
    s.lanes = static_cast<std::int64_t>(x.size());
    s.in[0] = {x.data(), 0, 1};
    s.in[1] = {y.data(), 0, 1};
    s.out = out.data();
    table.elementwise(op, kDType, kDType, false)(s);
    return out;
}

/// Neighbouring lanes must not change an element's result: lanes outside an array are arbitrary.
template <typename T>
void expect_independent_lanes(const Kernels& table, Op op, bool binary) {
    SCOPED_TRACE(ir::name(op));
    std::mt19937 random(11);
    std::uniform_real_distribution<T> uniform(T(0.1), T(3));
    std::vector<T> x(256), y(256);
    for (T& v : x) v = uniform(random);
    for (T& v : y) v = uniform(random);
    const T rare[] = {
        std::numeric_limits<T>::quiet_NaN(),  std::numeric_limits<T>::infinity(), T(-1), T(0),
        std::numeric_limits<T>::denorm_min(), std::numeric_limits<T>::max()};
    std::vector<T> mixed = x;
    for (std::size_t i = 0; i < mixed.size(); i += 3) mixed[i] = rare[i / 3 % 6];
    const std::vector<T> alone = applied(table, op, x, binary ? y : std::vector<T>());
    const std::vector<T> beside = applied(table, op, mixed, binary ? y : std::vector<T>());
    for (std::size_t i = 0; i < mixed.size(); ++i) {
        if (i % 3 == 0) continue;
        EXPECT_EQ(alone[i], beside[i]) << "of " << x[i];
    }
}

class Math : public testing::TestWithParam<const Kernels*> {};

TEST_P(Math, F32OverItsWholeRange) {
    // A prime stride through all bit patterns: every exponent, both signs, NaN and infinities.
    std::vector<float> x;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 49999) {
        x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    for (const Function& f : functions()) check(*GetParam(), f, x);
}

TEST_P(Math, F32WhereItMatters) {
    std::vector<float> x;
    for (int i = -40000; i <= 40000; ++i) x.push_back(static_cast<float>(i) * 0.00275F);
    for (int i = -4000; i <= 4000; ++i) x.push_back(1.0F + static_cast<float>(i) * 1e-6F);
    for (const Function& f : functions()) check(*GetParam(), f, x);
}

TEST_P(Math, FunctionsOfF64KeepTheirBounds) {
    std::vector<double> x;
    for (int i = -20000; i <= 20000; ++i) x.push_back(i * 0.0371);
    for (int i = -2000; i <= 2000; ++i) x.push_back(1.0 + i * 1e-9);
    std::mt19937_64 random(3);
    for (int i = 0; i < 20000; ++i) x.push_back(std::bit_cast<double>(random()));
    for (const Function& f : functions()) check(*GetParam(), f, x);
}

TEST_P(Math, NeighboursDoNotMatter) {
    for (const Function& f : functions()) {
        expect_independent_lanes<float>(*GetParam(), f.op, false);
        expect_independent_lanes<double>(*GetParam(), f.op, false);
    }
    for (const Op op : {Op::pow, Op::nextafter}) {
        expect_independent_lanes<float>(*GetParam(), op, true);
        expect_independent_lanes<double>(*GetParam(), op, true);
    }
}

TEST_P(Math, SpecialValues) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> x = {0.0F,   -0.0F,   1.0F,    -1.0F, kInf,   -kInf,   kNan,
                            1e-45F, -1e-45F, 88.7F,   88.8F, -87.4F, -103.9F, -104.1F,
                            128.0F, -149.0F, -150.1F, 3e38F, -3e38F};
    for (const Function& f : functions()) {
        // One value in all lanes, so that no other lane decides on the path taken.
        for (float v : x) check(*GetParam(), f, std::vector<float>(37, v));
        check(*GetParam(), f, x);
    }
}

/// 1 - tanh^2 may not be negative, and tanh(-x) is -tanh(x), zeros and subnormal numbers included.
TEST_P(Math, TanhIsOddAndWithinOne) {
    std::vector<float> x = {0.0F, 1e-45F, 1e-40F, std::numeric_limits<float>::min(), 1e30F, kInf};
    const std::size_t num_small = 4;
    // Every float where the result is nearly 1, and some of those below.
    for (std::uint32_t bits = 0x40C00000; bits < 0x41200000; ++bits) {
        x.push_back(std::bit_cast<float>(bits));
    }
    for (std::uint32_t bits = 1; bits < 0x40C00000; bits += 10007) {
        x.push_back(std::bit_cast<float>(bits));
    }
    std::vector<float> opposite = x;
    for (float& v : opposite) v = -v;
    const std::vector<float> y = applied(*GetParam(), Op::tanh, x);
    const std::vector<float> z = applied(*GetParam(), Op::tanh, opposite);
    for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(y[i] >= 0 && y[i] <= 1)
            << GetParam()->name << " tanh(" << x[i] << ") - 1 is " << y[i] - 1;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(z[i]), std::bit_cast<std::uint32_t>(-y[i])) << x[i];
        if (i < num_small) {
            ASSERT_EQ(y[i], x[i]);
        }
    }
    for (const Function& f : functions()) {
        if (f.op == Op::tanh) check(*GetParam(), f, x);
    }
}

template <typename T>
void expect_neighbours(const Kernels& table) {
    std::mt19937_64 random(5);
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    std::vector<T> x, y;
    using Limits = std::numeric_limits<T>;
    const T special[] = {0,
                         -T(0),
                         1,
                         -1,
                         Limits::min(),
                         -Limits::denorm_min(),
                         Limits::max(),
                         Limits::infinity(),
                         -Limits::infinity(),
                         Limits::quiet_NaN()};
    for (const T a : special) {
        for (const T b : special) x.push_back(a), y.push_back(b);
    }
    for (int i = 0; i < 2000; ++i) {
        x.push_back(std::bit_cast<T>(static_cast<Bits>(random())));
        y.push_back(std::bit_cast<T>(static_cast<Bits>(random())));
    }
    const std::vector<T> z = applied(table, Op::nextafter, x, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const T want = std::nextafter(x[i], y[i]);
        if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(z[i])) << x[i] << ", " << y[i];
        } else {
            EXPECT_EQ(std::bit_cast<Bits>(z[i]), std::bit_cast<Bits>(want)) << x[i] << ", " << y[i];
        }
    }
}

TEST_P(Math, NextAfterIsExact) {
    expect_neighbours<float>(*GetParam());
    expect_neighbours<double>(*GetParam());
}

TEST_P(Math, PowF32) {
    std::mt19937_64 random(9);
    std::vector<float> x;
    std::vector<float> y;
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const float special[] = {0.0F, -0.0F, 1.0F, -1.0F,  2.0F,  -2.0F, 3.0F,  0.5F,
                             kInf, -kInf, kNan, 1e-40F, -7.5F, 1e38F, 33.0F, -1e-30F};
    for (float a : special) {
        for (float b : special) {
            x.push_back(a);
            y.push_back(b);
        }
    }
    for (int i = 0; i < 20000; ++i) {
        x.push_back(std::exp(std::uniform_real_distribution<float>(-20, 20)(random)));
        y.push_back(std::uniform_real_distribution<float>(-6, 6)(random));
    }
    std::vector<float> z(x.size());
    Strip s;
    s.rows = 1;
    s.lanes = static_cast<std::int64_t>(x.size());
    s.in[0] = {x.data(), 0, 1};
    s.in[1] = {y.data(), 0, 1};
    s.out = z.data();
    GetParam()->elementwise(Op::pow, f32, f32, false)(s);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const long double want = std::pow(static_cast<double>(x[i]), static_cast<double>(y[i]));
        ASSERT_TRUE(error_in_ulps(z[i], want) <= ir::function_info(Op::pow)->ulps.f32)
            << GetParam()->name << " pow(" << x[i] << ", " << y[i] << ") = " << z[i];
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, Math, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
