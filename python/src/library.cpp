// The libraries of masks and scores of tilewright._core: submodules `masks` and `scores`.
#include "bindings.h"
#include "nanobind/stl/map.h"
#include "nanobind/stl/string.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::python {
namespace {

void bind_scores(nb::module_ library) {
    using namespace scores;
    using nb::arg;
    library.def("alibi", nb::overload_cast<std::int64_t>(&alibi), arg("heads"));
    library.def(
        "alibi", nb::overload_cast<const Capture&>(&alibi), arg("slopes"),
        "s + slope[h] * (kv - q); for a number of heads slope[h] = 2^(-8 (h + 1) / heads).");
    library.def("softcap", &softcap, arg("cap"), arg("approx") = false,
                "cap * tanh(s / cap); `approx` allows the hardware's tanh.");
    library.def("relative_position", &relative_position, "s + (q - kv).");
    library.def(
        "bias", &bias, arg("table"),
        "s + table, of shape (q, kv), (h, q, kv) or (b, h, q, kv); extents of 1 broadcast.");
    library.def("t5", &t5, arg("table"), arg("bidirectional") = true, arg("max_distance") = 128,
                "T5's bias: s + table[bucket(kv - q), h]; table (buckets, heads).");
    library.def("sandwich", &sandwich, arg("heads"), arg("max_length"), arg("dim") = 128,
                "Sandwich: s + heads / (8 (h + 1)) * sum over i < dim / 2 of cos(|q - kv| / "
                "10000^(2i / dim)); distances from max_length on count as that.");
    library.def("graphormer_spatial", &graphormer_spatial, arg("bias"), arg("distance"),
                "s + bias[h, distance[b, q, kv]]; bias (heads, buckets).");
    library.def("graphormer_edge", &graphormer_edge, arg("edge_bias"), arg("types"), arg("lengths"),
                "s + mean over the first lengths[b, q, kv] edges n of edge_bias[h, n, types[b, q, "
                "kv, n]].");
    library.def("activation", &activation, arg("f"), arg("n") = 0.0,
                "log(f(s) + n): softmax becomes a normalised f, one of relu, sigmoid, softplus, "
                "exp, square.");
    library.def("mla_rope", &mla_rope, arg("q_rope"), arg("k_rope"), arg("scale"),
                "s + scale * <q_rope[b, h, q], k_rope[b, h / group, kv]>.");
    library.def("checkerboard", &checkerboard, arg("even") = 1.0, arg("odd") = 0.5,
                "s * even where |kv - q| is even, else s * odd.");
}

void bind_masks(nb::module_ library) {
    using namespace masks;
    using nb::arg;
    library.def("causal", &causal, "q >= kv.");
    library.def("sliding_window", &sliding_window, arg("w"), "0 <= q - kv <= w.");
    library.def("prefix_lm", &prefix_lm, arg("p"), "kv < p or q >= kv.");
    library.def("document", &document, arg("ids"),
                "Positions with equal ids; ids (position) or (batch, position). Not causal.");
}

}  // namespace

void bind_library(nb::module_& module) {
    bind_scores(module.def_submodule("scores"));
    bind_masks(module.def_submodule("masks"));
    module.def("compose", &compose, nb::arg("outer"), nb::arg("inner"));
    module.def(
        "parse_mod",
        [](const std::string& text, const std::map<std::string, Tensor>& arrays,
           const std::string& kind) {
            return parse_mod(text, arrays,
                             kind.empty()     ? std::optional<Mod::Kind>()
                             : kind == "mask" ? Mod::Kind::mask
                                              : Mod::Kind::score);
        },
        nb::arg("text"), nb::arg("arrays"), nb::arg("kind"));
}

}  // namespace tilewright::python
