// Sorting, indices and user-defined operators against the standard library, on the tile machine and
// on the reference machine.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "ir/evaluate.h"
#include "tests/run/support.h"

namespace tilewright {
namespace {

using testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Few different values, so that many are equal; for floats with NaN, infinities and both zeros.
Tensor values_of(DType dtype, std::int64_t rows, std::int64_t columns) {
    Tensor t = Tensor::empty(dtype, {rows, columns});
    std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns));
    const std::vector<double> special = {kInf, -kInf, kNan, 0.0, -0.0};
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
            const auto drawn = static_cast<std::int64_t>(random() % 23);
            double value = static_cast<double>(is_signed(dtype) ? drawn - 11 : drawn);
            if (dtype == boolean) value = drawn % 2 == 0;
            if (is_float(dtype) && random() % 4 == 0) value = special[random() % special.size()];
            t.set({r, c}, value);
        }
    }
    return t;
}

/// The indices that sort a row, by the definition.
std::vector<std::int32_t> places_of(const Tensor& t, std::int64_t row, bool descending) {
    std::vector<std::int32_t> places(static_cast<std::size_t>(t.dim(1)));
    std::iota(places.begin(), places.end(), 0);
    std::stable_sort(places.begin(), places.end(), [&](std::int32_t a, std::int32_t b) {
        const double x = t.get({row, descending ? b : a}), y = t.get({row, descending ? a : b});
        if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
        return x < y;
    });
    return places;
}

void expect_same(double got, double want) {
    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << got << " not " << want;
}

TEST(Order, SortsEveryDtypeOnBothMachines) {
    for (const DType dtype : {f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64, boolean}) {
        for (const bool interpret : {false, true}) {
            const std::int64_t columns = interpret ? 13 : 77;
            const Tensor x = values_of(dtype, 3, columns);
            for (const bool descending : {false, true}) {
                SCOPED_TRACE(std::string(name(dtype)) + (descending ? " descending" : ""));
                auto sorted = call(
                    kernel("sorted",
                           [=](Ref in, Ref places, Ref out, Ref across) {
                               const Tile t = in.load();
                               places.store(argsort(t, -1, descending));
                               out.store(sort(t, 1, descending));
                               across.store(argsort(transpose(t), 0, descending));
                           }),
                    {.out_type = {{i32, {3, columns}}, {dtype, {3, columns}}, {i32, {columns, 3}}},
                     .interpret = interpret});
                const auto results = sorted.run({x});
                for (std::int64_t r = 0; r < 3; ++r) {
                    const auto want = places_of(x, r, descending);
                    for (std::int64_t c = 0; c < columns; ++c) {
                        const std::int32_t place = want[static_cast<std::size_t>(c)];
                        ASSERT_EQ(results[0].get({r, c}), place) << r << ", " << c;
                        ASSERT_EQ(results[2].get({c, r}), place) << r << ", " << c;
                        expect_same(results[1].get({r, c}), x.get({r, place}));
                    }
                }
            }
        }
    }
}

TEST(Order, ExtremesOfIntegersHaveTheirPlaces) {
    const std::vector<std::int64_t> lows = {5, std::numeric_limits<std::int64_t>::min(),
                                            std::numeric_limits<std::int64_t>::max(), -1, 0};
    const Tensor z = run_once([](Ref x, Ref out) { out.store(sort(x.load())); }, {i64, {5}},
                              {Tensor::from_vector(lows, {5})});
    EXPECT_THAT(z.to_vector<std::int64_t>(), ElementsAre(lows[1], -1, 0, 5, lows[2]));
    const std::vector<std::uint64_t> highs = {5, ~std::uint64_t{0}, 0, std::uint64_t{1} << 63};
    const Tensor u = run_once([](Ref x, Ref out) { out.store(sort(x.load(), 0, true)); },
                              {u64, {4}}, {Tensor::from_vector(highs, {4})});
    EXPECT_THAT(u.to_vector<std::uint64_t>(), ElementsAre(highs[1], highs[3], 5, 0));
}

