// Values of the language's functions, against plain C++.
#include <cmath>
#include <functional>

#include "cpu/simd/kernels.h"
#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::ElementsAre;
using testing::FloatEq;
using testing::Pointwise;

/// Compares f(x) on a few values with `expected`, to a few f32 rounding errors.
void expect_function(const std::function<Tile(Tile)>& f,
                     const std::function<double(double)>& expected,
                     std::vector<float> values = {-2.5f, -1, -0.25f, 0, 0.5f, 1, 3}) {
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor z = run_once([&](Ref x, Ref out) { out.store(f(x.load())); }, {f32, {n}},
                              {Tensor::from_vector(values, {n})});
    for (std::int64_t i = 0; i < n; ++i) {
        const double want = expected(values[static_cast<std::size_t>(i)]);
        const double error = std::abs(z.get({i}) - want);
        EXPECT_TRUE(error <= 1e-6 * std::max(1.0, std::abs(want)))
            << "f(" << values[static_cast<std::size_t>(i)] << ") = " << z.get({i}) << ", not "
            << want;
    }
}

TEST(Elementwise, MatchesTheMathsLibrary) {
    const std::vector<float> positive{0.125f, 0.5f, 1, 2, 7};
    for (const ElementwiseFunction& function : elementwise_functions()) {
        SCOPED_TRACE(function.name);
        if (function.operands == 2) continue;
        std::vector<float> values;
        for (const float x : {-2.5f, -1.0f, -0.25f, 0.0f, 0.125f, 0.5f, 1.0f, 3.0f, 7.0f}) {
            if (std::isfinite(function.value(x, x))) values.push_back(x);
        }
        ASSERT_GE(values.size(), positive.size());
        expect_function([&](Tile x) { return function.trace(x, x, false); },
                        [&](double x) { return function.value(x, x); }, values);
    }
    expect_function([](Tile x) { return erfc(x); }, [](double x) { return std::erfc(x); });
    expect_function([](Tile x) { return cbrt(x); }, [](double x) { return std::cbrt(x); });
    expect_function([](Tile x) { return nextafter(x, 9); },
                    [](double x) { return std::nextafter(static_cast<float>(x), 9.0f); });
    expect_function([](Tile x) { return pow(x, 2.5); }, [](double x) { return std::pow(x, 2.5); },
                    positive);
    expect_function([](Tile x) { return abs(x); }, [](double x) { return std::abs(x); });
    expect_function([](Tile x) { return clamp(x, -1, 0.5); },
                    [](double x) { return std::clamp(x, -1.0, 0.5); });
    expect_function([](Tile x) { return fma(x, 2, 1); }, [](double x) { return 2 * x + 1; });
}

TEST(Elementwise, Activations) {
    expect_function([](Tile x) { return relu(x); }, [](double x) { return std::max(x, 0.0); });
    expect_function([](Tile x) { return sigmoid(x); },
                    [](double x) { return 1 / (1 + std::exp(-x)); });
    expect_function([](Tile x) { return silu(x); },
                    [](double x) { return x / (1 + std::exp(-x)); });
    expect_function([](Tile x) { return softplus(x); },
                    [](double x) { return std::log1p(std::exp(x)); });
    expect_function([](Tile x) { return gelu(x, false); },
                    [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); });
    expect_function([](Tile x) { return gelu(x); },
                    [](double x) {
                        return 0.5 * x *
                               (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
                    });
}

