// Bindings of attention in tilewright._core.
#include "tilewright/attention.h"

#include <optional>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/tuple.h"
#include "nanobind/stl/vector.h"
#include "tilewright/first_calls.h"

namespace tilewright::python {
namespace {

/// Block sizes of queries and keys, warps, stages.
using BlockNumbers = std::tuple<std::int64_t, std::int64_t, int, int>;

BlockNumbers numbers_of(const AttentionBlocks& blocks) {
    return {blocks.q, blocks.kv, blocks.num_warps, blocks.num_stages};
}

AttentionBlocks blocks_of(const BlockNumbers& numbers) {
    const auto& [q, kv, num_warps, num_stages] = numbers;
    return {.q = q, .kv = kv, .num_warps = num_warps, .num_stages = num_stages};
}

/// NoCompactKernels as a context manager.
struct NoCompact {
    std::optional<NoCompactKernels> entered;
};

}  // namespace

void bind_attention(nb::module_& module) {
    using Options = AttentionOptions;
    using Bounds = std::pair<std::int64_t, std::int64_t>;
    using Released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Options>(module, "AttentionOptions")
        .def(nb::init<>())
        .def_prop_rw(
            "scale", [](const Options& o) { return o.scale.value_or(0); },
            [](Options& o, double scale) { o.scale = scale; })
        .def_rw("causal", &Options::causal)
        .def_prop_rw(
            "window", [](const Options& o) { return Bounds(o.window.left, o.window.right); },
            [](Options& o, Bounds bounds) {
                o.window = {bounds.first, bounds.second};
            })
        .def_rw("segment_ids", &Options::segment_ids)
        .def_rw("kv_segment_ids", &Options::kv_segment_ids)
        .def_rw("mask", &Options::mask)
        .def_rw("block_mask", &Options::block_mask)
        .def_rw("score_mod", &Options::score_mod)
        .def_rw("cu_seqlens", &Options::cu_seqlens)
        .def_rw("kv_cu_seqlens", &Options::kv_cu_seqlens)
        .def_rw("kv_lengths", &Options::kv_lengths)
        .def_rw("sinks", &Options::sinks)
        .def_rw("dropout", &Options::dropout)
        .def_rw("seed", &Options::seed)
        .def_prop_rw(
            "bshd", [](const Options& o) { return o.layout == Layout::bshd; },
            [](Options& o, bool bshd) { o.layout = bshd ? Layout::bshd : Layout::bhsd; })
        .def_prop_rw(
            "origin",
            [](const Options& o) {
                const auto origin = o.origin.value_or(std::array<std::int64_t, 2>{});
                return Bounds(origin[0], origin[1]);
            },
            [](Options& o, Bounds origin) {
                o.origin = {origin.first, origin.second};
            })
        .def_rw("deterministic", &Options::deterministic)
        .def_rw("checked", &Options::checked)
        .def_rw("max_scores", &Options::max_scores)
        .def_rw("gradient", &Options::gradient)
        .def_rw("engine", &Options::engine)
        .def_rw("precision", &Options::precision)
        .def_prop_rw(
            "forward_blocks", [](const Options& o) { return numbers_of(o.forward_blocks); },
            [](Options& o, BlockNumbers blocks) { o.forward_blocks = blocks_of(blocks); })
        .def_prop_rw(
            "backward_blocks", [](const Options& o) { return numbers_of(o.backward_blocks); },
            [](Options& o, BlockNumbers blocks) { o.backward_blocks = blocks_of(blocks); })
        .def_rw("autotune", &Options::autotune);
    nb::class_<AttentionOutput>(module, "AttentionOutput")
        .def_ro("out", &AttentionOutput::out)
        .def_ro("lse", &AttentionOutput::lse)
        .def_ro("max_scores", &AttentionOutput::max_scores);
    nb::class_<AttentionGradients>(module, "AttentionGradients")
        .def_ro("query", &AttentionGradients::query)
        .def_ro("key", &AttentionGradients::key)
        .def_ro("value", &AttentionGradients::value)
        .def_ro("sinks", &AttentionGradients::sinks)
        .def_ro("captured", &AttentionGradients::captured);
    nb::class_<NoCompact>(module, "NoCompactKernels")
        .def(nb::init<>())
        .def("__enter__", [](NoCompact& self) { self.entered.emplace(); })
        .def("__exit__", [](NoCompact& self, const nb::args&) { self.entered.reset(); });
    module.def("attention", &attention, nb::arg("query"), nb::arg("key"), nb::arg("value"),
               nb::arg("options"), Released());
    module.def("attention_backward", &attention_backward, nb::arg("query"), nb::arg("key"),
               nb::arg("value"), nb::arg("forward"), nb::arg("dout"), nb::arg("options"),
               nb::arg("dlse"), Released());
}

}  // namespace tilewright::python
