// The autograd Function of attention: both passes of plain tensors run without Python code.
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.h"
#include "torch/attention.h"

namespace tilewright::torch {
namespace {

/// What `implement_autograd` took. Never destroyed, since it holds Python objects.
struct AutogradState {
    nb::object forward, backward;  ///< in Python, for calls that something in torch has to see
    nb::object modes, transform;   ///< the number of dispatch modes, the transform
    nb::object forward_mode;       ///< the module of forward-mode autograd
    nb::object grad_enabled;
};
AutogradState& autograd_state() {
    static auto* const kState = new AutogradState;
    return *kState;
}

struct ContextNames {
    PyObject* call = PyUnicode_InternFromString("call");
    PyObject* own = PyUnicode_InternFromString("_call");
    PyObject* backward = PyUnicode_InternFromString("backward");
    PyObject* saved_tensors = PyUnicode_InternFromString("saved_tensors");
    PyObject* needs = PyUnicode_InternFromString("needs_input_grad");
    // What save_for_backward, set_materialize_grads and mark_non_differentiable set, which are
    // Python functions.
    PyObject* save = PyUnicode_InternFromString("to_save");
    PyObject* materialize = PyUnicode_InternFromString("materialize_grads");
    PyObject* non_differentiable = PyUnicode_InternFromString("non_differentiable");
    PyObject* level = PyUnicode_InternFromString("_current_level");
};
const ContextNames& names() {
    static const ContextNames kNames;
    return kNames;
}

nb::object call_python(nb::handle function, PyObject* const* arguments, Py_ssize_t count) {
    nb::object result = nb::steal(
        PyObject_Vectorcall(function.ptr(), arguments, static_cast<std::size_t>(count), nullptr));
    if (!result.is_valid()) nb::raise_python_error();
    return result;
}

nb::object call_method(nb::handle object, PyObject* name, const std::vector<PyObject*>& arguments) {
    const nb::object method = attribute(object, name);
    return call_python(method, arguments.data(), static_cast<Py_ssize_t>(arguments.size()));
}

void set_attribute(nb::handle object, PyObject* name, nb::handle value) {
    if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) nb::raise_python_error();
}

/// Whether no dispatch mode, transform of torch.func or forward-mode autograd would see a call.
bool is_plain() {
    const AutogradState& state = autograd_state();
    return PyLong_AsLong(value_of(state.modes.ptr()).ptr()) == 0 &&
           value_of(state.transform.ptr()).is_none() &&
           PyLong_AsLong(attribute(state.forward_mode, names().level).ptr()) < 0;
}

TorchAttention& attention_of(nb::handle site) {
    return *nb::cast<TorchAttention*>(attribute(site, names().own));
}

/// What a call of the Function passes besides its operands.
struct Call {
    nb::handle all, site, mask;
    std::uint64_t seed;
    bool alone;  ///< whether `out` is the only result