// Runs compiled ahead, where the table has them: the last block of a row overlaps the one before.
TEST(Elementwise, GeluWithBiasAndResidualIsOneFunction) {
    constexpr std::int64_t kRows = 6, kLanes = 1000;
    constexpr std::size_t kCount = kRows * kLanes;
    std::vector<float> x(kCount), bias(kLanes), residual(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
        x[i] = 0.0625f * static_cast<float>(static_cast<int>(i * 37 % 257) - 128);
        residual[i] = 0.125f * static_cast<float>(i % 19);
    }
    for (std::size_t i = 0; i < kLanes; ++i) bias[i] = 0.25f * static_cast<float>(i % 9) - 1;
    const auto exact = [](double v) {
        return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    };
    const auto wide = [](const Ref& ref) { return ref.load().to(f32); };
    for (const DType dtype : {f32, bf16, f16}) {
        const std::vector<Tensor> inputs{Tensor::from_vector(x, {kRows, kLanes}, dtype),
                                         Tensor::from_vector(bias, {kLanes}, dtype),
                                         Tensor::from_vector(residual, {kRows, kLanes}, dtype)};
        const Kernel kernels[] = {
            kernel("gelu", [=](Ref a, Ref z) { z.store(gelu(wide(a)).to(dtype)); }),
            kernel("bias",
                   [=](Ref a, Ref b, Ref z) { z.store(gelu(wide(a) + wide(b)).to(dtype)); }),
            kernel("residual", [=](Ref a, Ref b, Ref r, Ref z) {
                z.store((gelu(wide(a) + wide(b)) + wide(r)).to(dtype));
            })};
        for (const std::int64_t block : {1, 2, 6}) {
            const BlockSpec rows{{block, kLanes}, [](auto i) { return tw::block(i, 0); }};
            for (std::size_t extra = 0; extra < 3; ++extra) {
                const std::vector<BlockSpec> specs{rows, {}, rows};
                const auto few = static_cast<std::ptrdiff_t>(extra + 1);
                const Call program =
                    tw::call(kernels[extra], {.grid = {kRows / block},
                                              .in = {specs.begin(), specs.begin() + few},
                                              .out = {rows},
                                              .out_type = {{dtype, {kRows, kLanes}}}});
                const std::vector<Tensor> given(inputs.begin(), inputs.begin() + few);
                const Tensor z = program.run(given).front();
                const double half_ulp = dtype == f32 ? 1e-6 : dtype == bf16 ? 0x1p-8 : 0x1p-11;
                for (std::int64_t i = 0; i < kRows * kLanes; ++i) {
                    const std::int64_t row = i / kLanes, lane = i % kLanes;
                    const double b = extra > 0 ? inputs[1].get({lane}) : 0,
                                 r = extra > 1 ? inputs[2].get({row, lane}) : 0;
                    const double want = exact(inputs[0].get({row, lane}) + b) + r;
                    ASSERT_NEAR(z.get({row, lane}), want, 2e-6 + half_ulp * std::abs(want))
                        << name(dtype) << " " << extra << ": " << row << ", " << lane;
                }
                if (!cpu::kernels().fused.compiled) continue;
                const std::string listing = program.bytecode(given);
                EXPECT_THAT(listing, testing::HasSubstr("# t")) << listing;
                EXPECT_THAT(listing, testing::Not(testing::HasSubstr("| "))) << listing;
            }
        }
    }
}

TEST(Integers, DivideAsNamed) {
    const Tensor x = Tensor::from_vector<int>({7, -7, 7, -7}, {4});
    const Tensor y = Tensor::from_vector<int>({2, 2, -2, -2}, {4});
    const auto apply = [&](const std::function<Tile(Tile, Tile)>& f) {
        return run_once([&](Ref a, Ref b, Ref z) { z.store(f(a.load(), b.load())); }, {i32, {4}},
                        {x, y})
            .to_vector<int>();
    };
    EXPECT_THAT(apply([](Tile a, Tile b) { return a / b; }), ElementsAre(3, -3, -3, 3));
    EXPECT_THAT(apply([](Tile a, Tile b) { return a % b; }), ElementsAre(1, -1, 1, -1));
    EXPECT_THAT(apply([](Tile a, Tile b) { return floordiv(a, b); }), ElementsAre(3, -4, -4, 3));
    EXPECT_THAT(apply([](Tile a, Tile b) { return floormod(a, b); }), ElementsAre(1, 1, -1, -1));
    EXPECT_THAT(apply([](Tile a, Tile b) { return cdiv(a, b); }), ElementsAre(4, -3, -3, 4));
    EXPECT_THAT(apply([](Tile a, Tile b) { return ((a << 1) ^ (b & 3)) | (~a >> 1); }),
                ElementsAre(-4, -13, -4, -13));
}

