// Bindings of traced scalars, captured arrays and mods in tilewright._core.
#include "tilewright/mod.h"

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "bindings.h"
#include "nanobind/operators.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/string_view.h"
#include "nanobind/stl/vector.h"
#include "operand.h"
#include "tilewright/error.h"
#include "tilewright/lang/functions.h"
#include "tilewright/lang/ops.h"

namespace tilewright::python {

namespace {

/// Raises TypeError for traced values of frameworks that have their own front end.
void refuse_other_front_ends(nb::handle value) {
    const auto text = [&](const char* attribute) {
        return nb::cast<std::string>(nb::str(nb::getattr(value.type(), attribute, nb::str(""))));
    };
    const std::string name = text("__name__"), module = text("__module__");
    const bool is_jax = module.starts_with("jax") && name.ends_with("Tracer");
    const bool is_torch =
        (module.starts_with("torch") &&
         (name == "FakeTensor" || name == "FunctionalTensor" || name == "Proxy")) ||
        (module.starts_with("tilewright.torch") && name == "Traced");
    if (!is_jax && !is_torch) return;
    throw nb::type_error(
        is_jax ? "[mod] expected a traced scalar of tilewright but got one of JAX: mods of "
                 "tilewright.jax read JAX arrays and use jnp, in place of tw.capture and the "
                 "functions of tilewright"
               : "[mod] expected a traced scalar of tilewright but got one of PyTorch: mods of "
                 "tilewright.torch read tensors and use torch, in place of tw.capture and the "
                 "functions of tilewright");
}

/// Indices of a subscript: one, or a tuple.
std::vector<Operand> indices_of(nb::handle subscript) {
    std::vector<Operand> indices;
    if (PyTuple_Check(subscript.ptr())) {
        for (const nb::handle item : subscript) indices.push_back(expect_operand(item));
    } else {
        indices.push_back(expect_operand(subscript));
    }
    return indices;
}

/// A Python or NumPy integer.
std::int64_t position(nb::handle value) {
    const auto number = operand(value);
    if (!number || (number->kind() != Operand::Kind::signed_int &&
                    number->kind() != Operand::Kind::unsigned_int)) {
        throw nb::type_error(("[mod] expected integers as positions but got " + python_type(value) +
                              ": outside of a mod it is evaluated for one pair")
                                 .c_str());
    }
    return static_cast<std::int64_t>(number->integer());
}

bool is_integer_operand(const Operand& x) {
    using Kind = Operand::Kind;
    if (x.kind() == Kind::tile) return !is_float(x.tile().dtype());
    return x.kind() != Kind::floating;
}

/// Python's `/`: integers are divided as f32.
Tile true_divide(const Operand& a, const Operand& b) {
    if (is_integer_operand(a) && is_integer_operand(b)) return cast(a, f32) / cast(b, f32);
    return a / b;
}

/// A mod's body that calls a Python function of traced scalars; it may run, and be dropped, on any
/// thread.
Mod::Body body_of(nb::callable function) {
    const std::shared_ptr<PyObject> shared(function.release().ptr(), [](PyObject* p) {
        if (!Py_IsInitialized()) return;
        const nb::gil_scoped_acquire gil;
        Py_DECREF(p);
    });
    return [shared](std::span<const Tile> arguments) -> Operand {
        const nb::gil_scoped_acquire gil;
        nb::list list;
        for (const Tile& argument : arguments) list.append(argument);
        const nb::object result = nb::handle(shared.get())(*list);
        if (result.is_none())
            throw UserError("[mod] expected the mod to return a value but got None");
        if (const auto value = operand(result)) return *value;
        throw nb::type_error(
            ("[mod] expected the mod to return a traced scalar or a number but got " +
             python_type(result))
                .c_str());
    };
}

using Binary = Tile (*)(Operand, Operand);

/// Defines an operator and its reflection. They return NotImplemented for other types, which may
/// implement the operator themselves, as rows of captures do.
void bind_binary(nb::class_<Tile>& scalar, const char* name, const char* reflected, Binary f) {
    const auto apply = [f](const std::optional<Operand>& a, const std::optional<Operand>& b) {
        return a && b ? nb::cast(f(*a, *b)) : nb::borrow(Py_NotImplemented);
    };
    scalar.def(
        name,
        [apply](const Tile& a, nb::handle b) { return apply(Operand(a, kNowhere), operand(b)); },
        nb::arg("other").none());
    scalar.def(
        reflected,
        [apply](const Tile& a, nb::handle b) { return apply(operand(b), Operand(a, kNowhere)); },
        nb::arg("other").none());
}

/// Comparisons refuse anything but operands: Python would fall back to identity for == and !=.
void bind_comparison(nb::class_<Tile>& scalar, const char* name, Binary f) {
    scalar.def(
        name,
        [f](const Tile& a, nb::handle b) { return f(Operand(a, kNowhere), expect_operand(b)); },
        nb::arg("other").none());
}

[[noreturn]] void no_value(const char* what) {
    const std::string instead =
        in_kernel() ? " while the kernel is traced: choose element by element with "
                      "tw.where(condition, a, b), branch on a scalar with tw.cond or tw.when, loop "
                      "with tw.for_loop"
                    : " while the mod is traced: choose with tw.where(condition, a, b), read "
                      "arrays through tw.capture(array)";
    throw nb::type_error((std::string("a traced value has no ") + what + instead).c_str());
}

[[noreturn]] void no_truth() {
    if (in_kernel()) no_value("truth value");
    throw nb::type_error(
        "a traced value has no truth value while the mod is traced: in place of `if` use "
        "tw.where(condition, a, b), of `and`, `or` and `not` use &, | and ~, of `a < b < c` use "
        "(a < b) & (b < c), of `a in (1, 2)` use (a == 1) | (a == 2), of min and max use "
        "tw.minimum "
        "and tw.maximum");
}

/// A function of the table on traced values.
void bind_one(nb::module_& module, const ElementwiseFunction& f) {
    const char* const name = f.name.data();  // a literal: it ends with a zero
    if (f.operands == 2) {
        module.def(
            name,
            [trace = f.trace](nb::handle x, nb::handle y) {
                return trace(expect_operand(x), expect_operand(y), false);
            },
            nb::arg("x"), nb::arg("y"));
    } else if (f.approx) {
        module.def(
            name,
            [trace = f.trace](nb::handle x, bool approx) {
                const Operand operand = expect_operand(x);
                return trace(operand, operand, approx);
            },
            nb::arg("x"), nb::arg("approx") = false);
    } else {
        module.def(
            name,
            [trace = f.trace](nb::handle x) {
                const Operand operand = expect_operand(x);
                return trace(operand, operand, false);
            },
            nb::arg("x"));
    }
}

void bind_elementwise(nb::module_& module) {
    nb::class_<ElementwiseFunction>(module, "ElementwiseFunction",
                                    "An operation of the tile IR, or a composition (op '').")
        .def_ro("name", &ElementwiseFunction::name)
        .def_ro("op", &ElementwiseFunction::op)
        .def_ro("operands", &ElementwiseFunction::operands)
        .def_ro("approx", &ElementwiseFunction::approx)
        .def_ro("depends_on_format", &ElementwiseFunction::depends_on_format)
        .def_ro("meaning", &ElementwiseFunction::meaning)
        .def_ro("numpy", &ElementwiseFunction::numpy)
        .def_ro("jax", &ElementwiseFunction::jax)
        .def_ro("torch", &ElementwiseFunction::torch)
        .def(
            "value", [](const ElementwiseFunction& f, double x, double y) { return f.value(x, y); },
            nb::arg("x"), nb::arg("y") = 0.0);
    module.def("elementwise_functions", [] {
        const auto functions = elementwise_functions();
        return std::vector<ElementwiseFunction>(functions.begin(), functions.end());
    });
}

void bind_scalar(nb::module_& module) {
    nb::class_<Tile> scalar(module, "Tile",
                            "A traced value: a scalar of a mod, a tile or scalar of a kernel.");
    module.attr("Scalar") = scalar;
    bind_binary(scalar, "__add__", "__radd__", [](Operand a, Operand b) { return a + b; });
    bind_binary(scalar, "__sub__", "__rsub__", [](Operand a, Operand b) { return a - b; });
    bind_binary(scalar, "__mul__", "__rmul__", [](Operand a, Operand b) { return a * b; });
    bind_binary(scalar, "__truediv__", "__rtruediv__",
                [](Operand a, Operand b) { return true_divide(a, b); });
    bind_binary(scalar, "__floordiv__", "__rfloordiv__",
                [](Operand a, Operand b) { return floordiv(a, b); });
    bind_binary(scalar, "__mod__", "__rmod__", [](Operand a, Operand b) { return floormod(a, b); });
    bind_binary(scalar, "__pow__", "__rpow__", [](Operand a, Operand b) { return pow(a, b); });
    bind_binary(scalar, "__and__", "__rand__", [](Operand a, Operand b) { return a & b; });
    bind_binary(scalar, "__or__", "__ror__", [](Operand a, Operand b) { return a | b; });
    bind_binary(scalar, "__xor__", "__rxor__", [](Operand a, Operand b) { return a ^ b; });
    bind_binary(scalar, "__lshift__", "__rlshift__", [](Operand a, Operand b) { return a << b; });
    bind_binary(scalar, "__rshift__", "__rrshift__", [](Operand a, Operand b) { return a >> b; });
    bind_comparison(scalar, "__eq__", [](Operand a, Operand b) { return a == b; });
    bind_comparison(scalar, "__ne__", [](Operand a, Operand b) { return a != b; });
    bind_comparison(scalar, "__lt__", [](Operand a, Operand b) { return a < b; });
    bind_comparison(scalar, "__le__", [](Operand a, Operand b) { return a <= b; });
    bind_comparison(scalar, "__gt__", [](Operand a, Operand b) { return a > b; });
    bind_comparison(scalar, "__ge__", [](Operand a, Operand b) { return a >= b; });
    scalar.def("__neg__", [](const Tile& a) { return -Operand(a, kNowhere); })
        .def("__pos__", [](const Tile& a) { return a; })
        .def("__invert__", [](const Tile& a) { return ~Operand(a, kNowhere); })
        .def("__abs__", [](const Tile& a) { return abs(Operand(a, kNowhere)); })
        .def("__bool__", [](const Tile&) -> bool { no_truth(); })
        .def("__contains__", [](const Tile&, nb::handle) -> bool { no_value("elements"); })
        .def("__len__", [](const Tile&) -> int { no_value("length"); })
        .def("__index__", [](const Tile&) -> int { no_value("integer value"); })
        .def("__int__", [](const Tile&) -> int { no_value("integer value"); })
        .def("__float__", [](const Tile&) -> double { no_value("float value"); })
        .def("__iter__", [](const Tile&) -> nb::object { no_value("elements"); })
        .def_prop_ro("dtype", [](const Tile& a) { return std::string(name(a.dtype(kNowhere))); })
        .def("cast", [](const Tile& a, const std::string& dtype) {
            const auto type = parse_dtype(dtype);
            if (!type) throw nb::value_error(("unknown dtype " + dtype).c_str());
            return cast(Operand(a, kNowhere), *type);
        });

    const auto unary = [&](const char* name, Tile (*f)(Operand)) {
        module.def(
            name, [f](nb::handle x) { return f(expect_operand(x)); }, nb::arg("x"));
    };
    const auto binary = [&](const char* name, Binary f) {
        module.def(
            name,
            [f](nb::handle x, nb::handle y) { return f(expect_operand(x), expect_operand(y)); },
            nb::arg("x"), nb::arg("y"));
    };
    for (const ElementwiseFunction& function : elementwise_functions()) {
        bind_one(module, function);
    }
    unary("abs", abs);
    unary("sign", sign);
    unary("isnan", isnan);
    binary("div", [](Operand x, Operand y) { return x / y; });  // integers truncate
    binary("rem", [](Operand x, Operand y) { return x % y; });
    binary("minimum", minimum);
    binary("maximum", maximum);
    const auto three = [&](const char* name, Tile (*f)(Operand, Operand, Operand), const char* a,
                           const char* b, const char* c) {
        module.def(
            name,
            [f](nb::handle x, nb::handle y, nb::handle z) {
                return f(expect_operand(x), expect_operand(y), expect_operand(z));
            },
            nb::arg(a), nb::arg(b), nb::arg(c));
    };
    three("where", where, "condition", "if_true", "if_false");
    three("clamp", clamp, "x", "low", "high");
}

void bind_capture(nb::module_& module) {
    nb::class_<Capture>(module, "Capture",
                        "An array that mods read by traced integers: slopes[h], bias[h, q - kv].")
        .def("element", [](const Capture& capture,
                           nb::handle subscript) { return capture.element(indices_of(subscript)); })
        .def("clamped_element",
             [](const Capture& capture, nb::handle subscript) {
                 return capture.element(indices_of(subscript), Capture::Negative::clamped);
             })
        .def("extent", &Capture::extent, nb::arg("dim"))
        .def("row",
             [](const Capture& capture, nb::handle subscript) {
                 const Row row = capture.row_of(indices_of(subscript));
                 return std::vector<Tile>(row.begin(), row.end());
             })
        .def("value", [](const Capture& capture) { return capture.element({}); })
        .def_prop_ro("rank", [](const Capture& capture) { return capture.tensor().rank(); })
        .def_prop_ro("tensor", &Capture::tensor)
        .def_prop_ro("name", &Capture::name)
        .def_prop_ro("differentiable", &Capture::differentiable);
    module.def(
        "capture",
        [](Tensor tensor, std::string name, bool differentiable) {
            return capture(std::move(tensor), std::move(name), differentiable);
        },
        nb::arg("tensor"), nb::arg("name"), nb::arg("differentiable"));
}

}  // namespace

std::optional<Operand> operand(nb::handle value) {
    if (nb::isinstance<Tile>(value)) return Operand(nb::cast<Tile>(value), kNowhere);
    if (PyBool_Check(value.ptr())) return Operand(value.is(Py_True), kNowhere);
    if (PyFloat_Check(value.ptr())) return Operand(PyFloat_AsDouble(value.ptr()), kNowhere);
    if (nb::isinstance<Capture>(value)) {
        const auto& capture = nb::cast<const Capture&>(value);
        if (capture.tensor().rank() == 0) return capture;
        throw nb::type_error(("[mod] expected a scalar but got a captured array of " +
                              std::to_string(capture.tensor().rank()) +
                              " dimensions: index it, as in table[h, q_idx]")
                                 .c_str());
    }
    if (nb::hasattr(value, "_core")) return operand(value.attr("_core"));  // a Python capture
    if (nb::hasattr(value, "ndim") && nb::hasattr(value, "item")) {  // a NumPy number or array
        if (nb::cast<int>(value.attr("ndim")) != 0) return {};
        refuse_other_front_ends(value);
        return operand(value.attr("item")());
    }
    if (PyIndex_Check(value.ptr())) {
        const nb::object integer = nb::steal(PyNumber_Index(value.ptr()));
        if (!integer.is_valid()) nb::raise_python_error();
        std::int64_t number = 0;
        if (!nb::try_cast(integer, number)) {
            throw UserError("[mod] expected an integer of 64 bits but got " +
                            nb::cast<std::string>(nb::str(integer)));
        }
        return Operand(number, kNowhere);
    }
    return {};
}

std::string python_type(nb::handle value) {
    return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

Operand expect_operand(nb::handle value) {
    if (const auto result = operand(value)) return *result;
    const bool several = PyTuple_Check(value.ptr()) || PyList_Check(value.ptr());
    const char* const text =
        in_kernel() && several ? "[kernel] expected a tile or a number but got {}: take its "
                                 "elements one by one, or join them with tw.stack"
        : in_kernel()          ? "[kernel] expected a tile or a number but got {}; arrays go in "
                                 "as inputs of the kernel, and Refs are read by ref[...]"
                               : "[mod] expected a traced scalar or a number but got {}; index "
                                 "arrays through tw.capture(array)";
    std::string message = text;
    message.replace(message.find("{}"), 2, python_type(value));
    throw nb::type_error(message.c_str());
}

void bind_mod(nb::module_& module) {
    bind_elementwise(module);
    bind_scalar(module);
    bind_capture(module);
    nb::class_<Mod>(module, "Mod",
                    "A function that attention applies to every score: a score mod (score, b, h, "
                    "q, kv) or a mask mod (b, h, q, kv).")
        .def_static(
            "score",
            [](nb::callable f) { return Mod::make(Mod::Kind::score, {}, body_of(std::move(f))); })
        .def_static(
            "mask",
            [](nb::callable f) { return Mod::make(Mod::Kind::mask, {}, body_of(std::move(f))); })
        .def_static("from_ir", &Mod::from_ir, nb::arg("text"), nb::arg("captures"))
        .def_prop_ro("is_mask", [](const Mod& mod) { return mod.kind() == Mod::Kind::mask; })
        .def_prop_ro("name", &Mod::name)
        .def("renamed", &Mod::renamed)
        .def("captures", &Mod::captures)
        .def("written_at", &Mod::written_at, nb::arg("file"), nb::arg("line"))
        .def("_reads",
             [](const Mod& mod) {
                 const Mod::Reads reads = mod.reads();
                 return nb::make_tuple(reads.batch, reads.head);
             })
        .def(
            "ir",
            [](const Mod& mod, const std::string& score, bool with_lines) {
                return mod.ir(parse_dtype(score).value_or(f32), with_lines);
            },
            nb::arg("score") = "f32", nb::arg("with_lines") = false)
        .def(
            "derivative_ir",
            [](const Mod& mod, const nb::callable& body, const std::string& score) {
                const auto results = [&](std::span<const Tile> arguments) {
                    nb::list list;
                    for (const Tile& argument : arguments) list.append(argument);
                    std::vector<Operand> operands;
                    for (const nb::handle item : nb::borrow<nb::list>(body(*list)))
                        operands.push_back(expect_operand(item));
                    return operands;
                };
                return mod.derivative_ir(results, parse_dtype(score).value_or(f32));
            },
            nb::arg("body"), nb::arg("score"))
        .def("with_derivative", &Mod::with_derivative, nb::arg("text"), nb::arg("gathers"))
        .def("__call__",
             [](const Mod& mod, nb::handle b, nb::handle h, nb::handle q, nb::handle kv) {
                 if (!is_tracing()) {
                     return nb::object(nb::bool_(
                         mod.evaluate(position(b), position(h), position(q), position(kv))));
                 }
                 return nb::cast(mod(expect_operand(b), expect_operand(h), expect_operand(q),
                                     expect_operand(kv)));
             })
        .def("__call__",
             [](const Mod& mod, nb::handle score, nb::handle b, nb::handle h, nb::handle q,
                nb::handle kv) {
                 if (!is_tracing()) {
                     const double value = nb::cast<double>(nb::float_(score));
                     return nb::object(nb::float_(
                         mod.evaluate(value, position(b), position(h), position(q), position(kv))));
                 }
                 return nb::cast(mod(expect_operand(score), expect_operand(b), expect_operand(h),
                                     expect_operand(q), expect_operand(kv)));
             })
        .def(
            "__and__", [](const Mod& a, const Mod& b) { return a & b; }, nb::is_operator())
        .def(
            "__or__", [](const Mod& a, const Mod& b) { return a | b; }, nb::is_operator())
        .def(
            "__xor__", [](const Mod& a, const Mod& b) { return a ^ b; }, nb::is_operator())
        .def("__invert__", [](const Mod& a) { return ~a; });
    module.def("is_tracing", &is_tracing);
    module.def(
        "exchange_source_line",
        [](const std::string& file, int line) {
            const detail::SourceLine before = detail::exchange_source_line(file, line);
            return nb::make_tuple(std::string(before.file), before.line);
        },
        nb::arg("file"), nb::arg("line"));
    module.def("mod_axes", &mod_axes, nb::arg("text"));
    module.def("shifted_mod_ir", &shifted_mod_ir, nb::arg("text"), nb::arg("local"));
    module.def("batched_mod_ir", &batched_mod_ir, nb::arg("text"), nb::arg("batch"),
               nb::arg("batched"));
}

}  // namespace tilewright::python
