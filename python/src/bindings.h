// Declarations shared by the files of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewright::python {

namespace nb = nanobind;

void bind_artifact(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_exchange(nb::module_& module);
void bind_autograd(nb::module_& module);
void bind_fused(nb::module_& module);
void bind_known_calls(nb::module_& module);
void bind_operators(nb::module_& module);
void bind_mask(nb::module_& module);
void bind_tensor(nb::module_& module);
void bind_call(nb::module_& module);
void bind_cuda_kernel(nb::module_& module);
void bind_lang(nb::module_& module);
void bind_library(nb::module_& module);
void bind_mod(nb::module_& module);
void bind_mod_plan(nb::module_& module);
void bind_norm(nb::module_& module);
void bind_program_builder(nb::module_& module);
void bind_torch_attention(nb::module_& module);
void bind_torch_norm(nb::module_& module);

}  // namespace tilewright::python
