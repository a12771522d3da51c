// Recognises calls of flex_attention that are like earlier ones.
#include "torch/known_calls.h"

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "nanobind/stl/vector.h"
#include "torch/operators.h"

namespace tilewright::torch {
namespace {

struct CallNames {
    PyObject* code = PyUnicode_InternFromString("__code__");
    PyObject* core = PyUnicode_InternFromString("_core");
    PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
    PyObject* grad_fn = PyUnicode_InternFromString("grad_fn");
    PyObject* metadata = PyUnicode_InternFromString("metadata");
    PyObject* numbered = PyUnicode_InternFromString("numbered");
    PyObject* scale = PyUnicode_InternFromString("scale");
};
const CallNames& call_names() {
    static const CallNames kNames;
    return kNames;
}

/// Whether they are the same object, or equal and of the same type.
bool equal(nb::handle a, nb::handle b) {
    if (a.is(b)) return true;
    if (Py_TYPE(a.ptr()) != Py_TYPE(b.ptr())) return false;
    const int result = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
    if (result < 0) nb::raise_python_error();
    return result == 1;
}

/// The code of a Python function, None for None, null for everything else.
nb::object code_of(nb::handle mod) {
    if (mod.is_none()) return nb::none();
    static PyTypeObject* const kFunction = [] {
        const nb::object types = nb::module_::import_("types");
        return reinterpret_cast<PyTypeObject*>(
            nb::object(types.attr("FunctionType")).release().ptr());
    }();
    return Py_TYPE(mod.ptr()) == kFunction ? attribute(mod, call_names().code) : nb::object();
}

/// The captures of a function, if it reads what the mod did.
struct Captures {
    std::vector<nb::object> tensors;
    std::vector<DLTensor> views;

