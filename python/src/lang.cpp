// Bindings of the kernel language: submodule `lang`, Refs, and the operators of tiles.
#include "tilewright/lang.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bindings.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "operand.h"
#include "tilewright/error.h"

namespace tilewright::python {
namespace {

thread_local int kernels = 0;  ///< number of kernels whose Python functions run on this thread

std::string& package_folder() {
    static std::string folder;
    return folder;
}

/// The user's line that is running: the innermost frame outside of the package.
detail::SourceLine python_line() {
    constexpr std::size_t kMostFiles = 4096;  // more than a program has, unless it generates code
    static std::set<std::string> files;       // guarded by the GIL
    nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame.is_valid() && !frame.is_none()) {
        const auto file = nb::cast<std::string>(frame.attr("f_code").attr("co_filename"));
        if (file.rfind(package_folder(), 0) != 0) {
            if (files.size() >= kMostFiles && !files.contains(file)) return {};
            return {files.insert(file).first->c_str(), nb::cast<int>(frame.attr("f_lineno"))};
        }
        frame = frame.attr("f_back");
    }
    return {};
}

std::vector<Operand> operands_of(const nb::list& list) {
    std::vector<Operand> operands;
    for (const nb::handle item : list) operands.push_back(expect_operand(item));
    return operands;
}

nb::list list_of(std::span<const Tile> tiles) {
    nb::list list;
    for (const Tile& tile : tiles) list.append(tile);
    return list;
}

// ---- Indices of Refs.

[[noreturn]] void index_error(const std::string& text) {
    throw UserError("[index] " + text);
}

/// A Python slice of a dimension of this extent (kDynamic: only known at the call).
RefIndex slice_of(nb::handle subscript, std::int64_t extent) {
    PyObject* const parts[] = {
        nb::borrow(subscript.attr("start")).release().ptr(),
        nb::borrow(subscript.attr("stop")).release().ptr(),
        nb::borrow(subscript.attr("step")).release().ptr(),
    };
    const nb::object start = nb::steal(parts[0]);
    const nb::object stop = nb::steal(parts[1]);
    const nb::object step = nb::steal(parts[2]);
    if (start.is_none() && stop.is_none() && step.is_none()) return all;
    for (const nb::object& part : {start, stop, step}) {
        if (nb::isinstance<Tile>(part)) {
            index_error(
                "expected static bounds of a slice but got a traced one; write tw.ds(start, size)");
        }
    }
    if (extent == kDynamic) {
        index_error("expected tw.ds(start, size) in a dynamic dimension but got a slice");
    }
    Py_ssize_t first = 0;
    Py_ssize_t end = 0;
    Py_ssize_t stride = 1;
    if (PyLong_Check(step.ptr()) && PyObject_Not(step.ptr()) == 1)
        index_error("expected a slice with a positive step but got 0");
    if (PySlice_Unpack(subscript.ptr(), &first, &end, &stride) != 0) nb::raise_python_error();
    const Py_ssize_t size = PySlice_AdjustIndices(extent, &first, &end, stride);
    if (stride < 0) {
        index_error("expected a slice with a positive step but got " + std::to_string(stride) +
                    "; the index tw.arange(" + std::to_string(first) + ", " + std::to_string(end) +
                    ", " + std::to_string(stride) + ") reads these elements in this order");
    }
    return ds(Operand(static_cast<std::int64_t>(first), kNowhere), size, stride);
}

RefIndex index_of(nb::handle subscript, std::int64_t extent) {
    if (nb::isinstance<Slice>(subscript)) return nb::cast<Slice>(subscript);
    if (PySlice_Check(subscript.ptr())) return slice_of(subscript, extent);
    if (subscript.is_none()) {
        index_error("expected an index of a Ref but got None; load first, then ref[...][:, None]");
    }
    if (PyBool_Check(subscript.ptr())) index_error("expected an integer index but got a bool");
    const Operand index = expect_operand(subscript);
    // As in NumPy, a negative number counts from the end; a traced one is out of bounds.
    if (index.kind() == Operand::Kind::signed_int && extent >= 0) {
        const auto number = static_cast<std::int64_t>(index.integer());
        if (number < 0 && number >= -extent) return Operand(number + extent, kNowhere);
    }
    return index;
}

/// ref[subscript], without touching memory.
Ref view_of(const Ref& ref, nb::handle subscript) {
    if (subscript.is(Py_Ellipsis)) return ref;
    std::vector<nb::handle> items;
    if (PyTuple_Check(subscript.ptr())) {
        for (const nb::handle item : nb::borrow<nb::tuple>(subscript)) items.push_back(item);
    } else {
        items.push_back(subscript);
    }
    const std::vector<std::int64_t> shape = ref.shape(kNowhere);
    const auto is_ellipsis = [](nb::handle item) { return item.is(Py_Ellipsis); };
    const auto ellipses = std::count_if(items.begin(), items.end(), is_ellipsis);
    if (ellipses > 1) index_error("expected at most one ... but got several");
    const std::size_t named = items.size() - static_cast<std::size_t>(ellipses);
    std::vector<RefIndex> indices;
    for (const nb::handle item : items) {
        if (is_ellipsis(item)) {
            for (std::size_t d = named; d < shape.size(); ++d) indices.emplace_back(all);
        } else {
            const std::size_t d = indices.size();
            indices.push_back(index_of(item, d < shape.size() ? shape[d] : kDynamic));
        }
    }
    return ref.select(indices, kNowhere);
}

std::optional<Operand> optional_operand(nb::handle value) {
    if (value.is_none()) return {};
    return expect_operand(value);
}

void bind_ref(nb::module_& module) {
    nb::class_<Slice>(module, "Slice", "A slice of one dimension with a start that may be traced.");
    module.def(
        "ds",
        [](nb::handle start, std::int64_t size, std::int64_t stride) {
            return ds(expect_operand(start), size, stride);
        },
        nb::arg("start").none(), nb::arg("size"), nb::arg("stride") = 1);
    nb::class_<Ref> ref(module, "Ref",
                        "A block of an array, as a kernel sees it: an input, an output, scratch.");
    ref.def_prop_ro("dtype", [](const Ref& r) { return std::string(name(r.dtype(kNowhere))); })
        .def_prop_ro("shape", [](const Ref& r) { return nb::tuple(nb::cast(r.shape(kNowhere))); })
        .def_prop_ro("ndim", [](const Ref& r) { return r.rank(kNowhere); })
        .def(
            "extent", [](const Ref& r, int dim) { return r.extent(dim, kNowhere); }, nb::arg("dim"))
        .def("view", &view_of, nb::arg("index").none())
        .def(
            "__getitem__",
            [](const Ref& r, nb::handle index) { return view_of(r, index).load({}, kNowhere); },
            nb::arg("index").none())
        .def(
            "__setitem__",
            [](const Ref& r, nb::handle index, nb::handle value) {
                view_of(r, index).store(expect_operand(value), {}, kNowhere);
            },
            nb::arg("index").none(), nb::arg("value").none())
        .def("__iter__",
             [](const Ref&) -> nb::object {
                 throw nb::type_error("a Ref cannot be iterated: load it, or use tw.for_loop");
             })
        .def(
            "load",
            [](const Ref& r, nb::handle mask, nb::handle other) {
                return r.load({optional_operand(mask), optional_operand(other)}, kNowhere);
            },
            nb::arg("mask") = nb::none(), nb::arg("other") = nb::none())
        .def(
            "store",
            [](const Ref& r, nb::handle value, nb::handle mask) {
                r.store(expect_operand(value), {optional_operand(mask)}, kNowhere);
            },
            nb::arg("value").none(), nb::arg("mask") = nb::none());
    const auto atomic = [&](const char* name, auto f) {
        ref.def(
            name,
            [f](const Ref& r, nb::handle value, nb::handle mask) {
                return (r.*f)(expect_operand(value), {optional_operand(mask)}, kNowhere);
            },
            nb::arg("value").none(), nb::arg("mask") = nb::none());
    };
    atomic("atomic_add", &Ref::atomic_add);
    atomic("atomic_max", &Ref::atomic_max);
    atomic("atomic_min", &Ref::atomic_min);
    atomic("atomic_xchg", &Ref::atomic_xchg);
    ref.def(
        "atomic_cas",
        [](const Ref& r, nb::handle expected, nb::handle desired, nb::handle mask) {
            return r.atomic_cas(expect_operand(expected), expect_operand(desired),
                                {optional_operand(mask)}, kNowhere);
        },
        nb::arg("expected").none(), nb::arg("desired").none(), nb::arg("mask") = nb::none());
}

// ---- Functions.

using Reduction = Tile (*)(Operand, std::optional<int>, bool);

/// A reduction over one axis, several or all.
Tile reduce(const char* op, Reduction f, const Operand& x, nb::handle axis, bool keepdims) {
    if (axis.is_none()) return f(x, {}, keepdims);
    if (!PyTuple_Check(axis.ptr())) return f(x, nb::cast<int>(axis), keepdims);
    std::vector<int> axes;
    const int rank = x.is_literal() ? 0 : x.tile().rank(kNowhere);
    for (const nb::handle item : nb::borrow<nb::tuple>(axis)) {
        const int given = nb::cast<int>(item);
        axes.push_back(given < 0 ? given + rank : given);
    }
    std::sort(axes.rbegin(), axes.rend());
    if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
        throw UserError("[" + std::string(op) + "] expected each axis once but got " +
                        nb::cast<std::string>(nb::str(axis)));
    }
    Operand result = x;
    for (const int a : axes) result = Operand(f(result, a, keepdims), kNowhere);
    return axes.empty() ? cast(x, x.tile().dtype(kNowhere)) : result.tile();
}