TEST(Order, SortsRowsOfAnyLength) {
    for (const std::int64_t n : {1, 2, 3, 8, 24, 31, 32, 33, 64, 192, 1000, 4096, 4097}) {
        const Tensor x = values_of(f32, 1, n);
        const Tensor z =
            run_once([](Ref in, Ref out) { out.store(argsort(in.load())); }, {i32, {1, n}}, {x});
        EXPECT_EQ(z.to_vector<std::int32_t>(), places_of(x, 0, false)) << n;
    }
}

TEST(Order, TopKAndByKey) {
    for (const DType dtype : {f32, bf16, i32, u8, i64, f64}) {
        // Counts that are selected by passes, and by sorting.
        for (const std::int64_t count : {1, 7, 20}) {
            const Tensor x = values_of(dtype, 3, 70);
            auto top = call(
                kernel("top",
                       [=](Ref in, Ref values, Ref places, Ref keys, Ref moved) {
                           const auto [v, p] = top_k(in.load(), count);
                           values.store(v);
                           places.store(p);
                           const auto [k, m] = sort_by_key(in.load(), iota({3, 70}, 1) * 2);
                           keys.store(k);
                           moved.store(m);
                       }),
                {.out_type = {
                     {dtype, {3, count}}, {i32, {3, count}}, {dtype, {3, 70}}, {i32, {3, 70}}}});
            const auto results = top.run({x});
            for (std::int64_t r = 0; r < 3; ++r) {
                const auto down = places_of(x, r, true), up = places_of(x, r, false);
                for (std::int64_t c = 0; c < count; ++c) {
                    const std::int32_t place = down[static_cast<std::size_t>(c)];
                    ASSERT_EQ(results[1].get({r, c}), place) << name(dtype) << count;
                    expect_same(results[0].get({r, c}), x.get({r, place}));
                }
                for (std::int64_t c = 0; c < 70; ++c) {
                    const std::int32_t place = up[static_cast<std::size_t>(c)];
                    ASSERT_EQ(results[3].get({r, c}), 2 * place);
                    expect_same(results[2].get({r, c}), x.get({r, place}));
                }
            }
        }
    }
}

TEST(Order, TakesElementsAtPlaces) {
    const Tensor x = ramp({2, 3});
    const Tensor places = Tensor::from_vector<std::int64_t>({2, 0, -1, 1, 3, 1}, {2, 3});
    const Tensor z =
        run_once([](Ref a, Ref i, Ref out) { out.store(take_along_axis(a.load(), i.load())); },
                 {f32, {2, 3}}, {x, places});
    EXPECT_THAT(z.to_vector<float>(), ElementsAre(-4, -6, 0, -2, 0, -2));
    const Tensor column = Tensor::from_vector<std::uint8_t>({1, 0, 1}, {1, 3});
    const Tensor down =
        run_once([](Ref a, Ref i, Ref out) { out.store(take_along_axis(a.load(), i.load(), 0)); },
                 {f32, {1, 3}}, {x, column});
    EXPECT_THAT(down.to_vector<float>(), ElementsAre(-3, -5, -1));
    const Tensor hot = run_once(
        [](Ref i, Ref out) {
            out.store(one_hot(slice(i.load(), {0, 0}, {2, 2}), 3, i32, 0));
        },
        {i32, {3, 2, 2}}, {places});
    EXPECT_THAT(hot.to_vector<std::int32_t>(), ElementsAre(0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0));
}