TEST(Operators, CompoundOnesAreTheirOperations) {
    const Tensor x = Tensor::from_vector<int>({7, -7, 12, 5}, {4});
    const auto apply = [&](const std::function<void(Tile&)>& f) {
        return run_once(
                   [&](Ref a, Ref z) {
                       Tile value = a.load();
                       f(value);
                       z.store(value);
                   },
                   {i32, {4}}, {x})
            .to_vector<int>();
    };
    EXPECT_THAT(apply([](Tile& v) { v %= 4; }), ElementsAre(3, -3, 0, 1));
    EXPECT_THAT(apply([](Tile& v) { v &= 6; }), ElementsAre(6, 0, 4, 4));
    EXPECT_THAT(apply([](Tile& v) { v |= 1; }), ElementsAre(7, -7, 13, 5));
    EXPECT_THAT(apply([](Tile& v) { v ^= v; }), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(apply([](Tile& v) { v <<= 2; }), ElementsAre(28, -28, 48, 20));
    EXPECT_THAT(apply([](Tile& v) { v >>= 1; }), ElementsAre(3, -4, 6, 2));
    EXPECT_THAT(apply([](Tile& v) { v <<= iota(4); }), ElementsAre(7, -14, 48, 40));
    // A kernel's scalars are tiles of rank 0.
    EXPECT_THAT(apply([](Tile& v) {
                    Tile i = constant(9, i32);
                    i %= 5;
                    v += i;
                }),
                ElementsAre(11, -3, 16, 9));
}

TEST(Logic, WorksOnBool) {
    const Tensor z = run_once(
        [](Ref x, Ref out) {
            const Tile v = x.load();
            out.store(where((v > 1 && !(v == 3)) || v < 0, v, -100));
        },
        {f32, {5}}, {Tensor::from_vector<float>({-2, 0, 2, 3, 4}, {5})});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(-2, -100, 2, -100, 4));
}

TEST(Shapes, MoveElements) {
    const Tensor z = run_once(
        [](Ref x, Ref out) {
            const Tile t = x.load();                                               // [2, 3]
            const Tile tall = concatenate({transpose(t), reshape(t, {3, 2})}, 0);  // [6, 2]
            const Tile every_other = slice(tall, {0, 0}, {3, 2}, {2, 1});
            out.store(every_other + expand_dims(iota(3), 1) * 100);
        },
        {f32, {3, 2}}, {Tensor::arange(f32, 6).reshape({2, 3})});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(0, 3, 102, 105, 202, 203));
}

TEST(Reductions, CoverAxesAndKeepdims) {
    const Tensor x = Tensor::from_vector<float>({3, 1, 2, -4, 9, 0}, {2, 3});
    const auto rows = [&](const std::function<Tile(Tile)>& f) {
        return run_once([&](Ref a, Ref z) { z.store(f(a.load()).to(f32)); }, {f32, {2}}, {x})
            .to_vector<float>();
    };
    EXPECT_THAT(rows([](Tile t) { return sum(t, -1); }), ElementsAre(6, 5));
    EXPECT_THAT(rows([](Tile t) { return prod(t, 1); }), ElementsAre(6, 0));
    EXPECT_THAT(rows([](Tile t) { return max(t, 1); }), ElementsAre(3, 9));
    EXPECT_THAT(rows([](Tile t) { return min(t, 1); }), ElementsAre(1, -4));
    EXPECT_THAT(rows([](Tile t) { return argmax(t, 1); }), ElementsAre(0, 1));
    EXPECT_THAT(rows([](Tile t) { return argmin(t, 1); }), ElementsAre(1, 0));
    EXPECT_THAT(rows([](Tile t) { return any(t > 5, 1); }), ElementsAre(0, 1));
    EXPECT_THAT(rows([](Tile t) { return tw::all(t > 0, 1); }), ElementsAre(1, 0));
    EXPECT_THAT(rows([](Tile t) { return squeeze(mean(t, 1, true), 1) * 3; }), ElementsAre(6, 5));
    EXPECT_THAT(rows([](Tile t) { return sum(t > 0, 1); }), ElementsAre(3, 1));
}

