// The library of masks for images and videos: neighbourhoods, tiles, and text next to them.
#include "mod/mask_helpers.h"
#include "support/check.h"
#include "tilewright/lang/ops.h"
#include "tilewright/masks.h"

namespace tilewright::masks {

using mod::at_least;
using mod::expect_array;

namespace {

struct Pixel {
    Tile row, column;
};

/// A neighbourhood in an image, and the checks of its sizes.
struct Neighbourhood {
    std::int64_t width, height, kernel_w, kernel_h;

    Neighbourhood(const char* op, std::int64_t w, std::int64_t h, std::int64_t kw, std::int64_t kh)
        : width(w), height(h), kernel_w(kw), kernel_h(kh) {
        at_least(op, "a width", w, 1);
        at_least(op, "a height", h, 1);
        if (kw < 1 || kw > w || kh < 1 || kh > h)
            user_error(op, "expected a kernel of 1 x 1 to {} x {} but got {} x {}", w, h, kw, kh);
    }

    Tile near(const Pixel& q, const Pixel& kv) const {
        const auto axis = [](const Tile& centre, const Tile& key, std::int64_t kernel,
                             std::int64_t extent) {
            const std::int64_t reach = kernel / 2;
            return abs(clamp(centre, reach, extent - 1 - reach) - key) <= reach;
        };
        return axis(q.row, kv.row, kernel_h, height) && axis(q.column, kv.column, kernel_w, width);
    }
};

void expect_tiles(const char* op, std::int64_t extent, std::int64_t tile, const char* axis) {
    at_least(op, "a tile", tile, 1);
    if (extent % tile != 0)
        user_error(op, "expected tiles that divide the canvas but its {} is {} and the tile's {}",
                   axis, extent, tile);
}

/// One axis of sliding tile attention; extents count tiles.
struct TileAxis {
    std::int64_t tiles, kernel;

    TileAxis(const char* op, const char* axis, std::int64_t extent, std::int64_t kernel_extent,
             std::int64_t tile) {
        at_least(op, axis, extent, 1);
        expect_tiles(op, extent, tile, axis);
        if (kernel_extent < tile || kernel_extent % tile != 0 || kernel_extent > extent)
            user_error(op,
                       "expected a kernel of whole tiles within the {} but got {} for tiles of {}",
                       axis, kernel_extent, tile);
        tiles = extent / tile;
        kernel = kernel_extent / tile;
    }

    Tile near(const Tile& q, const Tile& kv) const {
        const std::int64_t left = kernel / 2, right = kernel / 2 + kernel % 2 - 1;
        const Tile centre = clamp(q, left, tiles - 1 - right);
        return kv >= centre - left && kv <= centre + right;
    }
};

/// Vision tokens first, then text: what tiles do not decide.
Tile with_text(const Tile& q, const Tile& kv, std::int64_t vision, std::int64_t text,
               const Tile& near) {
    const Tile q_vision = q < vision, kv_vision = kv < vision;
    return (q_vision && kv_vision && near) || (q_vision && !kv_vision && kv < vision + text) ||
           (!q_vision && q < vision + text && kv < vision + text);
}

/// The even bits of a number below 2^32, packed together.
Tile compacted(const Tile& code) {
    Tile x = code & 0x55555555;
    x = (x | x >> 1) & 0x33333333;
    x = (x | x >> 2) & 0x0F0F0F0F;
    x = (x | x >> 4) & 0x00FF00FF;
    return (x | x >> 8) & 0x0000FFFF;
}

}  // namespace

Mod sasa(std::int64_t width, std::int64_t window) {
    at_least("sasa", "a width", width, 1);
    at_least("sasa", "a window", window, 0);
    return Mod([width, window](auto, auto, auto q, auto kv) {
               return abs(q / width - kv / width) <= window &&
                      abs(q % width - kv % width) <= window;
           })
        .renamed("sasa");
}

Mod natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w, std::int64_t kernel_h) {
    const Neighbourhood canvas("natten", width, height, kernel_w, kernel_h);
    return Mod([canvas](auto, auto, auto q, auto kv) {
               const std::int64_t w = canvas.width;
               return canvas.near({q / w, q % w}, {kv / w, kv % w});
           })
        .renamed("natten");
}

Mod tiled_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                 std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h) {
    const Neighbourhood canvas("tiled_natten", width, height, kernel_w, kernel_h);
    expect_tiles("tiled_natten", width, tile_w, "width");
    expect_tiles("tiled_natten", height, tile_h, "height");
    return Mod([=](auto, auto, auto q, auto kv) {
               const std::int64_t area = tile_w * tile_h, across = width / tile_w;
               const auto pixel = [&](const Tile& i) {
                   const Tile tile = i / area, place = i % area;
                   return Pixel{tile / across * tile_h + place / tile_w,
                                tile % across * tile_w + place % tile_w};
               };
               return canvas.near(pixel(q), pixel(kv));
           })
        .renamed("tiled_natten");
}

Mod morton_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                  std::int64_t kernel_h) {
    const Neighbourhood canvas("morton_natten", width, height, kernel_w, kernel_h);
    if (width > 1 << 16 || height > 1 << 16)
        user_error("morton_natten", "expected a canvas of at most 65536 x 65536 but got {} x {}",
                   width, height);
    return Mod([canvas](auto, auto, auto q, auto kv) {
               return canvas.near({compacted(q >> 1), compacted(q)},
                                  {compacted(kv >> 1), compacted(kv)});
           })
        .renamed("morton_natten");
}

