// The dense reference against small cases worked out by hand and against finite differences.
#include "attention/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/throws.h"

namespace tilewright::attn {
namespace {

using testing::throws;

Array random_array(std::vector<std::int64_t> shape, unsigned seed) {
    Array result(std::move(shape));
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (double& x : result.data) x = normal(generator);
    return result;
}

Array filled(std::vector<std::int64_t> shape, std::vector<double> values) {
    Array result(std::move(shape));
    result.data = std::move(values);
    return result;
}

TEST(Reference, TwoKeysByHand) {
    const Array q = filled({1, 1, 1, 1}, {2}), k = filled({1, 1, 2, 1}, {0, std::log(3.0)});
    const Array v = filled({1, 1, 2, 2}, {1, 10, 5, 50});
    ReferenceOptions options;
    options.scale = 0.5;
    const ReferenceOutput result = reference_forward(q, k, v, options);  // weights 1 and 3
    EXPECT_NEAR(result.out(0, 0, 0, 0), 4, 1e-12);
    EXPECT_NEAR(result.out(0, 0, 0, 1), 40, 1e-12);
    EXPECT_NEAR(result.lse(0, 0, 0), std::log(4.0), 1e-12);
    EXPECT_NEAR(result.max_scores(0, 0, 0), std::log(3.0), 1e-12);
}

TEST(Reference, NanReachesItsRowAlone) {
    Array query({1, 1, 3, 2}, 0.5), key({1, 1, 4, 2}, 0.25);
    const Array value({1, 1, 4, 2}, 1.0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    query.row(0, 0, 1)[1] = nan;
    const ReferenceOutput of_query = reference_forward(query, key, value, {});
    EXPECT_EQ(of_query.out.row(0, 0, 0)[0], 1.0);
    EXPECT_TRUE(std::isnan(of_query.out.row(0, 0, 1)[0]));
    EXPECT_TRUE(std::isnan(of_query.lse(0, 0, 1)));
    // A key before others that every row attends to.
    query.row(0, 0, 1)[1] = 0.5;
    key.row(0, 0, 0)[0] = nan;
    const ReferenceOutput of_key = reference_forward(query, key, value, {});
    for (std::int64_t row = 0; row < 3; ++row) {
        EXPECT_TRUE(std::isnan(of_key.out.row(0, 0, row)[0]));
        EXPECT_TRUE(std::isnan(of_key.max_scores(0, 0, row)));
    }
}

TEST(Reference, MasksCountFromTheTopLeft) {
    const Array q = random_array({1, 1, 3, 4}, 1), k = random_array({1, 1, 5, 4}, 2);
    Array v({1, 1, 5, 5});  // the identity: the output is the row of probabilities
    for (int i = 0; i < 5; ++i) v(0, 0, i, i) = 1;
    const auto attended = [&](const ReferenceOptions& options) {
        const Array out = reference_forward(q, k, v, options).out;
        std::string text;
        for (int row = 0; row < 3; ++row, text += ' ')
            for (int kv = 0; kv < 5; ++kv) text += out(0, 0, row, kv) > 0 ? '1' : '0';
        return text;
    };
    ReferenceOptions options;
    EXPECT_EQ(attended(options), "11111 11111 11111 ");
    options.causal = true;
    EXPECT_EQ(attended(options), "10000 11000 11100 ");
    options = {};
    options.window_left = 1;
    EXPECT_EQ(attended(options), "11111 11111 01111 ");
    options.window_right = 0;
    EXPECT_EQ(attended(options), "10000 11000 01100 ");
    options = {};
    options.segment_ids = filled({1, 3}, {0, 7, 1});
    options.kv_segment_ids = filled({1, 5}, {0, 0, 1, 0, 1});
    EXPECT_EQ(attended(options), "11010 00000 00101 ");
}

TEST(Reference, RowWithNothingToAttend) {
    const Array q = random_array({1, 1, 1, 4}, 1), k = random_array({1, 1, 2, 4}, 2), v = k;
    ReferenceOptions options;
    options.segment_ids = filled({1, 1}, {1});
    options.kv_segment_ids = filled({1, 2}, {2, 3});
    const ReferenceOutput result = reference_forward(q, k, v, options);
    EXPECT_EQ(result.out.data, std::vector<double>(4, 0));
    EXPECT_EQ(result.lse(0, 0, 0), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(result.max_scores(0, 0, 0), -std::numeric_limits<double>::infinity());
    const ReferenceGradients g = reference_backward(q, k, v, q, {}, options);
    EXPECT_EQ(g.query.data, std::vector<double>(4, 0));
    EXPECT_EQ(g.key.data, std::vector<double>(8, 0));
    options.mask_value = kFiniteMaskValue;  // the finite form averages
    EXPECT_NEAR(reference_forward(q, k, v, options).out(0, 0, 0, 0),
                (v(0, 0, 0, 0) + v(0, 0, 1, 0)) / 2, 1e-12);
}

TEST(Reference, GradientsAgreeWithFiniteDifferences) {
    Array q = random_array({1, 4, 3, 2}, 1), k = random_array({1, 2, 4, 2}, 2);
    Array v = random_array({1, 2, 4, 3}, 3);
    const Array dout = random_array({1, 4, 3, 3}, 4), dlse = random_array({1, 4, 3}, 5);
    ReferenceOptions options;
    options.causal = true;
    const auto loss = [&] {
        const ReferenceOutput r = reference_forward(q, k, v, options);
        double sum = 0;
        for (std::size_t i = 0; i < dout.data.size(); ++i) sum += r.out.data[i] * dout.data[i];
        for (std::size_t i = 0; i < dlse.data.size(); ++i) sum += r.lse.data[i] * dlse.data[i];
        return sum;
    };
    const ReferenceGradients g = reference_backward(q, k, v, dout, dlse, options);
    const auto expect_gradient = [&](Array& input, const Array& gradient) {
        for (std::size_t i = 0; i < input.data.size(); ++i) {
            const double saved = input.data[i], step = 1e-6;
            input.data[i] = saved + step;
            const double high = loss();
            input.data[i] = saved - step;
            const double low = loss();
            input.data[i] = saved;
            EXPECT_NEAR(gradient.data[i], (high - low) / (2 * step), 1e-7) << i;
        }
    };
    expect_gradient(q, g.query);
    expect_gradient(k, g.key);
    expect_gradient(v, g.value);
}

TEST(Reference, PlainArithmeticIsCloseButRounded) {
    const Array q = random_array({1, 1, 8, 16}, 1), k = random_array({1, 1, 8, 16}, 2), v = k;
    ReferenceOptions plain;
    plain.arithmetic = DType::bf16;
    const Array exact = reference_forward(q, k, v).out,
                rough = reference_forward(q, k, v, plain).out;
    double error = 0;
    for (std::size_t i = 0; i < exact.data.size(); ++i) {
        error = std::max(error, std::abs(exact.data[i] - rough.data[i]));
        EXPECT_EQ(rough.data[i], round_to(rough.data[i], DType::bf16));
    }
    EXPECT_GT(error, 1e-5);
    EXPECT_LT(error, 0.1);
}

TEST(Reference, SizesOfASingleKeyByHand) {
    const auto one = [](double x) { return filled({1, 1, 1, 1}, {x}); };
    ReferenceOptions options;
    options.scale = 0.5;
    // The score and the log-sum-exp are 3: the probability has size 1 + 2 * 3 + 3.
    const ReferenceSizes sizes = reference_sizes(one(2), one(3), one(-5), one(7), options);
    EXPECT_DOUBLE_EQ(sizes.lse.data[0], 2 * 3);
    EXPECT_DOUBLE_EQ(sizes.out.data[0], 10 * 5);
    EXPECT_DOUBLE_EQ(sizes.gradients.value.data[0], 10 * 7);
    EXPECT_DOUBLE_EQ(sizes.gradients.query.data[0], 0.5 * 10 * (35 + 35) * 3);
    EXPECT_DOUBLE_EQ(sizes.gradients.key.data[0], 0.5 * 10 * (35 + 35) * 2);
    // The exact gradients cancel.
    const auto exact = reference_backward(one(2), one(3), one(-5), one(7), {}, options);
    EXPECT_EQ(exact.query.data[0], 0);
    // Scores are rounded to f32, probabilities to bf16.
    options.arithmetic = DType::bf16;
    EXPECT_DOUBLE_EQ(reference_sizes(one(2), one(3), one(-5), {}, options).out.data[0],
                     5 * (1 + 9 * 0x1p-16));
}

// For many terms, sizes are about as large as the results themselves: they hardly loosen bounds.
TEST(Reference, SizesOfManyKeysAreThoseOfTheResults) {
    const auto random = [](unsigned seed) { return random_array({1, 1, 256, 16}, seed); };
    const Array q = random(1), k = random(2), v = random(3), dout = random(4);
    ReferenceOptions options;
    options.arithmetic = DType::bf16;
    const ReferenceSizes sizes = reference_sizes(q, k, v, dout, options);
    const auto exact = reference_backward(q, k, v, dout);
    const auto expect = [](const Array& size, const Array& result) {
        const auto largest = [](const Array& x) {
            double most = 0;
            for (double y : x.data) most = std::max(most, std::abs(y));
            return most;
        };
        EXPECT_LT(largest(size), 4 * largest(result));
        EXPECT_GT(largest(size), 0.5 * largest(result));
    };
    expect(sizes.out, reference_forward(q, k, v).out);
    expect(sizes.gradients.query, exact.query);
    expect(sizes.gradients.key, exact.key);
    expect(sizes.gradients.value, exact.value);
}

TEST(Reference, ZeroLengthsAndBadShapes) {
    const Array q = random_array({1, 2, 3, 4}, 1), none({1, 2, 0, 4});
    EXPECT_EQ(reference_forward(q, none, none).out.data, std::vector<double>(24, 0));
    EXPECT_EQ(reference_forward(none, q, q).out.size(), 0);
    EXPECT_THAT(
        [&] {
            reference_forward(q, Array({1, 2, 3, 5}), q);
        },
        throws("expected key of shape (1, 2, 3, 4) but got (1, 2, 3, 5)"));
    EXPECT_THAT(
        [&] {
            reference_forward(q, Array({1, 4, 3, 4}), Array({1, 4, 3, 4}));
        },
        throws("expected query heads to be a multiple of kv heads but got 2 and 4"));
    ReferenceOptions options;
    options.segment_ids = Array({1, 2});
    EXPECT_THAT([&] { reference_forward(q, q, q, options); },
                throws("expected segment_ids of shape (1, 3) but got (1, 2)"));
}

}  // namespace
}  // namespace tilewright::attn
