// Bindings of the norms in tilewright._core.
#include "tilewright/norm.h"

#include "bindings.h"

namespace tilewright::python {

void bind_norm(nb::module_& module) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<NormOutput>(module, "NormOutput")
        .def_ro("y", &NormOutput::y)
        .def_ro("sum", &NormOutput::sum)
        .def_ro("inverse_deviation", &NormOutput::inverse_deviation)
        .def_ro("mean", &NormOutput::mean);
    nb::class_<NormGradients>(module, "NormGradients")
        .def_ro("x", &NormGradients::x)
        .def_ro("weight", &NormGradients::weight)
        .def_ro("bias", &NormGradients::bias);
    const auto options = [](double eps, const Tensor& residual) {
        return NormOptions{.eps = eps, .residual = residual};
    };
    module.def(
        "rms_norm",
        [=](const Tensor& x, const Tensor& weight, double eps, const Tensor& residual) {
            return rms_norm(x, weight, options(eps, residual));
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("residual"), Released());
    module.def(
        "layer_norm",
        [=](const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
            const Tensor& residual) { return layer_norm(x, weight, bias, options(eps, residual)); },
        nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"), nb::arg("residual"),
        Released());
    module.def(
        "rms_norm_backward",
        [=](const NormOutput& forward, const Tensor& weight, const Tensor& dy, const Tensor& dsum,
            double eps, const Tensor& residual) {
            return rms_norm_backward(forward, weight, dy, dsum, options(eps, residual));
        },
        nb::arg("forward"), nb::arg("weight"), nb::arg("dy"), nb::arg("dsum"), nb::arg("eps"),
        nb::arg("residual"), Released());
    module.def(
        "layer_norm_backward",
        [=](const NormOutput& forward, const Tensor& weight, const Tensor& bias, const Tensor& dy,
            const Tensor& dsum, double eps, const Tensor& residual) {
            return layer_norm_backward(forward, weight, bias, dy, dsum, options(eps, residual));
        },
        nb::arg("forward"), nb::arg("weight"), nb::arg("bias"), nb::arg("dy"), nb::arg("dsum"),
        nb::arg("eps"), nb::arg("residual"), Released());
}

}  // namespace tilewright::python