Mod sliding_tile_2d(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                    std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h,
                    std::int64_t text) {
    const char* op = "sliding_tile_2d";
    const TileAxis x(op, "width", width, kernel_w, tile_w),
        y(op, "height", height, kernel_h, tile_h);
    at_least(op, "a text length", text, 0);
    return Mod([=](auto, auto, auto q, auto kv) {
               const std::int64_t area = tile_w * tile_h;
               const Tile p = q / area, k = kv / area;
               return with_text(
                   q, kv, width * height, text,
                   x.near(p % x.tiles, k % x.tiles) && y.near(p / x.tiles, k / x.tiles));
           })
        .renamed(op);
}

Mod sliding_tile_3d(std::int64_t width, std::int64_t height, std::int64_t frames,
                    std::int64_t kernel_w, std::int64_t kernel_h, std::int64_t kernel_f,
                    std::int64_t tile_w, std::int64_t tile_h, std::int64_t tile_f,
                    std::int64_t text) {
    const char* op = "sliding_tile_3d";
    const TileAxis x(op, "width", width, kernel_w, tile_w),
        y(op, "height", height, kernel_h, tile_h), z(op, "frames", frames, kernel_f, tile_f);
    at_least(op, "a text length", text, 0);
    return Mod([=](auto, auto, auto q, auto kv) {
               const std::int64_t volume = tile_w * tile_h * tile_f;
               const Tile p = q / volume, k = kv / volume;
               return with_text(q, kv, width * height * frames, text,
                                x.near(p % x.tiles, k % x.tiles) &&
                                    y.near(p / x.tiles % y.tiles, k / x.tiles % y.tiles) &&
                                    z.near(p / (x.tiles * y.tiles), k / (x.tiles * y.tiles)));
           })
        .renamed(op);
}

Mod vision_cross_attention(const Capture& intervals, std::int64_t image_len) {
    expect_array("vision_cross_attention", "intervals (images, 2) of integers", intervals, 2, 2);
    if (intervals.tensor().dim(1) != 2)
        user_error("vision_cross_attention", "expected intervals (images, 2) but got {}",
                   intervals.tensor().type_name());
    at_least("vision_cross_attention", "an image length", image_len, 1);
    const std::int64_t images = intervals.tensor().dim(0);
    return Mod([=](auto, auto, auto q, auto kv) {
               const Tile image = kv / image_len;
               return image < images && q >= intervals(image, 0).to(i64) &&
                      q < intervals(image, 1).to(i64);
           })
        .renamed("vision_cross_attention");
}

Mod spatial_head(std::int64_t prompt, std::int64_t frame_tokens, std::int64_t width, bool sink,
                 std::int64_t round) {
    at_least("spatial_head", "a prompt", prompt, 0);
    at_least("spatial_head", "frame tokens", frame_tokens, 1);
    at_least("spatial_head", "a width", width, 0);
    at_least("spatial_head", "a rounding", round, 1);
    const std::int64_t reach = width * frame_tokens / round * round;
    const std::int64_t seen = prompt + (sink ? frame_tokens : 0);
    return Mod([=](auto, auto, auto q, auto kv) {
               return q < prompt || kv < seen || abs(q - kv) < reach;
           })
        .renamed("spatial_head");
}

Mod temporal_head(std::int64_t prompt, std::int64_t frames, std::int64_t frame_tokens,
                  std::int64_t width) {
    at_least("temporal_head", "a prompt", prompt, 0);
    at_least("temporal_head", "frames", frames, 1);
    at_least("temporal_head", "frame tokens", frame_tokens, 1);
    at_least("temporal_head", "a width", width, 0);
    const std::int64_t reach = width * frame_tokens / frames;
    return Mod([=](auto, auto, auto q, auto kv) {
               const auto place = [&](const Tile& i) { return floormod(i - prompt, frame_tokens); };
               return q < prompt || kv < prompt || abs(place(q) - place(kv)) < reach;
           })
        .renamed("temporal_head");
}

Mod selected_tiles(const Capture& topk, std::int64_t tile) {
    expect_array("selected_tiles", "topk (b, h, tiles, k) of integers", topk, 4, 4);
    at_least("selected_tiles", "a tile", tile, 1);
    const std::int64_t tiles = topk.tensor().dim(2);
    return Mod([topk, tile, tiles](auto b, auto h, auto q, auto kv) {
               Tile chosen = kv < 0;
               for (const Tile& one : topk.row(b, h, q / tile))
                   chosen = chosen || one.to(i64) == kv / tile;
               return chosen && q / tile < tiles;
           })
        .renamed("selected_tiles");
}

Mod selected_tiles(const Capture& topk, std::int64_t tile, const Capture& sizes) {
    expect_array("selected_tiles", "sizes (tiles) of integers", sizes, 1, 1);
    const Mod inside = [tile, sizes](auto, auto, auto, auto kv) {
        return kv % tile < sizes[kv / tile].to(i64);
    };
    return (selected_tiles(topk, tile) & inside).renamed("selected_tiles");
}

}  // namespace tilewright::masks