    explicit Call(nb::handle tuple)
        : all(tuple),
          site(PyTuple_GetItem(tuple.ptr(), 0)),
          mask(PyTuple_GetItem(tuple.ptr(), 1)),
          seed(nb::cast<std::uint64_t>(nb::handle(PyTuple_GetItem(tuple.ptr(), 2)))),
          alone(PyTuple_GetItem(tuple.ptr(), 3) == Py_True) {}
};

/// forward(ctx, (site, mask, seed, alone), *operands)
nb::object forward(PyObject* const* arguments, Py_ssize_t count) {
    const nb::handle context = arguments[0];
    Arguments operands;
    for (Py_ssize_t i = 2; i < count; ++i) {
        if (!operands.add(arguments[i])) {
            return call_python(autograd_state().forward, arguments, count);
        }
    }
    const Call call(arguments[1]);
    nb::object results =
        attention_of(call.site).call_plain(call.site, operands, call.mask, call.seed);
    const nb::object saved = nb::steal(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        const nb::handle tensor =
            i < count - 2 ? arguments[i + 2] : PyTuple_GetItem(results.ptr(), i - (count - 2));
        PyTuple_SetItem(saved.ptr(), i, nb::borrow(tensor).release().ptr());
    }
    set_attribute(context, names().save, saved);
    set_attribute(context, names().materialize, Py_False);
    if (PyTuple_Size(results.ptr()) > 2) {
        const nb::handle max_scores = PyTuple_GetItem(results.ptr(), 2);
        set_attribute(context, names().non_differentiable, nb::make_tuple(max_scores));
    }
    set_attribute(context, names().call, call.all);
    return call.alone ? nb::borrow(PyTuple_GetItem(results.ptr(), 0)) : std::move(results);
}

/// backward(ctx, dout, dlse, ...)
nb::object backward(PyObject* const* arguments, Py_ssize_t count) {
    const AutogradState& state = autograd_state();
    const nb::handle context = arguments[0], dout = arguments[1];
    const nb::handle dlse = count > 2 ? arguments[2] : Py_None;
    if (dout.is_none() || value_of(state.grad_enabled.ptr()).is(Py_True) || !is_plain()) {
        return call_python(state.backward, arguments, count);
    }
    const nb::object call_object = attribute(context, names().call);
    const Call call(call_object);
    const nb::object saved = attribute(context, names().saved_tensors);
    const Py_ssize_t size = PyTuple_Size(saved.ptr());
    Arguments operands;
    bool plain = true;
    for (Py_ssize_t i = 0; i < size; ++i) {
        plain = plain && operands.add(PyTuple_GetItem(saved.ptr(), i));
    }
    plain = plain && operands.add(dout) && (dlse.is_none() || operands.add(dlse));
    if (!plain) return call_python(state.backward, arguments, count);

    const nb::object all_needs = attribute(context, names().needs);
    std::uint64_t needed = dlse.is_none() ? 1 : 3;  // a bit for each operand, after two
    const Py_ssize_t num_needs = PyTuple_Size(all_needs.ptr());
    for (Py_ssize_t i = 1; i < num_needs; ++i) {
        needed = needed << 1 | (PyTuple_GetItem(all_needs.ptr(), i) == Py_True ? 1 : 0);
    }
    const nb::object derived =
        attention_of(call.site).backward_site(num_needs < 60 ? needed : 0, [&] {
            const nb::object needs = nb::steal(PyTuple_GetSlice(all_needs.ptr(), 1, num_needs));
            return call_method(call.site, names().backward,
                               {needs.ptr(), dlse.is_none() ? Py_False : Py_True});
        });
    const nb::handle site = PyTuple_GetItem(derived.ptr(), 0);
    const nb::handle places = PyTuple_GetItem(derived.ptr(), 1);
    const nb::object gradients =
        attention_of(site).call_plain(site, operands, call.mask, call.seed);
    const Py_ssize_t num_operands = PyTuple_Size(places.ptr());
    nb::object results = nb::steal(PyTuple_New(num_operands + 1));
    PyTuple_SetItem(results.ptr(), 0, nb::none().release().ptr());
    for (Py_ssize_t i = 0; i < num_operands; ++i) {
        const nb::handle place = PyTuple_GetItem(places.ptr(), i);
        const nb::handle gradient =
            place.is_none()
                ? nb::handle(Py_None)
                : nb::handle(PyTuple_GetItem(gradients.ptr(), PyLong_AsSsize_t(place.ptr())));
        PyTuple_SetItem(results.ptr(), i + 1, nb::borrow(gradient).release().ptr());
    }
    return results;
}

template <nb::object (*kBody)(PyObject* const*, Py_ssize_t)>
PyObject* c_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return without_exceptions([&] { return kBody(arguments, count); });
}

/// A plain C function: nanobind would examine each argument.
template <nb::object (*kBody)(PyObject* const*, Py_ssize_t)>
nb::object make_function(const char* name) {
    static PyMethodDef definition{
        name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(c_function<kBody>)),
        METH_FASTCALL, nullptr};
    return nb::steal(PyCFunction_NewEx(&definition, nullptr, nullptr));
}

}  // namespace
}  // namespace tilewright::torch

namespace tilewright::python {

void bind_autograd(nb::module_& module) {
    using namespace torch;
    module.attr("torch_attention_forward") = make_function<forward>("torch_attention_forward");
    module.attr("torch_attention_backward") = make_function<backward>("torch_attention_backward");
    module.def(
        "implement_autograd",
        [](nb::object forward, nb::object backward, nb::object modes, nb::object transform,
           nb::object forward_mode, nb::object grad_enabled) {
            autograd_state() = {std::move(forward),      std::move(backward),
                                std::move(modes),        std::move(transform),
                                std::move(forward_mode), std::move(grad_enabled)};
        },
        nb::arg("forward"), nb::arg("backward"), nb::arg("modes"), nb::arg("transform"),
        nb::arg("forward_mode"), nb::arg("grad_enabled"),
        "What torch_attention_forward and torch_attention_backward call where operands are not "
        "plain tensors, "
        "or something in torch has to see the call.");
}

}  // namespace tilewright::python