// Affine maps x -> m x + c do not commute: the order matters.
TEST(Combine, ScansAndReducesInOrder) {
    for (const bool interpret : {false, true}) {
        for (const std::int64_t n : {1, 2, 7, 64, 101}) {
            const auto then = [](auto f, auto g) {
                const auto [m, c] = f;
                const auto [k, d] = g;
                return std::pair(m * k, c * k + d);
            };
            auto maps = call(
                kernel("maps",
                       [=](Ref m, Ref c, Ref up, Ref down, Ref all) {
                           const auto elements = std::pair(m.load(), c.load());
                           up.store(associative_scan(then, elements, 1).second);
                           down.store(associative_scan(then, elements, 1, true).second);
                           all.store(reduce(then, elements, 1).second);
                       }),
                {.out_type = {{i64, {2, n}}, {i64, {2, n}}, {i64, {2}}}, .interpret = interpret});
            Tensor m = Tensor::empty(i64, {2, n}), c = Tensor::empty(i64, {2, n});
            for (std::int64_t i = 0; i < 2 * n; ++i) {
                m.set({i / n, i % n}, static_cast<double>(i * 7 % 5 - 2));
                c.set({i / n, i % n}, static_cast<double>(i * 5 % 7 - 3));
            }
            const auto results = maps.run({m, c});
            const auto up = results[0].to_vector<std::int64_t>(),
                       down = results[1].to_vector<std::int64_t>();
            for (std::int64_t r = 0; r < 2; ++r) {
                // Unsigned, since products wrap.
                std::uint64_t now = 0, back = 0;
                const auto step = [&](std::uint64_t value, std::int64_t i) {
                    const auto at = [&](const Tensor& t) {
                        return static_cast<std::uint64_t>(static_cast<std::int64_t>(t.get({r, i})));
                    };
                    return value * at(m) + at(c);
                };
                for (std::int64_t i = 0; i < n; ++i) {
                    now = step(now, i);
                    back = step(back, n - 1 - i);
                    EXPECT_EQ(static_cast<std::uint64_t>(up[static_cast<std::size_t>(r * n + i)]),
                              now);
                    EXPECT_EQ(static_cast<std::uint64_t>(
                                  down[static_cast<std::size_t>(r * n + n - 1 - i)]),
                              back);
                }
                const auto all = results[2].to_vector<std::int64_t>();
                EXPECT_EQ(static_cast<std::uint64_t>(all[static_cast<std::size_t>(r)]), now);
            }
        }
    }
}

// The decay of a step is one element for all channels, the input is scaled by a scalar of the
// kernel; functions that read a tile of the kernel give the same in steps.
TEST(Combine, DecaysBroadcastAndScalarsAreCaptured) {
    for (const bool interpret : {false, true}) {
        for (const bool reverse : {false, true}) {
            constexpr std::int64_t kSteps = 41, kChannels = 70;
            auto states =
                call(kernel("states",
                            [=](Ref decay, Ref x, Ref scale, Ref y, Ref z) {
                                const Tile factor = scale.load(), zero = zeros({1, kChannels}, f32);
                                const auto elements = std::pair(decay.load(), x.load());
                                const auto then = [&](auto f, auto g) {
                                    return std::pair(f.first * g.first * factor,
                                                     f.second * g.first * factor + g.second);
                                };
                                const auto in_steps = [&](auto f, auto g) {
                                    const auto [m, c] = then(f, g);
                                    return std::pair(m, c + zero);
                                };
                                y.store(associative_scan(then, elements, 0, reverse).second);
                                z.store(associative_scan(in_steps, elements, 0, reverse).second);
                            }),
                     {.out_type = {{f32, {kSteps, kChannels}}, {f32, {kSteps, kChannels}}},
                      .interpret = interpret});
            const Tensor decay = ramp({kSteps, 1}), x = ramp({kSteps, kChannels});
            Tensor small = Tensor::empty(f32, {kSteps, 1});
            for (std::int64_t i = 0; i < kSteps; ++i)
                small.set({i, 0}, std::cos(decay.get({i, 0})));
            const auto results = states.run({small, x, Tensor::from_vector<float>({0.5F}, {})});
            for (std::int64_t c = 0; c < kChannels; ++c) {
                double state = 0;
                for (std::int64_t step = 0; step < kSteps; ++step) {
                    const std::int64_t i = reverse ? kSteps - 1 - step : step;
                    state =
                        step == 0 ? x.get({i, c}) : state * small.get({i, 0}) * 0.5 + x.get({i, c});
                    EXPECT_NEAR(results[0].get({i, c}), state, 1e-3) << i << ", " << c;
                    EXPECT_NEAR(results[1].get({i, c}), state, 1e-3) << i << ", " << c;
                }
            }
        }
    }
}

}  // namespace
}  // namespace tilewright