void bind_functions(nb::module_& lang) {
    lang.def(
        "program_id", [](int axis) { return program_id(axis, kNowhere); }, nb::arg("axis"));
    lang.def(
        "num_programs", [](int axis) { return num_programs(axis, kNowhere); }, nb::arg("axis"));
    lang.def(
        "iota",
        [](Extents shape, int axis, const std::string& dtype) {
            return iota(std::move(shape), axis, expect_dtype(dtype), kNowhere);
        },
        nb::arg("shape"), nb::arg("axis"), nb::arg("dtype"));
    lang.def(
        "full",
        [](Extents shape, nb::handle value, const std::string& dtype) {
            return full(std::move(shape), expect_operand(value), expect_dtype(dtype), kNowhere);
        },
        nb::arg("shape"), nb::arg("value").none(), nb::arg("dtype"));

    const auto reduction = [&](const char* name, Reduction f) {
        lang.def(
            name,
            [name, f](nb::handle x, nb::handle axis, bool keepdims) {
                return reduce(name, f, expect_operand(x), axis, keepdims);
            },
            nb::arg("x").none(), nb::arg("axis").none(), nb::arg("keepdims"));
    };
    reduction("sum", sum);
    reduction("prod", prod);
    reduction("max", max);
    reduction("min", min);
    reduction("mean", mean);
    reduction("any", any);
    reduction("all", [](Operand x, std::optional<int> axis, bool keepdims) {
        return all(x, axis, keepdims);
    });
    const auto arg_reduction = [&](const char* name, Tile (*f)(Operand, int, bool)) {
        lang.def(
            name,
            [f](nb::handle x, int axis, bool keepdims) {
                return f(expect_operand(x), axis, keepdims);
            },
            nb::arg("x").none(), nb::arg("axis"), nb::arg("keepdims"));
    };
    arg_reduction("argmax", argmax);
    arg_reduction("argmin", argmin);
    const auto scan = [&](const char* name, Tile (*f)(Operand, int, bool)) {
        lang.def(
            name,
            [f](nb::handle x, int axis, bool reverse) {
                return f(expect_operand(x), axis, reverse);
            },
            nb::arg("x").none(), nb::arg("axis"), nb::arg("reverse"));
    };
    scan("cumsum", cumsum);
    scan("cumprod", cumprod);
    scan("cummax", cummax);
    scan("cummin", cummin);
    scan("cumlogsumexp", cumlogsumexp);

    lang.def(
        "sort",
        [](nb::handle x, int axis, bool descending) {
            return sort(expect_operand(x), axis, descending);
        },
        nb::arg("x").none(), nb::arg("axis"), nb::arg("descending"));
    lang.def(
        "argsort",
        [](nb::handle x, int axis, bool descending) {
            return argsort(expect_operand(x), axis, descending);
        },
        nb::arg("x").none(), nb::arg("axis"), nb::arg("descending"));
    lang.def(
        "sort_by_key",
        [](nb::handle keys, nb::handle values, int axis, bool descending) {
            return sort_by_key(expect_operand(keys), expect_operand(values), axis, descending);
        },
        nb::arg("keys").none(), nb::arg("values").none(), nb::arg("axis"), nb::arg("descending"));
    lang.def(
        "top_k",
        [](nb::handle x, std::int64_t count, int axis) {
            return top_k(expect_operand(x), count, axis);
        },
        nb::arg("x").none(), nb::arg("count"), nb::arg("axis"));
    lang.def(
        "take_along_axis",
        [](nb::handle x, nb::handle places, int axis) {
            return take_along_axis(expect_operand(x), expect_operand(places), axis);
        },
        nb::arg("x").none(), nb::arg("places").none(), nb::arg("axis"));
    lang.def(
        "one_hot",
        [](nb::handle places, std::int64_t depth, const std::string& dtype, int axis) {
            return one_hot(expect_operand(places), depth, expect_dtype(dtype), axis);
        },
        nb::arg("places").none(), nb::arg("depth"), nb::arg("dtype"), nb::arg("axis"));

    lang.def(
        "bitcast",
        [](nb::handle x, const std::string& dtype) {
            return bitcast(expect_operand(x), expect_dtype(dtype));
        },
        nb::arg("x").none(), nb::arg("dtype"));
    lang.def(
        "reshape",
        [](nb::handle x, Extents shape) { return reshape(expect_operand(x), std::move(shape)); },
        nb::arg("x").none(), nb::arg("shape"));
    lang.def(
        "transpose",
        [](nb::handle x, std::vector<int> axes) {
            return transpose(expect_operand(x), std::move(axes));
        },
        nb::arg("x").none(), nb::arg("axes"));
    lang.def(
        "expand_dims", [](nb::handle x, int axis) { return expand_dims(expect_operand(x), axis); },
        nb::arg("x").none(), nb::arg("axis"));
    lang.def(
        "squeeze", [](nb::handle x, int axis) { return squeeze(expect_operand(x), axis); },
        nb::arg("x").none(), nb::arg("axis"));
    lang.def(
        "broadcast_to",
        [](nb::handle x, Extents shape) {
            return broadcast_to(expect_operand(x), std::move(shape));
        },
        nb::arg("x").none(), nb::arg("shape"));
    lang.def(
        "slice",
        [](nb::handle x, Extents starts, Extents sizes, Extents strides) {
            return slice(expect_operand(x), std::move(starts), std::move(sizes),
                         std::move(strides));
        },
        nb::arg("x").none(), nb::arg("starts"), nb::arg("sizes"), nb::arg("strides"));
    lang.def(
        "concatenate",
        [](const std::vector<Tile>& parts, int axis) { return concatenate(parts, axis, kNowhere); },
        nb::arg("parts"), nb::arg("axis"));
    lang.def(
        "dot",
        [](nb::handle a, nb::handle b, std::optional<Tile> acc, const std::string& precision,
           bool trans_a, bool trans_b) {
            const Precision kind = precision == "tf32"     ? Precision::tf32
                                   : precision == "tf32x3" ? Precision::tf32x3
                                                           : Precision::ieee;
            return dot(expect_operand(a), expect_operand(b), {trans_a, trans_b, acc, kind});
        },
        nb::arg("a").none(), nb::arg("b").none(), nb::arg("acc").none(), nb::arg("precision"),
        nb::arg("trans_a"), nb::arg("trans_b"));

    lang.def(
        "gelu", [](nb::handle x, bool approximate) { return gelu(expect_operand(x), approximate); },
        nb::arg("x").none(), nb::arg("approximate"));
    lang.def(
        "cdiv",
        [](nb::handle x, nb::handle y) { return cdiv(expect_operand(x), expect_operand(y)); },
        nb::arg("x").none(), nb::arg("y").none());
    lang.def(
        "fma",
        [](nb::handle a, nb::handle b, nb::handle c) {
            return fma(expect_operand(a), expect_operand(b), expect_operand(c));
        },
        nb::arg("a").none(), nb::arg("b").none(), nb::arg("c").none());
    lang.def(
        "random_bits",
        [](nb::handle seed, nb::handle counter) {
            return random_bits(expect_operand(seed), expect_operand(counter));
        },
        nb::arg("seed").none(), nb::arg("counter").none());
    lang.def(
        "uniform",
        [](nb::handle seed, nb::handle counter) {
            return uniform(expect_operand(seed), expect_operand(counter));
        },
        nb::arg("seed").none(), nb::arg("counter").none());
    lang.def(
        "debug_print",
        [](std::string format, const std::vector<Tile>& operands) {
            debug_print(std::move(format), operands, kNowhere);
        },
        nb::arg("format"), nb::arg("operands"));
    lang.def(
        "debug_check",
        [](nb::handle condition, std::string message) {
            debug_check(expect_operand(condition), std::move(message));
        },
        nb::arg("condition").none(), nb::arg("message"));
}