    bool read(const KnownCalls::KnownMod& mod, nb::handle function) {
        return mod.plan == nullptr || mod.plan->read(function, tensors, views);
    }
    void add(const KnownCalls::KnownMod& mod, Arguments& operands, std::vector<nb::object>& kept) {
        for (const std::size_t place : mod.order) operands.add(tensors[place], views[place]);
        for (nb::object& tensor : tensors) kept.push_back(std::move(tensor));
    }
};

bool same_mod(const KnownCalls::KnownMod& a, const KnownCalls::KnownMod& b) {
    return a.code.is(b.code) && a.plan == b.plan;
}

/// What is known of a mod, from (function or None, plan, order).
KnownCalls::KnownMod known_mod(const nb::tuple& given) {
    KnownCalls::KnownMod mod{code_of(given[0]), nb::borrow(given[1])};
    if (!mod.owner.is_none()) {
        mod.plan = nb::cast<const ModPlan*>(mod.owner);
        mod.order = nb::cast<std::vector<std::size_t>>(given[2]);
    }
    return mod;
}

}  // namespace

KnownCalls::KnownCalls(nb::sequence torch_functions, nb::object apply, nb::object fused,
                       nb::object mask_type)
    : modes_(torch_functions[0]),
      transform_(torch_functions[1]),
      autocast_(torch_functions[2]),
      grad_enabled_(torch_functions[3]),
      deterministic_(torch_functions[4]),
      tracing_(torch_functions[5]),
      apply_(std::move(apply)),
      fused_(std::move(fused)),
      mask_type_(std::move(mask_type)) {}

void KnownCalls::remember(std::shared_ptr<const Known> known) {
    for (const auto& other : known_) {
        if (same_mod(other->score, known->score) && same_mod(other->mask, known->mask) &&
            other->site.is(known->site) && other->deterministic.is(known->deterministic) &&
            std::equal(known->options.begin(), known->options.end(), other->options.begin(),
                       equal)) {
            return;
        }
    }
    if (known_.size() == kMost) known_.erase(known_.begin());
    known_.push_back(std::move(known));
}

bool KnownCalls::is_plain() const {
    // The checked mode wants recordings of its own, with the names of variables.
    return !checked() && PyLong_AsLong(value_of(modes_.ptr()).ptr()) == 0 &&
           value_of(transform_.ptr()).is_none() && value_of(autocast_.ptr()).is(Py_False) &&
           value_of(tracing_.ptr()).is(Py_False);
}

std::shared_ptr<const KnownCalls::Known> KnownCalls::find(PyObject* const* arguments,
                                                          Arguments& operands,
                                                          std::vector<nb::object>& kept) const {
    const nb::object score = code_of(arguments[kScoreMod]), mask = code_of(arguments[kMaskMod]);
    if (!score.is_valid() || !mask.is_valid()) return {};
    const bool is_double = operands.views()[0].dtype.bits == 64;
    const nb::object deterministic = value_of(deterministic_.ptr());
    const bool grad_enabled = value_of(grad_enabled_.ptr()).is(Py_True);
    bool gradient = false;
    for (const Argument argument : {kQuery, kKey, kValue}) {
        if (!grad_enabled || gradient) break;
        gradient = attribute(arguments[argument], call_names().requires_grad).is(Py_True);
    }
    for (std::size_t i = known_.size(); i-- > 0;) {
        const std::shared_ptr<const Known> known = known_[i];
        const bool has_gradient = gradient || (grad_enabled && known->captures_require_grad);
        if (!known->score.code.is(score) || !known->mask.code.is(mask) ||
            known->is_double != is_double || known->gradient != has_gradient ||
            !known->deterministic.is(deterministic) ||
            !std::equal(known->options.begin(), known->options.end(), arguments + kFirstOption,
                        equal)) {
            continue;
        }
        Captures of_score, of_mask;
        if (!of_score.read(known->score, arguments[kScoreMod]) ||
            !of_mask.read(known->mask, arguments[kMaskMod])) {
            continue;
        }
        of_score.add(known->score, operands, kept);
        of_mask.add(known->mask, operands, kept);
        return known;
    }
    return {};
}

nb::object KnownCalls::call_fused(const Known& known, const Arguments& operands,
                                  nb::handle block_mask) const {
    constexpr std::size_t kMost = 4, kOwn = 3;  // operands
    if (operands.size() > kMost) return {};
    std::array<PyObject*, kMost + 2> all{};
    all[kOwn] = Py_None;
    for (std::size_t i = 0; i < operands.size(); ++i) all[i] = operands.objects()[i].ptr();
    all[kMost] = known.dropout.ptr();
    nb::object held, scale;
    if (!block_mask.is_none()) {
        held = attribute(block_mask, call_names().numbered);
        scale = attribute(held, call_names().scale);
        all[kMost + 1] = scale.ptr();
    }
    static PyObject* const kKeywords = nb::make_tuple("scale").release().ptr();
    const nb::object results = nb::steal(PyObject_Vectorcall(
        fused_.ptr(), all.data(), kMost + 1, scale.is_valid() ? kKeywords : nullptr));
    if (!results.is_valid()) {
        if (!fused_has_failed()) nb::raise_python_error();
        PyErr_Clear();  // the Function raises errors in their own class
        return {};
    }
    nb::object out = nb::borrow(PyTuple_GetItem(results.ptr(), 0));
    if (held.is_valid()) {
        const nb::object metadata =
            attribute(attribute(out, call_names().grad_fn), call_names().metadata);
        if (PyDict_SetItem(metadata.ptr(), call_names().numbered, held.ptr()) != 0)
            nb::raise_python_error();
    }
    return out;
}

nb::object KnownCalls::call(PyObject* const* arguments) {
    if (known_.empty() || arguments[kExtras] != Py_False) return nb::none();
    const nb::handle options = arguments[kKernelOptions], block_mask = arguments[kBlockMask];
    if (!options.is_none() && (!PyDict_Check(options.ptr()) || PyDict_Size(options.ptr()) != 0))
        return nb::none();
    if (!is_plain()) return nb::none();
    Arguments operands;
    for (const Argument argument : {kQuery, kKey, kValue}) {
        if (!operands.add(arguments[argument])) return nb::none();
    }
    const auto& [query, key, value] =
        std::array{operands.views()[0], operands.views()[1], operands.views()[2]};
    const auto same_dtype = [&](const DLTensor& x) {
        return x.dtype.code == query.dtype.code && x.dtype.bits == query.dtype.bits;
    };
    if (!same_dtype(key) || !same_dtype(value)) return nb::none();
    if (!block_mask.is_none()) {
        if (!block_mask.type().is(mask_type_) || query.ndim == 0 || key.ndim == 0 ||
            query.shape[0] != key.shape[0] || attribute(block_mask, call_names().core).is_none()) {
            return nb::none();
        }
    }
    std::vector<nb::object> kept;
    const std::shared_ptr<const Known> known = find(arguments, operands, kept);
    if (!known) return nb::none();
    const bool alone = arguments[kReturnLse] == Py_False && arguments[kReturnAux] == Py_None;
    if (!known->gradient) {
        nb::object results = known->attention->call_plain(known->site, operands, block_mask, 0);
        return alone ? nb::borrow(PyTuple_GetItem(results.ptr(), 0)) : std::move(results);
    }
    if (alone && !known->dropout.is_none()) {
        nb::object out = call_fused(*known, operands, block_mask);
        if (out.is_valid()) return out;
    }
    const nb::object call = nb::make_tuple(known->site, block_mask, 0, alone);
    std::vector<PyObject*> all{call.ptr()};
    for (const nb::handle operand : operands.objects()) all.push_back(operand.ptr());
    nb::object results =
        nb::steal(PyObject_Vectorcall(apply_.ptr(), all.data(), all.size(), nullptr));
    if (!results.is_valid()) nb::raise_python_error();
    return results;
}

}  // namespace tilewright::torch

