// The norm programs against the f64 reference, over dtypes, lengths and options.
#include "tilewright/norm.h"

#include <gtest/gtest.h>

#include "norm/reference.h"
#include "tests/support/accuracy.h"
#include "tests/support/throws.h"

namespace tilewright::norm {
namespace {

using testing::expect_accurate;
using testing::random_tensor;
using testing::throws;

struct Case {
    std::string name;
    DType dtype = f32, weight_dtype = f32;
    std::int64_t rows = 5, n = 40;
    bool weight = true, bias = true, residual = false;  ///< a bias is for layer_norm only
    bool checked = false;
};

DType statistics(DType dtype) {
    return dtype == f64 ? f64 : f32;
}

void check(const Case& c, bool layer) {
    SCOPED_TRACE(c.name + (layer ? " layer_norm" : " rms_norm"));
    const Tensor x = random_tensor(c.dtype, {c.rows, c.n}, 1);
    const Tensor weight = c.weight ? random_tensor(c.weight_dtype, {c.n}, 2) : Tensor();
    const Tensor bias = c.bias && layer ? random_tensor(c.weight_dtype, {c.n}, 3) : Tensor();
    NormOptions options;
    options.checked = c.checked;
    if (c.residual) options.residual = random_tensor(c.dtype, {c.rows, c.n}, 4);
    const DType output = c.weight ? c.weight_dtype : c.dtype;

    ReferenceInput exact_input{to_array(x), to_array(weight), to_array(bias),
                               to_array(options.residual)};
    if (c.residual) {  // x + residual is stored in x's dtype before the norm
        for (std::size_t i = 0; i < exact_input.x.data.size(); ++i)
            exact_input.x.data[i] =
                round_to(exact_input.x.data[i] + exact_input.residual.data[i], c.dtype);
        exact_input.residual = {};
    }
    ReferenceInput plain_input = exact_input;
    plain_input.arithmetic = output;

    const NormOutput ours =
        layer ? layer_norm(x, weight, bias, options) : rms_norm(x, weight, options);
    const auto run = layer ? reference_layer_norm : reference_rms_norm;
    const ReferenceOutput exact = run(exact_input), plain = run(plain_input);
    EXPECT_EQ(ours.y.dtype(), output);
    expect_accurate("y", ours.y, exact.y, plain.y, output);
    expect_accurate("inverse", ours.inverse_deviation, exact.inverse_deviation,
                    plain.inverse_deviation, statistics(c.dtype));
    if (layer) expect_accurate("mean", ours.mean, exact.mean, plain.mean, statistics(c.dtype));
    EXPECT_EQ(to_array(ours.sum).data, exact.sum.data);

    const Tensor dy = random_tensor(output, {c.rows, c.n}, 5);
    const Tensor dsum = c.residual ? random_tensor(c.dtype, {c.rows, c.n}, 6) : Tensor();
    const NormGradients g = layer ? layer_norm_backward(ours, weight, bias, dy, dsum, options)
                                  : rms_norm_backward(ours, weight, dy, dsum, options);
    const auto back = layer ? reference_layer_norm_backward : reference_rms_norm_backward;
    const ReferenceGradients exact_g = back(exact_input, to_array(dy), to_array(dsum));
    const ReferenceGradients plain_g = back(plain_input, to_array(dy), to_array(dsum));
    expect_accurate("dx", g.x, exact_g.x, plain_g.x, c.dtype);
    EXPECT_EQ(g.weight.defined(), c.weight);
    if (c.weight)
        expect_accurate("dweight", g.weight, exact_g.weight, plain_g.weight, c.weight_dtype);
    if (bias.defined())
        expect_accurate("dbias", g.bias, exact_g.bias, plain_g.bias, c.weight_dtype);
}

void check_both(const Case& c) {
    check(c, false);
    check(c, true);
}

TEST(Norm, Dtypes) {
    for (const auto& [x, w] : std::vector<std::pair<DType, DType>>{
             {f32, f32}, {f64, f64}, {f16, f16}, {bf16, bf16}, {bf16, f32}, {f32, bf16}})
        check_both({fmt::format("{} {}", name(x), name(w)), x, w});
}

TEST(Norm, WithoutWeight) {
    check_both({.name = "no weight", .weight = false, .bias = false});
    check_both({.name = "no bias", .bias = false});
}

TEST(Norm, Residual) {
    check_both({.name = "residual", .residual = true});
    check_both({.name = "bf16", .dtype = bf16, .weight_dtype = f32, .residual = true});
}

TEST(Norm, RowLengths) {
    for (const std::int64_t n : {1, 2, 63, 64, 1000, 8191, 8192, 8193, 12288})
        check_both({.name = fmt::format("n {}", n), .rows = n < 100 ? 20 : 3, .n = n});
    check_both({.name = "a long row", .rows = 2, .n = 262144, .residual = true});
    check_both({.name = "a ragged long row", .dtype = bf16, .rows = 3, .n = 40001});
    check_both({.name = "long rows alone", .rows = 2, .n = 32769, .weight = false, .bias = false});
}

TEST(Norm, ManyRows) {
    check_both({.name = "rows", .rows = 150, .n = 7});
    check_both({.name = "tiles of rows", .rows = 203, .n = 96, .residual = true});
    check_both({.name = "bf16 rows", .dtype = bf16, .weight_dtype = f32, .rows = 70, .n = 300});
    check_both({.name = "two rows a tile", .rows = 67, .n = 1500});
}

// A row's result does not depend on the other rows or on their number.
TEST(Norm, RowsDoNotMeet) {
    for (const std::int64_t n : {64, 500, 2048}) {
        const Tensor x = random_tensor(f32, {70, n}, 1);
        const Tensor all = layer_norm(x, random_tensor(f32, {n}, 2)).y;
        for (const std::int64_t first : {0, 33, 69}) {
            const Tensor one = layer_norm(x.slice(0, first, 1), random_tensor(f32, {n}, 2)).y;
            EXPECT_EQ(to_array(one).data, to_array(all.slice(0, first, 1)).data) << n;
        }
    }
}

TEST(Norm, CheckedModeFindsNothing) {
    check_both({.name = "checked", .residual = true, .checked = true});
}

TEST(Norm, WeightOfSeveralDimensions) {
    const Tensor x = random_tensor(f32, {4, 3, 5}, 1), weight = random_tensor(f32, {3, 5}, 2);
    const NormOutput ours = rms_norm(x, weight);
    EXPECT_EQ(ours.y.shape(), (Tensor::Dims{4, 3, 5}));
    EXPECT_EQ(ours.inverse_deviation.shape(), (Tensor::Dims{4}));
    const NormOutput flat = rms_norm(x.reshape({4, 15}), weight.reshape({15}));
    EXPECT_EQ(ours.y.to_vector<float>(), flat.y.to_vector<float>());
    EXPECT_EQ(rms_norm_backward(ours, weight, x).weight.shape(), weight.shape());
}

TEST(Norm, StridedRows) {
    const Tensor wide = random_tensor(f32, {6, 40}, 1), x = wide.slice(1, 5, 17);
    EXPECT_EQ(rms_norm(x).y.to_vector<float>(), rms_norm(x.contiguous()).y.to_vector<float>());
    const Tensor turned = wide.transpose({1, 0});
    EXPECT_EQ(rms_norm(turned).y.to_vector<float>(),
              rms_norm(turned.contiguous()).y.to_vector<float>());
}

TEST(Norm, IntoTensorsOfTheCaller) {
    for (const std::int64_t n : {40, 40001}) {
        const Tensor x = random_tensor(f32, {2, 3, n}, 1), weight = random_tensor(f32, {n}, 2),
                     dy = random_tensor(f32, {2, 3, n}, 3);
        NormOptions options;
        options.residual = random_tensor(f32, {2, 3, n}, 4);
        const NormOutput want = layer_norm(x, weight, weight, options);
        const NormOutput have = {Tensor::zeros(f32, x.shape()), Tensor::zeros(f32, x.shape()),
                                 Tensor::zeros(f32, {2, 3}), Tensor::zeros(f32, {2, 3})};
        layer_norm_into(have, x, weight, weight, options);
        EXPECT_EQ(to_array(have.y).data, to_array(want.y).data);
        EXPECT_EQ(to_array(have.sum).data, to_array(want.sum).data);
        EXPECT_EQ(to_array(have.mean).data, to_array(want.mean).data);
        EXPECT_EQ(to_array(have.inverse_deviation).data, to_array(want.inverse_deviation).data);
        const NormGradients wanted = layer_norm_backward(want, weight, weight, dy);
        const NormGradients given = {Tensor::zeros(f32, x.shape()), Tensor::zeros(f32, {n}),
                                     Tensor::zeros(f32, {n})};
        layer_norm_backward_into(given, want, weight, weight, dy);
        EXPECT_EQ(to_array(given.x).data, to_array(wanted.x).data);
        EXPECT_EQ(to_array(given.weight).data, to_array(wanted.weight).data);
        EXPECT_EQ(to_array(given.bias).data, to_array(wanted.bias).data);
        EXPECT_THAT([&] { rms_norm_into({}, x, weight); }, throws("expected out.y of type"));
        EXPECT_THAT(
            [&] {
                rms_norm_backward_into({x, x, {}}, want, weight, dy);
            },
            throws("but they share memory"));
        const auto refuses = [](const char* message, const auto& write) {
            try {
                write();
                ADD_FAILURE() << "expected: " << message;
            } catch (const UserError& error) {
                EXPECT_STREQ(error.what(), message);
            }
        };
        const Tensor y = x.clone();
        refuses("[layer_norm_into] expected out.y apart from x but they share memory", [&] {
            layer_norm_into({y, {}, have.inverse_deviation, have.mean}, y, weight, weight);
        });
        refuses(
            "[layer_norm_backward_into] expected out.bias apart from out.weight but they share "
            "memory",
            [&] {
                layer_norm_backward_into({given.x, given.weight, given.weight}, want, weight,
                                         weight, dy);
            });
    }
}

TEST(Norm, NothingToDo) {
    EXPECT_EQ(rms_norm(Tensor::empty(f32, {0, 8})).y.shape(), (Tensor::Dims{0, 8}));
    const Tensor weight = Tensor::full(f32, {8}, 1);
    const NormOutput none = rms_norm(Tensor::empty(f32, {0, 8}), weight);
    const NormGradients g = rms_norm_backward(none, weight, Tensor::empty(f32, {0, 8}));
    EXPECT_EQ(g.weight.to_vector<float>(), std::vector<float>(8, 0));
    // Rows without elements still have statistics.
    const Tensor x = Tensor::empty(f32, {3, 0});
    const NormOutput into{
        Tensor::empty(f32, {3, 0}), {}, Tensor::zeros(f32, {3}), Tensor::full(f32, {3}, 5)};
    layer_norm_into(into, x, {}, {}, {.eps = 0.25});
    EXPECT_EQ(into.inverse_deviation.to_vector<float>(), std::vector<float>(3, 2));
    EXPECT_EQ(into.mean.to_vector<float>(), std::vector<float>(3, 0));
}

TEST(Norm, BadInputIsNamed) {
    const Tensor x = random_tensor(f32, {2, 8}, 1), weight = random_tensor(f32, {8}, 2);
    EXPECT_THAT([&] { rms_norm(Tensor()); }, throws("expected x but it was left out"));
    EXPECT_THAT([&] { rms_norm(x.to(i32)); },
                throws("expected x of f32, f64, f16 or bf16 but got i32[2, 8]"));
    EXPECT_THAT([&] { rms_norm(x, random_tensor(f32, {7}, 1)); },
                throws("expected a weight whose shape ends that of x, f32[2, 8], but got f32[7]"));
    EXPECT_THAT([&] { layer_norm(x, {}, weight); },
                throws("expected a weight with the bias but got none"));
    EXPECT_THAT([&] { rms_norm(x, weight, {.eps = -1}); },
                throws("expected eps of at least 0 but got -1"));
    EXPECT_THAT([&] { rms_norm(x, weight, {.residual = weight}); },
                throws("expected residual of type f32[2, 8] but got f32[8]"));
    EXPECT_THAT([&] { rms_norm_backward(rms_norm(x, weight), weight, weight); },
                throws("expected dy of type f32[2, 8] but got f32[8]"));
}

}  // namespace
}  // namespace tilewright::norm
