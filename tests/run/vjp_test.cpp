// Derivatives inside of kernels against finite differences in f64 and against loops.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "tests/run/support.h"

namespace tilewright {
namespace {

using Tiles = std::vector<Tile>;
using Body = std::function<Tiles(Tiles)>;

/// Factors near 1, so that long products keep their size.
Tensor near_one(const Tensor::Dims& shape, unsigned seed, double low = 0.6, double high = 1.4) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> values(low, high);
    Tensor t = Tensor::empty(f64, shape);
    Tensor flat = t.reshape({t.size()});
    for (std::int64_t i = 0; i < t.size(); ++i) flat.set({i}, values(random));
    return t;
}

struct Case {
    const char* name;
    std::size_t inputs;
    std::size_t outputs;
    Tensor::Dims shape;
    Body body;
    bool interpret = false;
    std::vector<Tensor::Dims> out_shapes = {};  ///< where they are not `shape`
};

Tensor::Dims out_shape(const Case& of, std::size_t i) {
    return of.out_shapes.empty() ? of.shape : of.out_shapes[i];
}

/// sum_i <w_i, y_i>.
double weighted(const Call& forward, const std::vector<Tensor>& inputs,
                const std::vector<Tensor>& weights) {
    double sum = 0;
    const std::vector<Tensor> y = forward.run(inputs);
    for (std::size_t i = 0; i < y.size(); ++i) {
        const auto a = y[i].to_vector<double>(), b = weights[i].to_vector<double>();
        for (std::size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
    }
    return sum;
}

void expect_gradients(const Case& of) {
    SCOPED_TRACE(of.name);
    std::vector<TensorType> values, gradients;
    for (std::size_t i = 0; i < of.outputs; ++i) values.push_back({f64, out_shape(of, i)});
    for (std::size_t i = 0; i < of.inputs; ++i) gradients.push_back({f64, of.shape});
    const auto loaded = [](std::span<const Ref> refs, std::size_t from, std::size_t count) {
        Tiles tiles;
        for (std::size_t i = 0; i < count; ++i) tiles.push_back(refs[from + i].load());
        return tiles;
    };
    const Call forward = call(kernel("forward",
                                     [&](std::span<const Ref> refs) {
                                         const Tiles y = of.body(loaded(refs, 0, of.inputs));
                                         for (std::size_t i = 0; i < of.outputs; ++i)
                                             refs[of.inputs + i].store(y[i]);
                                     }),
                              {.out_type = values, .interpret = of.interpret});
    const Call backward =
        call(kernel("backward",
                    [&](std::span<const Ref> refs) {
                        const auto pullback = vjp(of.body, loaded(refs, 0, of.inputs)).second;
                        const Tiles d = pullback(loaded(refs, of.inputs, of.outputs));
                        for (std::size_t i = 0; i < of.inputs; ++i)
                            refs[of.inputs + of.outputs + i].store(d[i]);
                    }),
             {.out_type = gradients, .interpret = of.interpret});
    std::vector<Tensor> inputs, weights;
    for (std::size_t i = 0; i < of.inputs; ++i)
        inputs.push_back(near_one(of.shape, static_cast<unsigned>(i)));
    for (std::size_t i = 0; i < of.outputs; ++i)
        weights.push_back(near_one(out_shape(of, i), static_cast<unsigned>(20 + i), -1, 1));
    std::vector<Tensor> both = inputs;
    both.insert(both.end(), weights.begin(), weights.end());
    const std::vector<Tensor> ours = backward.run(both);
    for (std::size_t i = 0; i < of.inputs; ++i) {
        Tensor flat = inputs[i].reshape({inputs[i].size()});
        const Tensor got = ours[i].reshape({ours[i].size()});
        for (std::int64_t j = 0; j < flat.size(); ++j) {
            constexpr double kStep = 1e-5;
            const double at = flat.get({j});
            flat.set({j}, at + kStep);
            const double high = weighted(forward, inputs, weights);
            flat.set({j}, at - kStep);
            const double low = weighted(forward, inputs, weights);
            flat.set({j}, at);
            const double want = (high - low) / (2 * kStep);
            // The error of central differences: the step squared, plus rounding divided by it.
            ASSERT_NEAR(got.get({j}), want, 1e-7 * std::max(1.0, std::abs(want)))
                << "input " << i << ", element " << j;
        }
    }
}

Tiles affine_maps(Tiles a, Tiles b) {
    return {a[0] * b[0], a[1] * b[0] + b[1]};
}

/// Products of matrices of 2 by 2, all of whose elements depend on each other.
Tiles matrices(Tiles a, Tiles b) {
    return {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],  //
            a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
}

Body scanned(Tiles (*combine)(Tiles, Tiles), int axis, bool reverse, std::size_t outputs) {
    return [=](Tiles x) {
        Tiles y = associative_scan(combine, x, axis, reverse);
        y.erase(y.begin(), y.end() - static_cast<std::ptrdiff_t>(outputs));
        return y;
    };
}

TEST(Vjp, ScansWithFunctionsAgreeWithDifferences) {
    for (const bool interpret : {false, true}) {
        for (const int axis : {0, 1}) {
            for (const bool reverse : {false, true}) {
                SCOPED_TRACE("axis " + std::to_string(axis) + (reverse ? " reverse" : "") +
                             (interpret ? " interpreted" : ""));
                for (const Tensor::Dims& shape :
                     {Tensor::Dims{5, 7}, {3, 1}, {1, 3}, {2, 2}, {4, 37}, {33, 3}}) {
                    if (interpret && shape[0] * shape[1] > 40) continue;
                    SCOPED_TRACE(testing::PrintToString(shape));
                    expect_gradients({"recurrence", 2, 1, shape,
                                      scanned(affine_maps, axis, reverse, 1), interpret});
                    expect_gradients({"recurrence and products", 2, 2, shape,
                                      scanned(affine_maps, axis, reverse, 2), interpret});
                }
                expect_gradients(
                    {"matrices", 4, 4, {3, 6}, scanned(matrices, axis, reverse, 4), interpret});
                expect_gradients({"a column of matrices",
                                  4,
                                  2,
                                  {7, 2},
                                  scanned(matrices, axis, reverse, 2),
                                  interpret});
            }
        }
    }
}

TEST(Vjp, FunctionsOfElementsAgreeWithDifferences) {
    using Combine = Tile (*)(Tile, Tile);
    const std::vector<std::pair<const char*, Combine>> functions = {
        {"sum", [](Tile a, Tile b) { return a + b; }},
        {"product", [](Tile a, Tile b) { return a * b; }},
        {"maximum", [](Tile a, Tile b) { return maximum(a, b); }},
        {"last", [](Tile, Tile b) { return b; }},
        {"first", [](Tile a, Tile) { return a; }},
        {"log of sums", [](Tile a, Tile b) { return log(exp(a) + exp(b)); }},
        {"parallel resistors", [](Tile a, Tile b) { return a * b / (a + b); }},
        {"hypotenuse", [](Tile a, Tile b) { return sqrt(a * a + b * b); }},
        {"chosen", [](Tile a, Tile b) { return where(b > 1, b, a); }}};
    for (const auto& [name, combine] : functions) {
        for (const bool reverse : {false, true}) {
            expect_gradients({name, 1, 1, {4, 19}, [&](Tiles x) {
                                  return Tiles{associative_scan(combine, x[0], 1, reverse)};
                              }});
            expect_gradients({name, 1, 1, {19, 4}, [&](Tiles x) {
                                  return Tiles{associative_scan(combine, x[0], 0, reverse)};
                              }});
        }
        expect_gradients({name,
                          1,
                          1,
                          {4, 11},
                          [&](Tiles x) { return Tiles{reduce(combine, x[0], 1)}; },
                          false,
                          {{4}}});
        expect_gradients({name,
                          1,
                          1,
                          {11, 4},
                          [&](Tiles x) { return Tiles{reduce(combine, x[0], 0, true)}; },
                          false,
                          {{1, 4}}});
    }
}

TEST(Vjp, ScalarsThatTheFunctionTakesHaveGradients) {
    // m -> s m: composed, s is applied once for each step.
    expect_gradients({"scaled sums", 2, 1, {3, 9}, [](Tiles x) {
                          const Tile scale = mean(mean(x[1], 1), 0);
                          return Tiles{associative_scan(
                              [&](Tile a, Tile b) { return a + b + scale * a * b; }, x[0], 1)};
                      }});
    // A tile of the kernel: the scan is made in steps, whose derivative is that of slices.
    expect_gradients({"one factor for each row", 2, 1, {3, 9}, [](Tiles x) {
                          const Tile scale = slice(x[1], {0, 0}, {3, 1});
                          return Tiles{associative_scan(
                              [&](Tile a, Tile b) { return a + b + scale * a * b; }, x[0], 1)};
                      }});
}

TEST(Vjp, OtherOperationsOfTilesAgreeWithDifferences) {
    const std::vector<std::pair<const char*, Body>> functions = {
        {"cumsum", [](Tiles x) { return Tiles{cumsum(x[0], 1)}; }},
        {"cumsum reverse", [](Tiles x) { return Tiles{cumsum(x[0], 0, true)}; }},
        {"cumprod", [](Tiles x) { return Tiles{cumprod(x[0], 1)}; }},
        {"cummax", [](Tiles x) { return Tiles{cummax(x[0], 1, true)}; }},
        {"cummin", [](Tiles x) { return Tiles{cummin(x[0], 0)}; }},
        {"slices",
         [](Tiles x) {
             return Tiles{concatenate(
                 {slice(x[0], {1, 0}, {4, 5}, {1, 2}) * x[0].dim(0), slice(x[0], {0, 4}, {4, 4})},
                 1)};
         }},
    };
    for (const auto& [name, body] : functions) {
        const bool is_slices = std::string(name) == "slices";
        expect_gradients(
            {name,
             1,
             1,
             {5, 9},
             body,
             false,
             is_slices ? std::vector<Tensor::Dims>{{4, 9}} : std::vector<Tensor::Dims>{}});
    }
    expect_gradients({"softmax of a product", 2, 1, {6, 6}, [](Tiles x) {
                          const Tile scores = dot(x[0], transpose(x[1]));
                          const Tile e = exp(scores - max(scores, 1, true));
                          return Tiles{dot(e / sum(e, 1, true), x[1])};
                      }});
}

TEST(Vjp, SecondDerivativesAgreeWithDifferences) {
    for (const bool reverse : {false, true}) {
        expect_gradients({"gradient of a recurrence", 2, 2, {2, 6}, [&](Tiles x) {
                              const auto pullback =
                                  vjp(scanned(affine_maps, 1, reverse, 1), x).second;
                              return pullback(Tiles{x[0] * x[1]});
                          }});
    }
}

TEST(Vjp, AdjointsOfF32AndF64ThatDependOnEachOtherAreF64) {
    // Each depends on the other's predecessor, times values that are 0.
    const auto gradient = [](bool narrow_first, const Tensor& x) {
        const auto combine = [=](std::pair<Tile, Tile> a, std::pair<Tile, Tile> b) {
            const auto [narrow, wide] = narrow_first ? a : std::pair(a.second, a.first);
            const auto [narrow_next, wide_next] = narrow_first ? b : std::pair(b.second, b.first);
            const Tile product = wide * wide_next + narrow.to(f64) * (wide_next * 0);
            const Tile other = narrow * narrow_next + wide.to(f32) * (narrow_next * 0);
            return narrow_first ? std::pair(other, product) : std::pair(product, other);
        };
        return run_once(
                   [&](Ref in, Ref out) {
                       const auto products = [&](Tile v) {
                           const Tile ones = full({40}, 1, f32);
                           const auto y = associative_scan(
                               combine, narrow_first ? std::pair(ones, v) : std::pair(v, ones));
                           return narrow_first ? y.second : y.first;
                       };
                       out.store(vjp(products, in.load()).second(1.0));
                   },
                   {f64, {40}}, {x})
            .to_vector<double>();
    };
    const Tensor x = near_one({40}, 1);
    const std::vector<double> want = gradient(false, x), got = gradient(true, x);
    for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-13 * std::abs(want[i])) << i;
}

TEST(Vjp, EqualExtremesShareTheCotangent) {
    const Tensor ones = Tensor::from_vector(std::vector<double>(4, 1.0), {4});
    const auto gradient = [&](auto body) {
        return run_once([=](Ref x, Ref d) { d.store(vjp(body, x.load()).second(1.0)); }, {f64, {4}},
                        {ones})
            .template to_vector<double>();
    };
    // y_i of i + 1 equal elements: each step halves what came before.
    EXPECT_THAT(gradient([](Tile v) {
                    const Tile y =
                        associative_scan([](Tile a, Tile b) { return maximum(a, b); }, v);
                    return slice(y, {3}, {1});
                }),
                testing::ElementsAre(0.125, 0.125, 0.25, 0.5));
}

TEST(Vjp, IntegersAmongTheElementsHaveNoCotangent) {
    // The largest element so far, and its place.
    const Tensor x = Tensor::from_vector(std::vector<float>{3, 1, 4, 1, 5, 9, 2, 6}, {8});
    const Tensor d = run_once(
        [](Ref in, Ref out) {
            const auto larger = [](auto a, auto b) {
                const Tile keep = a.first >= b.first;
                return std::pair(where(keep, a.first, b.first), where(keep, a.second, b.second));
            };
            const auto [y, pullback] = vjp(
                [&](Tile v) { return associative_scan(larger, std::pair(v, iota(8))); }, in.load());
            out.store(pullback(std::pair(1.0, y.second)));
        },
        {f32, {8}}, {x});
    EXPECT_THAT(d.to_vector<float>(), testing::ElementsAre(2, 0, 2, 0, 1, 3, 0, 0));
}

TEST(Vjp, NarrowFloatsHaveGradientsInF32) {
    for (const DType dtype : {f32, f16, bf16}) {
        const Tensor::Dims shape = {6, 150};
        const Tensor a = near_one(shape, 1, 0.5, 1).to(dtype), b = near_one(shape, 2).to(dtype),
                     dh = near_one(shape, 3).to(dtype);
        const auto results =
            call(kernel("backward",
                        [](Ref in, Ref add, Ref given, Ref da, Ref db) {
                            const auto pullback =
                                vjp(scanned(affine_maps, 1, false, 1), Tiles{in.load(), add.load()})
                                    .second;
                            const Tiles d = pullback(Tiles{given.load()});
                            EXPECT_EQ(d[0].dtype(), f32);
                            da.store(d[0]);
                            db.store(d[1]);
                        }),
                 {.out_type = {{f32, shape}, {f32, shape}}})
                .run({a, b, dh});
        for (std::int64_t r = 0; r < shape[0]; ++r) {
            std::vector<double> h(1, 0);
            for (std::int64_t i = 0; i < shape[1]; ++i)
                h.push_back(a.get({r, i}) * h.back() + b.get({r, i}));
            double later = 0;
            // h was rounded to the dtype on the way: two sums that differ by its precision.
            const double tolerance = dtype == f32 ? 1e-5 : dtype == f16 ? 2e-3 : 2e-2;
            for (std::int64_t i = shape[1] - 1; i >= 0; --i) {
                const double s = dh.get({r, i}) + later;
                const double da = i == 0 ? 0 : s * h[static_cast<std::size_t>(i)];
                ASSERT_NEAR(results[1].get({r, i}), s, 1e-5 * s) << name(dtype) << i;
                ASSERT_NEAR(results[0].get({r, i}), da, tolerance * da) << name(dtype) << i;
                later = s * a.get({r, i});
            }
        }
    }
}

}  // namespace
}  // namespace tilewright
