// The names by which texts call the library of masks.
#include "mod/library.h"
#include "tilewright/masks.h"

namespace tilewright::mod {

std::span<const LibraryEntry> mask_library() {
    using A = const Arguments&;
    constexpr auto kMask = Mod::Kind::mask;
    namespace m = masks;
    static const std::vector<LibraryEntry> kEntries{
        {"noop", kMask, {}, 0, [](A) { return m::noop(); }},
        {"causal", kMask, {}, 0, [](A) { return m::causal(); }},
        {"sliding_window", kMask, {"w"}, 1, [](A a) { return m::sliding_window(a.integer(0)); }},
        {"window",
         kMask,
         {"left", "right"},
         2,
         [](A a) { return m::window(a.integer(0), a.integer(1)); }},
        {"dilated_window",
         kMask,
         {"w", "d"},
         2,
         [](A a) { return m::dilated_window(a.integer(0), a.integer(1)); }},
        {"strided", kMask, {"stride"}, 1, [](A a) { return m::strided(a.integer(0)); }},
        {"global_tokens",
         kMask,
         {"w", "flags"},
         2,
         [](A a) { return m::global_tokens(a.integer(0), a.array(1)); }},
        {"prefix_lm",
         kMask,
         {"p"},
         1,
         [](A a) { return a.is_array(0) ? m::prefix_lm(a.array(0)) : m::prefix_lm(a.integer(0)); }},
        {"document", kMask, {"ids"}, 1, [](A a) { return m::document(a.array(0)); }},
        {"segment",
         kMask,
         {"q_ids", "kv_ids"},
         2,
         [](A a) { return m::segment(a.array(0), a.array(1)); }},
        {"jagged",
         kMask,
         {"mask", "offsets"},
         2,
         [](A a) { return m::jagged(a.mask(0), a.array(1)); }},
        {"packed_causal", kMask, {"offsets"}, 1, [](A a) { return m::packed_causal(a.array(0)); }},
        {"batchify",
         kMask,
         {"mask", "n"},
         2,
         [](A a) { return m::batchify(a.mask(0), a.integer(1)); }},
        {"chunked", kMask, {"n"}, 1, [](A a) { return m::chunked(a.integer(0)); }},
        {"offset",
         kMask,
         {"mask", "q_offset", "kv_offset"},
         3,
         [](A a) {
             return a.is_array(1) ? m::offset(a.mask(0), a.array(1), a.array(2))
                                  : m::offset(a.mask(0), a.integer(1), a.integer(2));
         }},
        {"shared_prefix",
         kMask,
         {"offsets", "prefix"},
         2,
         [](A a) { return m::shared_prefix(a.array(0), a.array(1)); }},
        {"block_diffusion",
         kMask,
         {"n", "block"},
         2,
         [](A a) { return m::block_diffusion(a.integer(0), a.integer(1)); }},
        {"tree",
         kMask,
         {"ancestors", "prefix"},
         2,
         [](A a) { return m::tree(a.array(0), a.integer(1)); }},
        {"tree_training",
         kMask,
         {"prefix", "n"},
         2,
         [](A a) { return m::tree_training(a.integer(0), a.integer(1)); }},
        {"sasa",
         kMask,
         {"width", "window"},
         2,
         [](A a) { return m::sasa(a.integer(0), a.integer(1)); }},
        {"natten",
         kMask,
         {"width", "height", "kernel_w", "kernel_h"},
         4,
         [](A a) { return m::natten(a.integer(0), a.integer(1), a.integer(2), a.integer(3)); }},
        {"tiled_natten",
         kMask,
         {"width", "height", "kernel_w", "kernel_h", "tile_w", "tile_h"},
         6,
         [](A a) {
             return m::tiled_natten(a.integer(0), a.integer(1), a.integer(2), a.integer(3),
                                    a.integer(4), a.integer(5));
         }},
        {"morton_natten",
         kMask,
         {"width", "height", "kernel_w", "kernel_h"},
         4,
         [](A a) {
             return m::morton_natten(a.integer(0), a.integer(1), a.integer(2), a.integer(3));
         }},
        {"sliding_tile_2d",
         kMask,
         {"width", "height", "kernel_w", "kernel_h", "tile_w", "tile_h", "text"},
         6,
         [](A a) {
             return m::sliding_tile_2d(a.integer(0), a.integer(1), a.integer(2), a.integer(3),
                                       a.integer(4), a.integer(5), a.integer(6, 0));
         }},
        {"sliding_tile_3d",
         kMask,
         {"width", "height", "frames", "kernel_w", "kernel_h", "kernel_f", "tile_w", "tile_h",
          "tile_f", "text"},
         9,
         [](A a) {
             return m::sliding_tile_3d(a.integer(0), a.integer(1), a.integer(2), a.integer(3),
                                       a.integer(4), a.integer(5), a.integer(6), a.integer(7),
                                       a.integer(8), a.integer(9, 0));
         }},
        {"vision_cross_attention",
         kMask,
         {"intervals", "image_len"},
         2,
         [](A a) { return m::vision_cross_attention(a.array(0), a.integer(1)); }},
        {"spatial_head",
         kMask,
         {"prompt", "frame_tokens", "width", "sink", "round"},
         2,
         [](A a) {
             return m::spatial_head(a.integer(0), a.integer(1), a.integer(2, 2), a.flag(3, false),
                                    a.integer(4, 128));
         }},
        {"temporal_head",
         kMask,
         {"prompt", "frames", "frame_tokens", "width"},
         3,
         [](A a) {
             return m::temporal_head(a.integer(0), a.integer(1), a.integer(2), a.integer(3, 2));
         }},
        {"selected_tiles",
         kMask,
         {"topk", "tile", "sizes"},
         2,
         [](A a) {
             return a.has(2) ? m::selected_tiles(a.array(0), a.integer(1), a.array(2))
                             : m::selected_tiles(a.array(0), a.integer(1));
         }},
    };
    return kEntries;
}

}  // namespace tilewright::mod