namespace tilewright::python {

void bind_known_calls(nb::module_& module) {
    using torch::KnownCalls;
    nb::class_<KnownCalls>(module, "KnownCalls")
        .def(nb::init<nb::sequence, nb::object, nb::object, nb::object>(),
             nb::arg("torch_functions"), nb::arg("apply"), nb::arg("fused").none(),
             nb::arg("mask_type"))
        .def(
            "remember",
            [](KnownCalls& calls, nb::tuple options, nb::object deterministic, bool is_double,
               nb::tuple score, nb::tuple mask, bool captures_require_grad, bool gradient,
               nb::object dropout, nb::object site) {
                KnownCalls::Known known;
                for (std::size_t i = 0; i < known.options.size(); ++i) {
                    known.options[i] = nb::borrow(options[i]);
                }
                known.deterministic = std::move(deterministic);
                known.is_double = is_double;
                known.score = torch::known_mod(score);
                known.mask = torch::known_mod(mask);
                known.captures_require_grad = captures_require_grad;
                known.gradient = gradient;
                known.dropout = std::move(dropout);
                known.owner = site.attr("_call");
                known.attention = nb::cast<torch::TorchAttention*>(known.owner);
                known.site = std::move(site);
                calls.remember(std::make_shared<const KnownCalls::Known>(std::move(known)));
            },
            nb::arg("options"), nb::arg("deterministic"), nb::arg("is_double"), nb::arg("score"),
            nb::arg("mask"), nb::arg("captures_require_grad"), nb::arg("gradient"),
            nb::arg("dropout").none(), nb::arg("site"))
        .def("clear", &KnownCalls::clear)
        .def("entry", [](nb::handle self) -> nb::callable {
            // A plain C function: nanobind would examine each argument.
            static PyMethodDef definition{
                "known_call",
                reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
                    +[](PyObject* self, PyObject* const* arguments, Py_ssize_t count) -> PyObject* {
                        return torch::without_exceptions([&] {
                            if (count != KnownCalls::kCount) {
                                throw nb::type_error("known_call: a wrong number of arguments");
                            }
                            return nb::cast<KnownCalls&>(nb::handle(self)).call(arguments);
                        });
                    })),
                METH_FASTCALL, nullptr};
            return nb::steal<nb::callable>(PyCFunction_NewEx(&definition, self.ptr(), nullptr));
        });
}

}  // namespace tilewright::python