// ---- Control flow over flat carries; Python flattens and rebuilds them.

void bind_control(nb::module_& lang) {
    lang.def(
        "for_loop",
        [](nb::handle low, nb::handle high, nb::handle step, const nb::list& init,
           const nb::callable& body) {
            return list_of(detail::for_loop(
                expect_operand(low), expect_operand(high), expect_operand(step), operands_of(init),
                [&](Tile i, std::span<const Tile> carry) {
                    return operands_of(nb::cast<nb::list>(body(i, list_of(carry))));
                },
                kNowhere));
        },
        nb::arg("low").none(), nb::arg("high").none(), nb::arg("step").none(), nb::arg("init"),
        nb::arg("body"));
    lang.def(
        "while_loop",
        [](const nb::list& init, const nb::callable& condition, const nb::callable& body) {
            return list_of(detail::while_loop(
                operands_of(init),
                [&](std::span<const Tile> carry) {
                    return expect_operand(condition(list_of(carry)));
                },
                [&](std::span<const Tile> carry) {
                    return operands_of(nb::cast<nb::list>(body(list_of(carry))));
                },
                kNowhere));
        },
        nb::arg("init"), nb::arg("condition").none(), nb::arg("body"));
    lang.def(
        "if_else",
        [](const std::string& op, nb::handle condition, const nb::callable& then_branch,
           const nb::callable& else_branch) {
            const auto run = [](const nb::callable& branch) {
                return [&branch] { return operands_of(nb::cast<nb::list>(branch())); };
            };
            return list_of(detail::if_else(op == "when" ? "when" : "cond",
                                           expect_operand(condition), run(then_branch),
                                           run(else_branch), kNowhere));
        },
        nb::arg("op"), nb::arg("condition").none(), nb::arg("then_branch"), nb::arg("else_branch"));
    const auto combining = [&](const char* name, auto f) {
        lang.def(
            name,
            [f](const nb::callable& combine, const nb::list& elements, int axis, bool flag) {
                const detail::Combine call = [&](std::span<const Tile> before,
                                                 std::span<const Tile> after) {
                    return operands_of(
                        nb::cast<nb::list>(combine(list_of(before), list_of(after))));
                };
                return list_of(f(call, operands_of(elements), axis, flag, kNowhere));
            },
            nb::arg("combine"), nb::arg("elements"), nb::arg("axis"), nb::arg("flag"));
    };
    combining("associative_scan", &detail::associative_scan);
    combining("reduce", &detail::reduce);
    nb::class_<detail::Values>(lang, "Values")
        .def_prop_ro("results",
                     [](const detail::Values& values) { return list_of(values.results); })
        .def(
            "pull_back",
            [](const detail::Values& values, const nb::list& cotangents) {
                return list_of(detail::pull_back(*values.trace, operands_of(cotangents), kNowhere));
            },
            nb::arg("cotangents"));
    lang.def(
        "vjp",
        [](const nb::callable& function, const nb::list& primals) {
            return detail::vjp(
                [&](std::span<const Tile> tiles) {
                    return operands_of(nb::cast<nb::list>(function(list_of(tiles))));
                },
                operands_of(primals), kNowhere);
        },
        nb::arg("function"), nb::arg("primals"));
    lang.def(
        "scan",
        [](const nb::list& init, const nb::list& xs, const nb::callable& body) {
            std::vector<Ref> rows;
            for (const nb::handle x : xs) rows.push_back(detail::scan_input(expect_operand(x), {}));
            std::vector<Ref> stacks;
            const std::int64_t length = rows.front().shape(kNowhere)[0];
            for (const Ref& ref : rows) {
                if (ref.shape(kNowhere)[0] == length) continue;
                throw UserError("[scan] expected tiles of " + std::to_string(length) +
                                " rows but got one of " + std::to_string(ref.shape(kNowhere)[0]));
            }
            const detail::Tiles carry = detail::for_loop(
                Operand(0, kNowhere), Operand(length, kNowhere), Operand(1, kNowhere),
                operands_of(init),
                [&](Tile i, std::span<const Tile> now) {
                    nb::list row;
                    for (const Ref& ref : rows) {
                        row.append(ref.select({Operand(i, kNowhere)}, kNowhere).load({}, kNowhere));
                    }
                    const auto step = nb::cast<nb::tuple>(body(list_of(now), row));
                    detail::scan_store(rows.front(), i, operands_of(nb::cast<nb::list>(step[1])),
                                       stacks, kNowhere);
                    return operands_of(nb::cast<nb::list>(step[0]));
                },
                kNowhere);
            nb::list ys;
            for (const Ref& stack : stacks) ys.append(stack.load({}, kNowhere));
            return nb::make_tuple(list_of(carry), ys);
        },
        nb::arg("init"), nb::arg("xs"), nb::arg("body"));
}

}  // namespace

