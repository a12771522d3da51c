// The norms' reference against cases worked out by hand and against finite differences.
#include "norm/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/throws.h"

namespace tilewright::norm {
namespace {

using testing::throws;

Array random_array(std::vector<std::int64_t> shape, unsigned seed) {
    Array result(std::move(shape));
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (double& x : result.data) x = normal(generator);
    return result;
}

TEST(NormReference, AgreesWithValuesByHand) {
    ReferenceInput input;
    input.x = Array({1, 2});
    input.x.data = {1, 7};
    input.weight = Array({2}, 2);
    input.eps = 0;
    EXPECT_NEAR(reference_rms_norm(input).y(0, 1), 2 * 7 / 5.0, 1e-12);  // rms 5
    EXPECT_NEAR(reference_rms_norm(input).inverse_deviation(0), 0.2, 1e-12);
    input.bias = Array({2}, 0.5);
    const ReferenceOutput layer = reference_layer_norm(input);  // mean 4, deviation 3
    EXPECT_NEAR(layer.y(0, 0), -1.5, 1e-12);
    EXPECT_NEAR(layer.y(0, 1), 2.5, 1e-12);
    EXPECT_NEAR(layer.mean(0), 4, 1e-12);
    input.residual = Array({1, 2}, 3);
    EXPECT_NEAR(reference_layer_norm(input).sum(0, 1), 10, 1e-12);
    input.weight = Array({3});
    EXPECT_THAT([&] { reference_rms_norm(input); },
                throws("expected weight of shape (2) but got (3)"));
}

void expect_gradients(bool layer) {
    ReferenceInput input;
    input.x = random_array({3, 5}, 1);
    input.weight = random_array({5}, 2);
    if (layer) input.bias = random_array({5}, 3);
    input.residual = random_array({3, 5}, 4);
    const Array dy = random_array({3, 5}, 5), dsum = random_array({3, 5}, 6);
    const auto loss = [&] {
        const ReferenceOutput r = layer ? reference_layer_norm(input) : reference_rms_norm(input);
        double sum = 0;
        for (std::size_t i = 0; i < dy.data.size(); ++i)
            sum += r.y.data[i] * dy.data[i] + r.sum.data[i] * dsum.data[i];
        return sum;
    };
    const ReferenceGradients g = layer ? reference_layer_norm_backward(input, dy, dsum)
                                       : reference_rms_norm_backward(input, dy, dsum);
    const auto expect_gradient = [&](Array& values, const Array& gradient) {
        for (std::size_t i = 0; i < values.data.size(); ++i) {
            const double saved = values.data[i], step = 1e-6;
            values.data[i] = saved + step;
            const double high = loss();
            values.data[i] = saved - step;
            const double low = loss();
            values.data[i] = saved;
            EXPECT_NEAR(gradient.data[i], (high - low) / (2 * step), 1e-7) << i;
        }
    };
    expect_gradient(input.x, g.x);
    expect_gradient(input.residual, g.x);
    expect_gradient(input.weight, g.weight);
    if (layer) expect_gradient(input.bias, g.bias);
}

TEST(NormReference, RmsNormGradientsAgreeWithFiniteDifferences) {
    expect_gradients(false);
}
TEST(NormReference, LayerNormGradientsAgreeWithFiniteDifferences) {
    expect_gradients(true);
}

}  // namespace
}  // namespace tilewright::norm
