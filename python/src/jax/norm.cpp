// The norms as custom calls.
#include "tilewright/norm.h"

#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

/// Returns operands, or results, in order; those that the call was made without are undefined.
class Sequence {
  public:
    explicit Sequence(const std::vector<Tensor>& tensors) : next_(tensors.begin()) {}
    Tensor take(bool present = true) { return present ? *next_++ : Tensor(); }

  private:
    std::vector<Tensor>::const_iterator next_;
};

struct Norm {
    explicit Norm(const Attributes& given)
        : layer(given.get<bool>("layer")),
          weight(given.get<bool>("weight")),
          bias(given.get<bool>("bias")),
          residual(given.get<bool>("residual")),
          eps(given.get<double>("eps")) {}

    bool repeats() const { return true; }

    bool layer, weight, bias, residual;
    double eps;
};

/// Operands x, weight, bias, residual; results y, sum (with a residual), inverse deviation, mean
/// (layer_norm).
struct NormSite : Norm {
    using Norm::Norm;
    void run(const CustomCall& call) const {
        Sequence in(call.operands);
        const Tensor x = in.take(), gain = in.take(weight), shift = in.take(bias);
        const NormOptions options{.eps = eps, .residual = in.take(residual)};
        Sequence out(call.results);
        const Tensor y = out.take(), sum = out.take(residual), deviation = out.take();
        const NormOutput result{y, sum, deviation, out.take(layer)};
        if (layer) {
            layer_norm_into(result, x, gain, shift, options);
        } else {
            rms_norm_into(result, x, gain, options);
        }
    }
};

/// Operands sum (x without a residual), inverse deviation, mean (layer_norm), weight, bias, dy,
/// dsum (with a residual); results dx, and the gradients of the weight and of the bias.
struct NormBackwardSite : Norm {
    using Norm::Norm;
    void run(const CustomCall& call) const {
        Sequence in(call.operands);
        const Tensor sum = in.take(), deviation = in.take();
        const NormOutput forward{{}, sum, deviation, in.take(layer)};
        const Tensor gain = in.take(weight), shift = in.take(bias), dy = in.take();
        const Tensor dsum = in.take(residual);
        const NormOptions options{.eps = eps};
        Sequence out(call.results);
        const Tensor dx = out.take(), dweight = out.take(weight);
        const NormGradients result{dx, dweight, out.take(bias)};
        if (layer) {
            layer_norm_backward_into(result, forward, gain, shift, dy, dsum, options);
        } else {
            rms_norm_backward_into(result, forward, gain, dy, dsum, options);
        }
    }
};

}  // namespace

void add_norm_targets(nb::list& targets) {
    add_target<NormSite, CommandBuffers::yes>(targets, "tilewright_norm");
    add_target<NormBackwardSite, CommandBuffers::yes>(targets, "tilewright_norm_backward");
}

}  // namespace tilewright::jax
