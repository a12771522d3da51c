// The norms on PyTorch tensors.
#include "tilewright/norm.h"

#include <span>

#include "bindings.h"
#include "torch/calls.h"

namespace tilewright::torch {
namespace {

/// Returns tensors in order; those that the call was made without are undefined.
class Sequence {
  public:
    explicit Sequence(std::span<const Tensor> tensors) : next_(tensors.begin()) {}
    Tensor take(bool present = true) { return present ? *next_++ : Tensor(); }

  private:
    std::span<const Tensor>::iterator next_;
};

/// One direction of a norm. Forward: operands x, weight, bias, residual; results y, sum (with a
/// residual), inverse deviation, mean (layer_norm). Backward: operands sum (x without a residual),
/// inverse deviation, mean (layer_norm), weight, bias, dy, dsum; results dx, and the gradients of
/// the weight and of the bias.
struct TorchNorm {
    bool backward, layer, weight, bias, residual, dsum;
    double eps;
    Calls calls = {};

    nb::object call(nb::handle site, nb::sequence operands) {
        return calls.call(site, operands, {}, [this](std::span<const Tensor> arrays) {
            Sequence next(arrays);
            backward ? run_backward(next) : run_forward(next);
        });
    }

    void run_forward(Sequence& next) const {
        const Tensor x = next.take(), gain = next.take(weight), shift = next.take(bias);
        const NormOptions options{.eps = eps, .residual = next.take(residual)};
        const Tensor y = next.take(), sum = next.take(residual), deviation = next.take();
        const NormOutput result{y, sum, deviation, next.take(layer)};
        if (layer) {
            layer_norm_into(result, x, gain, shift, options);
        } else {
            rms_norm_into(result, x, gain, options);
        }
    }

    void run_backward(Sequence& next) const {
        const Tensor sum = next.take(), deviation = next.take();
        const NormOutput forward{{}, sum, deviation, next.take(layer)};
        const Tensor gain = next.take(weight), shift = next.take(bias), dy = next.take();
        const Tensor sum_gradient = next.take(dsum);
        const NormOptions options{.eps = eps};
        const Tensor dx = next.take(), dweight = next.take(weight);
        const NormGradients result{dx, dweight, next.take(bias)};
        if (layer) {
            layer_norm_backward_into(result, forward, gain, shift, dy, sum_gradient, options);
        } else {
            rms_norm_backward_into(result, forward, gain, dy, sum_gradient, options);
        }
    }
};

}  // namespace
}  // namespace tilewright::torch

namespace tilewright::python {

void bind_torch_norm(nb::module_& module) {
    using torch::TorchNorm;
    nb::class_<TorchNorm>(module, "TorchNorm")
        .def(
            "__init__",
            [](TorchNorm* self, bool backward, bool layer, bool weight, bool bias, bool residual,
               bool dsum, double eps) {
                new (self) TorchNorm{backward, layer, weight, bias, residual, dsum, eps};
            },
            nb::kw_only(), nb::arg("backward"), nb::arg("layer"), nb::arg("weight"),
            nb::arg("bias"), nb::arg("residual"), nb::arg("dsum"), nb::arg("eps"))
        .def("__call__", &TorchNorm::call, nb::arg("site"), nb::arg("operands"));
}

}  // namespace tilewright::python
