// Bindings of artifacts in tilewright._core.
#include "tilewright/artifact.h"

#include "bindings.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "operand.h"

namespace tilewright::python {
namespace {

/// A Python function of a list of tensors that returns one.
ExportedOperation operation_of(const nb::object& function) {
    if (function.is_none()) return {};
    return [function](const std::vector<Tensor>& inputs) {
        return nb::cast<std::vector<Tensor>>(function(inputs));
    };
}

}  // namespace

void bind_artifact(nb::module_& module) {
    using nb::arg;
    module.def(
        "export_operation",
        [](const std::string& folder, const std::vector<Tensor>& inputs, const nb::object& function,
           const std::string& name, const std::vector<std::string>& names, bool cpu,
           const std::vector<std::string>& archs, const nb::object& gpu_function) {
            export_operation(folder, inputs, operation_of(function),
                             {.name = name,
                              .names = names,
                              .cpu = cpu,
                              .archs = archs,
                              .gpu_operation = operation_of(gpu_function)});
        },
        arg("folder"), arg("inputs"), arg("function"), arg("name"), arg("names"), arg("cpu"),
        arg("archs"), arg("gpu_function").none());
    module.def(
        "export_program",
        [](const std::string& folder, const std::string& ir, const std::string& name,
           const std::vector<std::string>& names, bool cpu, const std::vector<std::string>& archs) {
            export_program(folder, ir, {.name = name, .names = names, .cpu = cpu, .archs = archs});
        },
        arg("folder"), arg("ir"), arg("name"), arg("names"), arg("cpu"), arg("archs"),
        nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Artifact>(module, "Artifact")
        .def(
            "__init__",
            [](Artifact* self, const std::string& folder, const std::string& device) {
                new (self) Artifact(folder, expect_device(device));
            },
            arg("folder"), arg("device"), nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("name", &Artifact::name)
        .def_prop_ro("checksum", &Artifact::checksum)
        .def_prop_ro("parameters",
                     [](const Artifact& artifact) {
                         nb::list list;
                         for (const Artifact::Parameter& p : artifact.parameters())
                             list.append(nb::make_tuple(p.name, std::string(name(p.type.dtype)),
                                                        nb::tuple(nb::cast(p.type.shape)),
                                                        p.written, p.result));
                         return list;
                     })
        .def(
            "run",
            [](const Artifact& artifact, const std::vector<Tensor>& arrays) {
                artifact.run(arrays);
            },
            arg("arrays"), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "__call__",
            [](const Artifact& artifact, const std::vector<Tensor>& inputs) {
                return artifact(inputs);
            },
            arg("inputs"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tilewright::python