bool in_kernel() {
    return kernels > 0;
}

KernelScope::KernelScope() : lines_(&python_line) {
    ++kernels;
}

KernelScope::~KernelScope() {
    --kernels;
}

DType expect_dtype(const std::string& name) {
    const auto type = parse_dtype(name);
    if (!type) throw nb::value_error(("unknown dtype " + name).c_str());
    return *type;
}

Device expect_device(const std::string& name) {
    if (name == "cpu") return {};
    const std::size_t colon = name.find(':');
    return Device::cuda(colon == std::string::npos ? 0 : std::stoi(name.substr(colon + 1)));
}

void bind_lang(nb::module_& module) {
    auto tile = nb::borrow<nb::class_<Tile>>(nb::type<Tile>());
    tile.def_prop_ro("shape", [](const Tile& t) { return nb::tuple(nb::cast(t.shape(kNowhere))); })
        .def_prop_ro("ndim", [](const Tile& t) { return t.rank(kNowhere); })
        .def_prop_ro("size", [](const Tile& t) { return t.size(kNowhere); });
    nb::module_ lang = module.def_submodule("lang", "The kernel language.");
    bind_ref(lang);
    bind_functions(lang);
    bind_control(lang);
    lang.def("set_package_folder", [](const std::string& folder) { package_folder() = folder; });
    lang.def("in_kernel", &in_kernel);
}

}  // namespace tilewright::python