TEST(Scans, RunAlongAnAxis) {
    const Tensor x = Tensor::from_vector<float>({3, 1, 2, -4}, {4});
    const auto scanned = [&](const std::function<Tile(Tile)>& f) {
        return run_once([&](Ref a, Ref z) { z.store(f(a.load())); }, {f32, {4}}, {x})
            .to_vector<float>();
    };
    EXPECT_THAT(scanned([](Tile t) { return cumsum(t); }), ElementsAre(3, 4, 6, 2));
    EXPECT_THAT(scanned([](Tile t) { return cumsum(t, 0, true); }), ElementsAre(2, -1, -2, -4));
    EXPECT_THAT(scanned([](Tile t) { return cumprod(t); }), ElementsAre(3, 3, 6, -24));
    EXPECT_THAT(scanned([](Tile t) { return cummax(t); }), ElementsAre(3, 3, 3, 3));
    EXPECT_THAT(scanned([](Tile t) { return cummin(t); }), ElementsAre(3, 1, 1, -4));
    // Far above and below the range of exp.
    const float two = std::log(2.0F), inf = std::numeric_limits<float>::infinity();
    EXPECT_THAT(scanned([](Tile t) { return cumlogsumexp(t * 0 + 1000); }),
                Pointwise(FloatEq(), std::vector<float>{1000, 1000 + two, 1000 + std::log(3.0F),
                                                        1000 + 2 * two}));
    EXPECT_THAT(scanned([&](Tile t) { return cumlogsumexp(where(t < 2, -inf, 0), 0, true); }),
                Pointwise(FloatEq(), std::vector<float>{two, 0, 0, -inf}));
    // Integers are converted to f32.
    EXPECT_THAT(scanned([](Tile t) { return cumlogsumexp(t.to(i32) * 0); }),
                Pointwise(FloatEq(), std::vector<float>{0, two, std::log(3.0F), 2 * two}));
}

TEST(Dot, TransposesBatchesAndAccumulates) {
    const Tensor a = ramp({2, 3, 4}), b = ramp({2, 5, 4});
    const Tensor z = run_once(
        [](Ref x, Ref y, Ref out) {
            out.store(dot(x.load(), y.load(), {.trans_b = true, .acc = ones({2, 3, 5}, f32)}));
        },
        {f32, {2, 3, 5}}, {a, b});
    double want = 1;
    for (std::int64_t k = 0; k < 4; ++k) want += a.get({{1, 2, k}}) * b.get({{1, 4, k}});
    EXPECT_EQ(z.get({1, 2, 4}), want);
}

TEST(Loops, ComputeWhatTheySay) {
    const Tensor z = run_once(
        [](Ref out) {
            out.at(0).store(for_loop(0, 5, 0, [](auto i, auto acc) { return acc + i; }));
            out.at(1).store(for_loop(1, 8, 3, 0, [](auto i, auto acc) { return acc * 10 + i; }));
            out.at(2).store(while_loop(
                constant(1, i64), [](auto v) { return v < 100; }, [](auto v) { return v * 3; }));
            out.at(3).store(cond(
                out.at(0).load() == 10, [] { return constant(1, i64); },
                [] { return constant(2, i64); }));
            when(out.at(0).load() == 11, [&] { out.at(3).store(77); });
            const auto [last, ys] = scan(constant(0, i64), iota(4, i64),
                                         [](auto acc, auto x) { return std::pair(acc + x, acc); });
            out.at(4).store(last * 100 + sum(ys));
            // Fibonacci numbers; each step also returns its index.
            const auto [pair, steps] =
                scan(std::pair(0, constant(1, i64)), iota(50, i64), [](auto state, auto i) {
                    auto [a, b] = state;
                    return std::pair(std::pair(b, a + b), std::pair(a, i));
                });
            out.at(5).store(std::get<0>(pair));
            out.at(6).store(max(std::get<0>(steps)) + sum(std::get<1>(steps)));
        },
        {i64, {7}}, {});
    EXPECT_THAT(z.to_vector<std::int64_t>(),
                ElementsAre(10, 147, 243, 1, 604, 12586269025, 7778742049 + 1225));
}

TEST(Random, IsUniformAndReproducible) {
    const auto draw = [](int seed) {
        return run_once([&](Ref z) { z.store(uniform(seed, iota(1000))); }, {f32, {1000}}, {})
            .to_vector<float>();
    };
    const auto values = draw(7);
    double mean = 0;
    for (float v : values) {
        EXPECT_TRUE(v >= 0 && v < 1);
        mean += v / 1000.0;
    }
    EXPECT_NEAR(mean, 0.5, 0.05);
    EXPECT_EQ(values, draw(7));
    EXPECT_NE(values, draw(8));
}

TEST(Casts, RoundTruncateAndKeepBits) {
    const Tensor z = run_once(
        [](Ref x, Ref out) {
            const Tile t = x.load();
            out.at(0).store(t.to(i8).to(i32));
            out.at(1).store(bitcast(t, i32));
            out.at(2).store((t.to(bf16).to(f32) == t).to(i32));
        },
        {i32, {3, 2}}, {Tensor::from_vector<float>({1.75f, 1000.001f}, {2})});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(1, 127, 0x3fe00000, 0x447a0010, 1, 0));
}

}  // namespace
}  // namespace tilewright
