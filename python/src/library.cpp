// Bindings of the libraries of masks and scores: submodules `masks` and `scores`.
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
    for (const char* name : {"slopes_or_heads", "heads"})
        library.def("alibi", nb::overload_cast<std::int64_t>(&alibi), arg(name));
    for (const char* name : {"slopes_or_heads", "slopes"}) {
        library.def(
            "alibi", nb::overload_cast<const Capture&>(&alibi), arg(name),
            "s + slope[h] * (kv - q); for a number of heads slope[h] = 2^(-8 (h + 1) / heads).");
    }
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
    using Index = std::int64_t;
    const auto def = [&](auto&&... arguments) { library.def(arguments...); };
    def("noop", &noop, "Every pair.");
    def("causal", &causal, "q >= kv.");
    def("sliding_window", &sliding_window, arg("w"), "0 <= q - kv <= w.");
    def("window", &window, arg("left"), arg("right"),
        "q - left <= kv <= q + right; -1 leaves a side open.");
    def("dilated_window", &dilated_window, arg("w"), arg("d"),
        "|q - kv| <= w, every d-th of them.");
    def("strided", &strided, arg("stride"),
        "Causal: the last `stride` keys, and before them every stride-th.");
    def("global_tokens", &global_tokens, arg("w"), arg("flags"),
        "|q - kv| <= w, or either position is flagged; flags bool (position).");
    def("prefix_lm", nb::overload_cast<Index>(&prefix_lm), arg("p"), "kv < p or q >= kv.");
    def("prefix_lm", nb::overload_cast<const Capture&>(&prefix_lm), arg("p"),
        "The same with a length for each batch: p (batch).");
    def("document", &document, arg("ids"),
        "Positions with equal ids; ids (position) or (batch, position). Not causal.");
    def("segment", &segment, arg("q_ids"), arg("kv_ids"),
        "Queries and keys with equal ids, both (position) or (batch, position).");
    def("jagged", &jagged, arg("mask"), arg("offsets"),
        "Packed sequences, offsets (sequences + 1): they must match, and mask sees positions that "
        "restart in each.");
    def("packed_causal", &packed_causal, arg("offsets"), "Causal within each packed sequence.");
    def("batchify", &batchify, arg("mask"), arg("n"), "Packed sequences of n positions each.");
    def("chunked", &chunked, arg("n"), "Causal within chunks of n positions, as in Llama 4.");
    def("offset", nb::overload_cast<const Mod&, Index, Index>(&offset), arg("mask"),
        arg("q_offset"), arg("kv_offset"), "mask(q + q_offset, kv + kv_offset).");
    def("offset", nb::overload_cast<const Mod&, const Capture&, const Capture&>(&offset),
        arg("mask"), arg("q_offset"), arg("kv_offset"));
    def("shared_prefix", &shared_prefix, arg("offsets"), arg("prefix"),
        "Packed sequences, causal, that also see all of the sequence prefix[sequence]; -1: none.");
    def("block_diffusion", &block_diffusion, arg("n"), arg("block"),
        "Block diffusion over 2n positions, n noised and then n clean.");
    def("tree", &tree, arg("ancestors"), arg("prefix"),
        "kv < prefix, or ancestors[q, kv - prefix].");
    def("tree_training", &tree_training, arg("prefix"), arg("n"),
        "kv < prefix, or the key lies in the query's group of n at or before its place.");
    def("sasa", &sasa, arg("width"), arg("window"),
        "Stand-alone self-attention: rows and columns at most `window` apart.");
    def("natten", &natten, arg("width"), arg("height"), arg("kernel_w"), arg("kernel_h"),
        "Keys within a window around the query, moved to stay on the canvas.");
    def("tiled_natten", &tiled_natten, arg("width"), arg("height"), arg("kernel_w"),
        arg("kernel_h"), arg("tile_w"), arg("tile_h"),
        "natten with positions counted tile by tile.");
    def("morton_natten", &morton_natten, arg("width"), arg("height"), arg("kernel_w"),
        arg("kernel_h"), "natten with positions in Z-order.");
    def("sliding_tile_2d", &sliding_tile_2d, arg("width"), arg("height"), arg("kernel_w"),
        arg("kernel_h"), arg("tile_w"), arg("tile_h"), arg("text") = 0,
        "Sliding tile attention: whole tiles within a kernel; text sees and is seen by all.");
    def("sliding_tile_3d", &sliding_tile_3d, arg("width"), arg("height"), arg("frames"),
        arg("kernel_w"), arg("kernel_h"), arg("kernel_f"), arg("tile_w"), arg("tile_h"),
        arg("tile_f"), arg("text") = 0, "The same over frames, rows and columns.");
    def("vision_cross_attention", &vision_cross_attention, arg("intervals"), arg("image_len"),
        "Queries [start, end) of intervals[image] see image kv // image_len.");
    def("spatial_head", &spatial_head, arg("prompt"), arg("frame_tokens"), arg("width") = 2,
        arg("sink") = false, arg("round") = 128, "Video: near tokens, and the prompt.");
    def("temporal_head", &temporal_head, arg("prompt"), arg("frames"), arg("frame_tokens"),
        arg("width") = 2, "Video: near places within the frames, and the prompt.");
    def("selected_tiles", nb::overload_cast<const Capture&, Index>(&selected_tiles), arg("topk"),
        arg("tile"), "Video: the key's tile is one of topk[b, h, q // tile].");
    def("selected_tiles", nb::overload_cast<const Capture&, Index, const Capture&>(&selected_tiles),
        arg("topk"), arg("tile"), arg("sizes"));
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
