// Bindings of the program builder, for front ends whose graphs are typed.
#include "tilewright/program_builder.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/string_view.h"
#include "nanobind/stl/tuple.h"
#include "nanobind/stl/vector.h"
#include "operand.h"

namespace tilewright::python {
namespace {

using Value = ProgramBuilder::Value;
using Values = ProgramBuilder::Values;
using Index = ProgramBuilder::Index;
using Extents = std::vector<std::int64_t>;

/// (kind, start, size, stride) for each dimension.
using GivenIndices = std::vector<std::tuple<std::string, Value, std::int64_t, std::int64_t>>;

/// Terms as (scalar, dtype, factor), and a ProgramBuilder::IndexForm as (offset, terms, steps).
using GivenTerm = std::tuple<Value, std::string_view, std::int64_t>;
using GivenForm = std::tuple<std::int64_t, std::vector<GivenTerm>, std::vector<std::int64_t>>;

/// (lowest, highest) value of an integer or bool.
using Range = std::pair<std::int64_t, std::int64_t>;

std::optional<Range> pair_of(const std::optional<IntegerRange>& range) {
    if (!range) return {};
    return Range{range->low, range->high};
}

std::vector<Index> indices_of(const GivenIndices& given) {
    std::vector<Index> indices;
    for (const auto& [kind, start, size, stride] : given) {
        indices.push_back({kind == "tile"    ? Index::Kind::tile
                           : kind == "slice" ? Index::Kind::slice
                                             : Index::Kind::scalar,
                           start, size, stride});
    }
    return indices;
}

void bind_builder(nb::module_& module) {
    nb::class_<ProgramBuilder> builder(
        module, "ProgramBuilder",
        "A kernel of the tile IR under construction. Values are numbers; operations go by the "
        "names of the reference and take exactly the operands that they take there.");
    builder.def(nb::init<std::string>(), nb::arg("name"))
        .def(
            "ref",
            [](ProgramBuilder& b, std::string name, const std::string& dtype, Extents extents,
               int alias_group) {
                return b.ref(std::move(name), expect_dtype(dtype), std::move(extents), alias_group);
            },
            nb::arg("name"), nb::arg("dtype"), nb::arg("extents"), nb::arg("alias_group") = -1)
        .def(
            "scratch",
            [](ProgramBuilder& b, std::string name, const std::string& dtype, Extents extents) {
                return b.scratch(std::move(name), expect_dtype(dtype), std::move(extents));
            },
            nb::arg("name"), nb::arg("dtype"), nb::arg("extents"))
        .def("add_grid_axis", &ProgramBuilder::add_grid_axis, nb::arg("extent"))
        .def("set_hints", &ProgramBuilder::set_hints, nb::arg("num_warps"), nb::arg("num_stages"))
        .def("set_location", &ProgramBuilder::set_location, nb::arg("file"), nb::arg("line"))
        .def(
            "constant",
            [](ProgramBuilder& b, const std::string& dtype, const Extents& shape, double value) {
                return b.constant(expect_dtype(dtype), shape, value);
            },
            nb::arg("dtype"), nb::arg("shape"), nb::arg("value"))
        .def(
            "constant_int",
            [](ProgramBuilder& b, const std::string& dtype, const Extents& shape,
               std::int64_t value) { return b.constant_int(expect_dtype(dtype), shape, value); },
            nb::arg("dtype"), nb::arg("shape"), nb::arg("value"))
        .def(
            "apply",
            [](ProgramBuilder& b, const std::string& op, const Values& operands,
               const std::string& dtype, const Extents& shape, int axis, bool approx, bool reverse,
               std::vector<int> permutation, Extents starts, Extents sizes, Extents strides,
               std::string kind, bool transpose_a, bool transpose_b, std::string precision,
               std::int64_t count, bool descending) {
                return b.apply(op, operands, expect_dtype(dtype), shape,
                               {axis, approx, reverse, std::move(permutation), std::move(starts),
                                std::move(sizes), std::move(strides), std::move(kind), transpose_a,
                                transpose_b, std::move(precision), count, descending});
            },
            nb::arg("op"), nb::arg("operands"), nb::arg("dtype"), nb::arg("shape"),
            nb::arg("axis") = 0, nb::arg("approx") = false, nb::arg("reverse") = false,
            nb::arg("permutation") = std::vector<int>(), nb::arg("starts") = Extents(),
            nb::arg("sizes") = Extents(), nb::arg("strides") = Extents(), nb::arg("kind") = "",
            nb::arg("transpose_a") = false, nb::arg("transpose_b") = false,
            nb::arg("precision") = "ieee", nb::arg("count") = 0, nb::arg("descending") = false);
    builder
        .def(
            "load",
            [](ProgramBuilder& b, Value ref, const GivenIndices& indices, std::optional<Value> mask,
               std::optional<Value> other) {
                return b.load(ref, indices_of(indices), mask, other);
            },
            nb::arg("ref"), nb::arg("indices"), nb::arg("mask").none() = nb::none(),
            nb::arg("other").none() = nb::none())
        .def(
            "store",
            [](ProgramBuilder& b, Value ref, const GivenIndices& indices, Value value,
               std::optional<Value> mask) { b.store(ref, indices_of(indices), value, mask); },
            nb::arg("ref"), nb::arg("indices"), nb::arg("value"),
            nb::arg("mask").none() = nb::none())
        .def(
            "atomic",
            [](ProgramBuilder& b, const std::string& op, Value ref, const GivenIndices& indices,
               const Values& values, std::optional<Value> mask) {
                return b.atomic(op, ref, indices_of(indices), values, mask);
            },
            nb::arg("op"), nb::arg("ref"), nb::arg("indices"), nb::arg("values"),
            nb::arg("mask").none() = nb::none())
        .def(
            "debug_print",
            [](ProgramBuilder& b, std::string format, const Values& operands) {
                b.debug_print(std::move(format), operands);
            },
            nb::arg("format"), nb::arg("operands"))
        .def("debug_check", &ProgramBuilder::debug_check, nb::arg("condition"), nb::arg("message"));
    builder
        .def(
            "for_loop",
            [](ProgramBuilder& b, Value low, Value high, Value step, const Values& init,
               const nb::callable& body) {
                return b.for_loop(low, high, step, init, [&](Value i, const Values& carries) {
                    return nb::cast<Values>(body(i, carries));
                });
            },
            nb::arg("low"), nb::arg("high"), nb::arg("step"), nb::arg("init"), nb::arg("body"),
            "`body(i, carries)` gives the next carries.")
        .def(
            "while_loop",
            [](ProgramBuilder& b, const Values& init, const nb::callable& condition,
               const nb::callable& body) {
                return b.while_loop(
                    init,
                    [&](const Values& carries) { return nb::cast<Value>(condition(carries)); },
                    [&](const Values& carries) { return nb::cast<Values>(body(carries)); });
            },
            nb::arg("init"), nb::arg("condition"), nb::arg("body"))
        .def(
            "if_else",
            [](ProgramBuilder& b, Value condition, const nb::callable& then_branch,
               const nb::callable& else_branch) {
                return b.if_else(
                    condition, [&] { return nb::cast<Values>(then_branch()); },
                    [&] { return nb::cast<Values>(else_branch()); });
            },
            nb::arg("condition"), nb::arg("then_branch"), nb::arg("else_branch"))
        .def(
            "index_form",
            [](const ProgramBuilder& b, Value value) -> std::optional<GivenForm> {
                const std::optional<ProgramBuilder::IndexForm> form = b.index_form(value);
                if (!form) return {};
                std::vector<GivenTerm> terms;
                for (const auto& [scalar, dtype, factor] : form->terms) {
                    terms.emplace_back(scalar, name(dtype), factor);
                }
                return GivenForm{form->offset, std::move(terms), form->steps};
            },
            nb::arg("value"),
            "(offset, [(scalar, dtype, factor), ...], [step of each axis, ...]) of an integer that "
            "is offset + sum of factor * scalar + sum of step * index along the axis where nothing "
            "wraps, else None.")
        .def(
            "range", [](const ProgramBuilder& b, Value value) { return pair_of(b.range(value)); },
            nb::arg("value"),
            "(least, greatest) element of an integer or bool; None where it may be any value.")
        .def("text", &ProgramBuilder::text, "The program with source lines, as text.");
}

}  // namespace

void bind_program_builder(nb::module_& module) {
    bind_builder(module);
    module.def(
        "integer_range",
        [](const std::string& op, const std::string& in, const std::string& out,
           const std::vector<Range>& operands) -> std::optional<Range> {
            std::vector<IntegerRange> ranges;
            for (const auto& [low, high] : operands) ranges.push_back({low, high});
            return pair_of(integer_range(op, expect_dtype(in), expect_dtype(out), ranges));
        },
        nb::arg("op"), nb::arg("in_dtype"), nb::arg("out_dtype"), nb::arg("operands"),
        "What an elementwise operation gives over ranges (low, high) of its operands; None where "
        "it may be any value.");
}

}  // namespace tilewright::python
