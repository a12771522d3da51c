// The norms as custom calls.
#include "tilewright/norm.h"

#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

/// Hands out operands, or results, in order; those that the call was made without are undefined.
class Sequence {
  public:
    explicit Sequence(const std::vector<Tensor>& tensors) : next_(tensors.begin()) {}
    Tensor take(bool present = true) { return present ? *next_++ : Tensor(); }

  private:
    std::vector<Tensor>::const_iterator next_;
};

struct Attributes {
    explicit Attributes(const CustomCall& call)
        : layer(call.get<bool>("layer")),
          weight(call.get<bool>("weight")),
          bias(call.get<bool>("bias")),
          residual(call.get<bool>("residual")),
          eps(call.get<double>("eps")) {}

    bool layer, weight, bias, residual;
    double eps;
};

/// Operands x, weight, bias, residual; results y, sum (with a residual), inverse deviation, mean
/// (layer_norm).
void norm(const CustomCall& call) {
    const Attributes given(call);
    Sequence in(call.operands);
    const Tensor x = in.take(), weight = in.take(given.weight), bias = in.take(given.bias);
    const NormOptions options{.eps = given.eps, .residual = in.take(given.residual)};
    Sequence out(call.results);
    const Tensor y = out.take(), sum = out.take(given.residual), deviation = out.take();
    const NormOutput result{y, sum, deviation, out.take(given.layer)};
    if (given.layer) {
        layer_norm_into(result, x, weight, bias, options);
    } else {
        rms_norm_into(result, x, weight, options);
    }
}

/// Operands sum (x without a residual), inverse deviation, mean (layer_norm), weight, bias, dy,
/// dsum (with a residual); results dx, and the gradients of the weight and of the bias.
void norm_backward(const CustomCall& call) {
    const Attributes given(call);
    Sequence in(call.operands);
    const Tensor sum = in.take(), deviation = in.take();
    const NormOutput forward{{}, sum, deviation, in.take(given.layer)};
    const Tensor weight = in.take(given.weight), bias = in.take(given.bias), dy = in.take();
    const Tensor dsum = in.take(given.residual);
    const NormOptions options{.eps = given.eps};
    Sequence out(call.results);
    const Tensor dx = out.take(), dweight = out.take(given.weight);
    const NormGradients result{dx, dweight, out.take(given.bias)};
    if (given.layer) {
        layer_norm_backward_into(result, forward, weight, bias, dy, dsum, options);
    } else {
        rms_norm_backward_into(result, forward, weight, dy, dsum, options);
    }
}

}  // namespace

void add_norm_targets(nb::dict& targets) {
    add_target(targets, "tilewright_norm", "cpu", host_handler<norm>());
    add_target(targets, "tilewright_norm_backward", "cpu", host_handler<norm_backward>());
}

}  // namespace tilewright::jax
