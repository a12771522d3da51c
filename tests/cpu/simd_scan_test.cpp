// Running logsumexp of every vector table against long double.
#include <fmt/format.h>

#include <functional>

#include "tests/cpu/simd_support.h"

namespace tilewright::cpu {
namespace {

using Random = std::mt19937_64;

/// Element i of a row that is difficult in its own way.
struct Pattern {
    std::string name;
    std::function<double(std::int64_t i, Random& random)> value;
};

const std::vector<Pattern>& patterns() {
    const auto uniform = [](double low, double high, Random& random) {
        return std::uniform_real_distribution<double>(low, high)(random);
    };
    static const std::vector<Pattern> all = {
        {"random", [=](auto, Random& r) { return uniform(-4, 4, r); }},
        {"wide", [=](auto, Random& r) { return uniform(-300, 300, r); }},
        {"constant", [](auto, Random&) { return -0.7; }},
        {"rounding down", [](auto i, Random&) { return i == 0 ? 0 : -0.1; }},
        {"increasing", [](auto i, Random&) { return 0.01 * static_cast<double>(i); }},
        {"steep", [](auto i, Random&) { return 0.9 * static_cast<double>(i) - 700; }},
        {"decreasing", [](auto i, Random&) { return -0.3 * static_cast<double>(i); }},
        {"jumps",
         [=](auto i, Random& r) {
             const double jump = i % 37 == 20 ? 200 : i % 91 == 50 ? -200 : 0;
             return jump + 200 * static_cast<double>(i / 300) + uniform(-1, 1, r);
         }},
        {"falls",
         [=](auto i, Random& r) {
             return -200 * static_cast<double>(i / 100) + uniform(-1, 1, r);
         }},
        {"holes",
         [=](auto i, Random& r) { return i < 30 || r() % 3 == 0 ? -INFINITY : uniform(-9, 9, r); }},
        {"nothing", [](auto, Random&) { return -INFINITY; }},
        {"infinity",
         [=](auto i, Random& r) { return i % 600 == 300 ? INFINITY : uniform(-2, 2, r); }},
        {"NaN", [=](auto i, Random& r) { return i == 300 ? NAN : uniform(-2, 2, r); }},
        {"subnormal", [](auto i, Random&) { return i % 2 == 0 ? 1e-40 : -1e-41; }},
        {"one alone", [](auto i, Random&) { return i == 0 ? 1e-3 : -200; }},
        {"huge", [=](auto i, Random& r) { return i % 5 == 3 ? 3e38 : uniform(-3e38, 3e38, r); }},
    };
    return all;
}

/// log(sum(exp(x))) of the elements added so far.
class Exact {
  public:
    void add(long double x) {
        if (std::isnan(x) || std::isnan(largest_)) {
            largest_ = NAN;
        } else if (x > largest_) {
            sum_ = std::isinf(x) ? 1 : sum_ * std::exp(largest_ - x) + 1;
            largest_ = x;
        } else if (!std::isinf(x)) {
            sum_ += std::exp(x - largest_);
        }
    }
    double value() const {
        return static_cast<double>(std::isfinite(largest_) ? largest_ + std::log(sum_) : largest_);
    }

