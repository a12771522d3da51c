// Bindings of users' CUDA C++ as operations in tilewright._core.
#include "tilewright/cuda_kernel.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "nanobind/stl/map.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/string_view.h"
#include "nanobind/stl/variant.h"
#include "nanobind/stl/vector.h"
#include "operand.h"
#include "tilewright/error.h"
#include "torch/exchange.h"

namespace tilewright::python {
namespace {

using Types = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

std::vector<TensorType> types_of(const Types& types) {
    std::vector<TensorType> result;
    for (const auto& [dtype, shape] : types) result.push_back({expect_dtype(dtype), shape});
    return result;
}

Types types_to_python(const std::vector<TensorType>& types) {
    Types result;
    for (const TensorType& type : types) {
        result.emplace_back(std::string(name(type.dtype)), type.shape);
    }
    return result;
}

/// Python's function of (types, attributes), which C++ may call and drop on any thread.
template <typename Result>
auto of_signature(nb::handle function) {
    std::shared_ptr<PyObject> shared(nb::borrow(function).release().ptr(), [](PyObject* p) {
        if (!Py_IsInitialized()) return;
        const nb::gil_scoped_acquire gil;
        Py_DECREF(p);
    });
    return [shared](const KernelSignature& signature) {
        const nb::gil_scoped_acquire gil;
        return nb::cast<Result>(nb::handle(shared.get())(types_to_python(signature.inputs),
                                                         nb::cast(signature.attributes)));
    };
}

LaunchExtents extents_of(nb::handle given) {
    using Extents = std::vector<std::int64_t>;
    if (PyCallable_Check(given.ptr())) return LaunchExtents(of_signature<Extents>(given));
    return LaunchExtents(nb::cast<Extents>(given));
}

AttributeType attribute_type_of(const nb::dict& given) {
    const auto kind = nb::cast<std::string>(given["kind"]);
    if (kind == "dtype") return AttributeType::dtype();
    if (kind == "enum") {
        return AttributeType::enumeration(
            nb::cast<std::vector<std::pair<std::string, std::int32_t>>>(given["values"]));
    }
    if (kind == "struct") {
        std::vector<std::pair<std::string, DType>> fields;
        for (const auto& [name, dtype] :
             nb::cast<std::vector<std::pair<std::string, std::string>>>(given["fields"])) {
            fields.emplace_back(name, expect_dtype(dtype));
        }
        return AttributeType::structure(nb::cast<std::string>(given["struct"]), std::move(fields));
    }
    return expect_dtype(kind);
}

CudaKernel make_kernel(const std::string& source, const std::string& name,
                       const nb::dict& options) {
    using Names = std::vector<std::string>;
    CudaKernelOptions o;
    o.inputs = nb::cast<Names>(options["inputs"]);
    o.outputs = nb::cast<Names>(options["outputs"]);
    o.out_type = [types = of_signature<Types>(options["out_shape"])](const KernelSignature& s) {
        return types_of(types(s));
    };
    for (const nb::handle one : nb::borrow<nb::list>(options["launches"])) {
        const auto launch = nb::borrow<nb::dict>(one);
        o.launches.push_back({nb::cast<std::string>(launch["kernel"]), extents_of(launch["grid"]),
                              extents_of(launch["block"]), extents_of(launch["shared"]),
                              extents_of(launch["cluster"]), nb::cast<Names>(launch["template"])});
    }
    for (const nb::handle one : nb::borrow<nb::list>(options["attributes"])) {
        const auto given = nb::borrow<nb::dict>(one);
        KernelAttribute attribute{nb::cast<std::string>(given["name"]), attribute_type_of(given)};
        attribute.passed = nb::cast<bool>(given["passed"]);
        const nb::object value = given["value"];
        if (PyCallable_Check(value.ptr())) {
            attribute.function = of_signature<AttributeValue>(value);
        } else if (!value.is_none()) {
            attribute.value = nb::cast<AttributeValue>(value);
        }
        o.attributes.push_back(std::move(attribute));
    }
    if (!options["workspace"].is_none()) o.workspace = extents_of(options["workspace"]);
    o.clear_workspace = nb::cast<bool>(options["clear_workspace"]);
    o.batch_in_grid = nb::cast<bool>(options["batch_in_grid"]);
    if (!options["cpu"].is_none()) {
        using Parts = std::vector<std::string>;  // IR, library, entry
        o.cpu = [parts = of_signature<Parts>(options["cpu"])](const KernelSignature& s) {
            Parts given = parts(s);
            return CpuFunction{given.at(0), given.at(1), given.at(2)};
        };
    }
    o.file = nb::cast<std::string>(options["file"]);
    o.headers = nb::cast<std::vector<std::pair<std::string, std::string>>>(options["headers"]);
    o.options = nb::cast<Names>(options["options"]);
    for (const auto& [dtype, type] :
         nb::cast<std::map<std::string, std::string>>(options["types"])) {
        o.types[expect_dtype(dtype)] = type;
    }
    return {source, name, std::move(o)};
}

/// Runs on PyTorch tensors, on its stream; false if one is not a plain tensor.
bool run_on_torch(const CudaPlan& plan, const nb::list& arrays) {
    torch::Arguments arguments;
    for (const nb::handle array : arrays) {
        if (!arguments.add(array)) return false;
    }
    const std::vector<Tensor> tensors = arguments.tensors();
    const torch::TorchScope scope(arguments.views().back().device);
    torch::run_released([&] { plan.run(tensors); });
    return true;
}

}  // namespace

void bind_cuda_kernel(nb::module_& module) {
    nb::class_<CudaPlan>(module, "CudaPlan", "A CUDA kernel for fixed types and attributes.")
        .def(nb::init<std::string_view>(), nb::arg("text"))
        .def_prop_ro("name", &CudaPlan::name)
        .def_prop_ro("text", &CudaPlan::text)
        .def_prop_ro("inputs", [](const CudaPlan& p) { return types_to_python(p.inputs()); })
        .def_prop_ro("outputs", [](const CudaPlan& p) { return types_to_python(p.outputs()); })
        .def_prop_ro("has_cpu", &CudaPlan::has_cpu)
        .def("batched", &CudaPlan::batched, nb::arg("mapped"), nb::arg("size"))
        .def("ptx", &CudaPlan::ptx, nb::arg("arch") = "sm_80",
             nb::call_guard<nb::gil_scoped_release>())
        .def("run_on_torch", &run_on_torch, nb::arg("arrays"))
        .def(
            "run",
            [](const CudaPlan& plan, const std::vector<Tensor>& arrays) { plan.run(arrays); },
            nb::arg("arrays"), nb::call_guard<nb::gil_scoped_release>());
    nb::class_<CudaKernel>(module, "CudaKernel", "CUDA C++ and what it takes to launch it.")
        .def_static("make", &make_kernel, nb::arg("source"), nb::arg("name"), nb::arg("options"))
        .def(
            "plan",
            [](const CudaKernel& kernel, const Types& inputs, const KernelAttributes& attributes) {
                const nb::gil_scoped_release released;
                return kernel.plan(types_of(inputs), attributes);
            },
            nb::arg("inputs"), nb::arg("attributes"));
}

}  // namespace tilewright::python
