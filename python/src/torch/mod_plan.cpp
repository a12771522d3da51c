// What functions with the same code read, place by place.
#include "torch/mod_plan.h"

#include "bindings.h"

namespace tilewright::torch {
namespace {

/// Names of attributes, interned once.
struct PlanNames {
    PyObject* closure = PyUnicode_InternFromString("__closure__");
    PyObject* globals = PyUnicode_InternFromString("__globals__");
    PyObject* contents = PyUnicode_InternFromString("cell_contents");
    PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
};
const PlanNames& plan_names() {
    static const PlanNames kNames;
    return kNames;
}

}  // namespace

ModPlan::ModPlan(nb::sequence steps) {
    for (const nb::handle given : steps) {
        const auto fields = nb::borrow<nb::tuple>(given);
        Step step{};
        step.kind = static_cast<Kind>(nb::cast<int>(fields[1]));
        step.cell = -1;
        step.expected = nb::borrow(fields[2]);
        if (nb::isinstance<nb::int_>(fields[0])) {
            step.cell = nb::cast<Py_ssize_t>(fields[0]);
        } else {
            step.name = nb::borrow(fields[0]);
        }
        if (step.kind == kTensor) {
            const auto expected = nb::borrow<nb::tuple>(fields[2]);
            step.expected = nb::borrow(expected[0]);
            step.requires_grad = nb::cast<bool>(expected[1]);
            DLTensor view{};
            if (!Arguments::view_of(expected[2], view)) {
                throw nb::type_error("a tensor whose memory cannot be read as it stands");
            }
            step.dtype = view.dtype;
            step.rank = view.ndim;
            step.device = view.device.device_type;
        }
        steps_.push_back(std::move(step));
    }
}

bool ModPlan::fits(const Step& step, nb::handle value) {
    if (value.is(step.expected)) return true;
    if (step.kind == kSame || Py_TYPE(value.ptr()) != Py_TYPE(step.expected.ptr())) return false;
    const int equal = PyObject_RichCompareBool(value.ptr(), step.expected.ptr(), Py_EQ);
    if (equal < 0) nb::raise_python_error();
    return equal == 1;
}

bool ModPlan::read(nb::handle function, std::vector<nb::object>& tensors,
                   std::vector<DLTensor>& views) const {
    const std::size_t first = tensors.size();
    const nb::object cells = attribute(function, plan_names().closure);
    nb::object scope;
    for (const Step& step : steps_) {
        nb::object value;
        if (step.cell >= 0) {
            PyObject* const cell = PyTuple_GetItem(cells.ptr(), step.cell);
            if (cell == nullptr) nb::raise_python_error();
            value = nb::steal(PyObject_GetAttr(cell, plan_names().contents));
            if (!value.is_valid()) {  // an empty cell
                PyErr_Clear();
                return false;
            }
        } else {
            if (!scope.is_valid()) scope = attribute(function, plan_names().globals);
            PyObject* const found = PyDict_GetItemWithError(scope.ptr(), step.name.ptr());
            if (found == nullptr && PyErr_Occurred()) nb::raise_python_error();
            value = found == nullptr ? nb::none() : nb::borrow(found);
        }
        if (step.kind != kTensor) {
            if (!fits(step, value)) return false;
            continue;
        }
        DLTensor view{};
        if (!value.type().is(step.expected) || !Arguments::view_of(value, view) ||
            view.dtype.code != step.dtype.code || view.dtype.bits != step.dtype.bits ||
            view.ndim != step.rank || view.device.device_type != step.device ||
            attribute(value, plan_names().requires_grad).is(nb::handle(Py_True)) !=
                step.requires_grad) {
            return false;
        }
        for (std::size_t i = first; i < tensors.size(); ++i) {
            if (tensors[i].is(value)) return false;
        }
        tensors.push_back(std::move(value));
        views.push_back(view);
    }
    return true;
}

}  // namespace tilewright::torch

namespace tilewright::python {

void bind_mod_plan(nb::module_& module) {
    using torch::ModPlan;
    nb::class_<ModPlan>(module, "ModPlan")
        .def(nb::init<nb::sequence>(), nb::arg("steps"))
        .def(
            "tensors",
            [](const ModPlan& plan, nb::handle function) -> nb::object {
                std::vector<nb::object> tensors;
                std::vector<DLTensor> views;
                if (!plan.read(function, tensors, views)) return nb::none();
                nb::list result;
                for (const nb::object& tensor : tensors) result.append(tensor);
                return result;
            },
            nb::arg("function"));
}

}  // namespace tilewright::python