  private:
    long double largest_ = -INFINITY, sum_ = 0;
};

class LogSumExpScans : public testing::TestWithParam<const Kernels*> {
  protected:
    /// Scans lines of the pattern along the lanes or down the rows.
    void check(DType dtype, const Pattern& pattern, std::int64_t length, std::int64_t lines,
               bool down, bool reverse, bool exclusive) {
        const Kernels& table = *GetParam();
        constexpr auto kKind = ir::Reduction::logsumexp;
        const std::int64_t rows = down ? length : lines, lanes = down ? lines : length,
                           stride = lanes + 3;
        Elements x(dtype, rows * stride), out(dtype, rows * stride), carried(dtype, lines);
        const auto index = [&](std::int64_t line, std::int64_t step) {
            const std::int64_t at = reverse ? length - 1 - step : step;
            return down ? at * stride + line : line * stride + at;
        };
        Random random(static_cast<std::uint64_t>(length));
        for (std::int64_t line = 0; line < lines; ++line) {
            carried.set(line, ir::encode(dtype, -INFINITY));
            for (std::int64_t i = 0; i < length; ++i) {
                const double value = ir::round_to(dtype, pattern.value(i, random));
                x.set(index(line, i), ir::encode(dtype, value));
            }
        }
        Strip s;
        s.rows = rows;
        s.lanes = lanes;
        s.in[0] = {x.data(), stride, 1};
        s.out = out.data();
        s.out_row_stride = stride;
        s.accumulator = carried.data();
        s.immediate[0] = reverse;
        s.immediate[1] = exclusive;
        (down ? table.scan_rows : table.scan_lanes)(kKind, dtype)(s);
        for (std::int64_t line = 0; line < lines; ++line) {
            const auto element = [&](std::int64_t i) {
                return ir::decode(dtype, x.get(index(line, i)));
            };
            // The largest size in every 256 elements.
            std::vector<double> sizes(static_cast<std::size_t>(length) / 256 + 2);
            for (std::int64_t i = 0; i < length; ++i) {
                double& size = sizes[static_cast<std::size_t>(i) / 256];
                if (std::isfinite(element(i))) size = std::max(size, std::abs(element(i)));
            }
            Exact exact;
            double most = 0;  // of all pieces that may have begun
            const auto compare = [&](std::uint64_t bits, std::int64_t i) {
                const double got = ir::decode(dtype, bits), want = exact.value();
                const auto piece = static_cast<std::size_t>(i) / 256;
                most = std::max({most, sizes[piece], sizes[std::min(piece + 1, sizes.size() - 1)]});
                if (!std::isfinite(want)) return std::isnan(want) ? std::isnan(got) : got == want;
                const double unit = dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
                return std::abs(got - want) <= unit * (140 + 3.5 * (most + std::abs(want)));
            };
            for (std::int64_t i = 0; i <= length; ++i) {
                const bool ended = i == length;
                if (!exclusive && !ended) exact.add(element(i));
                const std::uint64_t got = ended ? carried.get(line) : out.get(index(line, i));
                ASSERT_TRUE(compare(got, i)) << fmt::format(
                    "{} {} {} of {}, {}{}{}: {} at {}, not {}", table.name, name(dtype),
                    pattern.name, length, down ? "down" : "along", reverse ? " reverse" : "",
                    exclusive ? " exclusive" : "", ir::decode(dtype, got), i, exact.value());
                if (exclusive && !ended) exact.add(element(i));
            }
        }
    }
};

// A result is M + log(s), where M is at least the largest x so far and at most that of its piece of
// 256 elements; s sums exp(x - M). With u = 2^-24, or 2^-53 in f64, the error is the sum of those
// of
// - x - M, which is rounded and multiplied by a rounded log2(e): relative to s less than 1.5 u
//   times M - x for the x that count, hence 1.5 u (|M| + |result|);
// - exponentials, 3 u, and sums: 6 steps within a vector, one for each of up to 128 earlier vectors
//   of the piece, and 2 u of Kahan's sum of the pieces;
// - the logarithm, 2 u, and its unit's, which are added to M: 2 u (|M| + |result|).
TEST_P(LogSumExpScans, AreWithinTheirErrorBound) {
    for (const DType dtype : {DType::f32, DType::f64}) {
        for (const Pattern& pattern : patterns()) {
            for (const bool reverse : {false, true}) {
                for (const bool exclusive : {false, true}) {
                    for (const std::int64_t length : {1, 15, 77, 256, 257, 1000})
                        check(dtype, pattern, length, 2, false, reverse, exclusive);
                    for (const std::int64_t length : {1, 40})
                        check(dtype, pattern, length, 67, true, reverse, exclusive);
                    if (HasFailure()) return;
                }
            }
        }
    }
}

TEST_P(LogSumExpScans, OfLongRowsAreWithinTheSameBound) {
    for (const Pattern& pattern : patterns()) {
        // Without Kahan's summation these equal terms, rounded down each time, exceed the bound.
        const bool longest = pattern.name == "rounding down";
        check(DType::f32, pattern, longest ? 1'000'000 : 20'000, 1, false, false, false);
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, LogSumExpScans, testing::ValuesIn(vector_tables()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
