// Norms row by row in f64, or in plain arithmetic of a narrower type.
#include "norm/reference.h"

#include <cmath>

namespace tilewright::norm {
namespace {

enum class Kind { rms_norm, layer_norm };

void expect_shape(const char* argument, const Array& array, std::vector<std::int64_t> expected) {
    if (array.shape == expected) return;
    user_error("norm", "expected {} of shape ({}) but got ({})", argument,
               fmt::join(expected, ", "), fmt::join(array.shape, ", "));
}

void check(const ReferenceInput& input) {
    if (input.x.rank() != 2) user_error("norm", "expected x of rank 2 but got {}", input.x.rank());
    const std::int64_t n = input.x.dim(1);
    if (input.weight.given()) expect_shape("weight", input.weight, {n});
    if (input.bias.given()) expect_shape("bias", input.bias, {n});
    if (input.residual.given()) expect_shape("residual", input.residual, input.x.shape);
}

/// The sum of f(i) over i with every step rounded to Accumulator.
template <typename Accumulator, typename F>
double sum_of(std::int64_t n, F f) {
    Accumulator sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<Accumulator>(f(i));
    return sum;
}

double weight_at(const ReferenceInput& input, std::int64_t i) {
    return input.weight.given() ? input.weight(i) : 1;
}

template <typename Accumulator>
ReferenceOutput forward(const ReferenceInput& input, Kind kind) {
    check(input);
    const std::int64_t rows = input.x.dim(0), n = input.x.dim(1);
    const auto count = static_cast<double>(n);
    ReferenceOutput result{Array(input.x.shape), input.x, Array({rows}), Array({rows})};
    for (std::int64_t r = 0; r < rows; ++r) {
        double* x = result.sum.row(r);
        if (input.residual.given())
            for (std::int64_t i = 0; i < n; ++i)
                x[i] = round_to(x[i] + input.residual(r, i), input.arithmetic);
        const Accumulator mean = static_cast<Accumulator>(
            kind == Kind::rms_norm || n == 0 ? 0 : sum_of<Accumulator>(n, [&](auto i) {
                                                       return x[i];
                                                   }) / count);
        const double squares =
            sum_of<Accumulator>(n, [&](auto i) { return (x[i] - mean) * (x[i] - mean); });
        const Accumulator inverse =
            static_cast<Accumulator>(1 / std::sqrt((n == 0 ? 0 : squares / count) + input.eps));
        result.mean(r) = mean;
        result.inverse_deviation(r) = inverse;
        for (std::int64_t i = 0; i < n; ++i) {
            const double normal = round_to((x[i] - mean) * inverse, input.arithmetic);
            const double scaled = round_to(normal * weight_at(input, i), input.arithmetic);
            result.y(r, i) =
                input.bias.given() ? round_to(scaled + input.bias(i), input.arithmetic) : scaled;
        }
    }
    return result;
}

template <typename Accumulator>
ReferenceGradients backward(const ReferenceInput& input, const Array& dy, const Array& dsum,
                            Kind kind) {
    const ReferenceOutput saved = forward<Accumulator>(input, kind);
    expect_shape("dy", dy, input.x.shape);
    if (dsum.given()) expect_shape("dsum", dsum, input.x.shape);
    const std::int64_t rows = input.x.dim(0), n = input.x.dim(1);
    const auto count = static_cast<double>(n);
    ReferenceGradients result{Array(input.x.shape), Array({n}), Array({n})};
    for (std::int64_t r = 0; r < rows; ++r) {
        const double inverse = saved.inverse_deviation(r);
        const auto normal = [&](std::int64_t i) {
            return static_cast<Accumulator>((saved.sum(r, i) - saved.mean(r)) * inverse);
        };
        const auto scaled = [&](std::int64_t i) {
            return static_cast<Accumulator>(dy(r, i) * weight_at(input, i));
        };
        // With g = dy * weight: dx = r (g - mean(g) - normal * mean(g * normal)); for RMSNorm
        // without mean(g).
        const auto mean_g = static_cast<Accumulator>(
            kind == Kind::rms_norm ? 0 : sum_of<Accumulator>(n, scaled) / count);
        const auto mean_gx = static_cast<Accumulator>(
            sum_of<Accumulator>(n, [&](auto i) { return scaled(i) * normal(i); }) / count);
        for (std::int64_t i = 0; i < n; ++i) {
            const Accumulator product = normal(i) * mean_gx;
            const auto dx = static_cast<Accumulator>(inverse * (scaled(i) - mean_g - product));
            result.x(r, i) = round_to(dx + (dsum.given() ? dsum(r, i) : 0), input.arithmetic);
            result.weight(i) = static_cast<Accumulator>(result.weight(i) + dy(r, i) * normal(i));
            result.bias(i) = static_cast<Accumulator>(result.bias(i) + dy(r, i));
        }
    }
    for (double& g : result.weight.data) g = round_to(g, input.arithmetic);
    for (double& g : result.bias.data) g = round_to(g, input.arithmetic);
    return result;
}

}  // namespace

ReferenceOutput reference_rms_norm(const ReferenceInput& input) {
    return input.arithmetic == DType::f64 ? forward<double>(input, Kind::rms_norm)
                                          : forward<float>(input, Kind::rms_norm);
}

ReferenceOutput reference_layer_norm(const ReferenceInput& input) {
    return input.arithmetic == DType::f64 ? forward<double>(input, Kind::layer_norm)
                                          : forward<float>(input, Kind::layer_norm);
}

ReferenceGradients reference_rms_norm_backward(const ReferenceInput& input, const Array& dy,
                                               const Array& dsum) {
    return input.arithmetic == DType::f64 ? backward<double>(input, dy, dsum, Kind::rms_norm)
                                          : backward<float>(input, dy, dsum, Kind::rms_norm);
}

ReferenceGradients reference_layer_norm_backward(const ReferenceInput& input, const Array& dy,
                                                 const Array& dsum) {
    return input.arithmetic == DType::f64 ? backward<double>(input, dy, dsum, Kind::layer_norm)
                                          : backward<float>(input, dy, dsum, Kind::layer_norm);
}

}  // namespace tilewright::norm
