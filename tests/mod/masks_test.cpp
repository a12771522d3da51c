// Every mask of the library against its definition in plain C++, in C++ and as text.
#include "tilewright/masks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "mod/evaluate.h"
#include "mod/library.h"
#include "tilewright/error.h"

namespace tilewright::masks {
namespace {

using std::int64_t;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Definition = std::function<bool(int64_t b, int64_t h, int64_t q, int64_t kv)>;

void expect_mask(const Mod& mod, int64_t q_len, int64_t kv_len, const Definition& want) {
    mod::Evaluator evaluator(mod::trace(mod));
    for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 2; ++h) {
            for (int64_t q = 0; q < q_len; ++q) {
                for (int64_t kv = 0; kv < kv_len; ++kv) {
                    ASSERT_EQ(evaluator.mask(b, h, q, kv), want(b, h, q, kv))
                        << mod.name() << " b " << b << " h " << h << " q " << q << " kv " << kv;
                }
            }
        }
    }
}

Tensor integers(const std::vector<int>& values, Tensor::Dims shape) {
    return Tensor::from_vector(values, std::move(shape));
}

TEST(Masks, Windows) {
    expect_mask(noop(), 5, 5, [](auto...) { return true; });
    expect_mask(causal(), 12, 15, [](auto, auto, auto q, auto kv) { return kv <= q; });
    expect_mask(sliding_window(4), 12, 15,
                [](auto, auto, auto q, auto kv) { return 0 <= q - kv && q - kv <= 4; });
    expect_mask(prefix_lm(5), 12, 15,
                [](auto, auto, auto q, auto kv) { return kv < 5 || q >= kv; });
    expect_mask(window(3, -1), 12, 15, [](auto, auto, auto q, auto kv) { return kv >= q - 3; });
    expect_mask(window(-1, 2), 12, 15, [](auto, auto, auto q, auto kv) { return kv <= q + 2; });
    expect_mask(window(4, 1), 12, 15,
                [](auto, auto, auto q, auto kv) { return kv >= q - 4 && kv <= q + 1; });
    expect_mask(dilated_window(6, 3), 20, 20, [](auto, auto, auto q, auto kv) {
        return std::abs(q - kv) <= 6 && std::abs(q - kv) % 3 == 0;
    });
    expect_mask(strided(4), 20, 20, [](auto, auto, auto q, auto kv) {
        return kv <= q && (q - kv < 4 || (q - kv) % 4 == 0);
    });
    const std::vector<bool> flags = {true, false, false, false, false,
                                     true, false, false, false, false};
    const Capture captured = capture(Tensor::from_vector(flags, {10}), "flags");
    expect_mask(global_tokens(1, captured), 10, 10, [&](auto, auto, auto q, auto kv) {
        return std::abs(q - kv) <= 1 || flags[static_cast<std::size_t>(q)] ||
               flags[static_cast<std::size_t>(kv)];
    });
    expect_mask(prefix_lm(capture(integers({3, 7}, {2}))), 10, 10,
                [](auto b, auto, auto q, auto kv) { return kv < (b == 0 ? 3 : 7) || q >= kv; });
}

TEST(Masks, PackedSequences) {
    const Capture offsets = capture(integers({0, 3, 3, 8, 10}, {5}), "offsets");
    const auto sequence = [](int64_t i) { return i < 3 ? 0 : i < 8 ? 2 : i < 10 ? 3 : 9; };
    const int64_t starts[] = {0, 3, 3, 8};
    const auto within = [&](int64_t q, int64_t kv) {
        return q < 10 && kv < 10 && sequence(q) == sequence(kv);
    };
    expect_mask(jagged(sliding_window(2), offsets), 12, 12, [&](auto, auto, auto q, auto kv) {
        return within(q, kv) && q >= kv && q - kv <= 2;
    });
    // The inner mask sees positions that restart.
    const Mod early = [](auto, auto, auto, auto kv) { return kv < 1; };
    expect_mask(jagged(early, offsets), 12, 12, [&](auto, auto, auto q, auto kv) {
        return within(q, kv) && kv == starts[sequence(kv)];
    });
    expect_mask(packed_causal(offsets), 12, 12,
                [&](auto, auto, auto q, auto kv) { return within(q, kv) && q >= kv; });
    expect_mask(batchify(causal(), 4), 12, 12,
                [](auto, auto, auto q, auto kv) { return q / 4 == kv / 4 && q >= kv; });
    expect_mask(chunked(5), 12, 14,
                [](auto, auto, auto q, auto kv) { return kv <= q && kv >= q / 5 * 5; });
    // Positions below 0 are in chunks of their own.
    expect_mask(offset(chunked(5), -5, -5), 12, 14,
                [](auto, auto, auto q, auto kv) { return kv <= q && kv >= q / 5 * 5; });
    // Sequence 2 attends to all of sequence 0, the others only to themselves.
    const Capture prefix = capture(integers({-1, -1, 0, -1}, {4}), "prefix");
    expect_mask(shared_prefix(offsets, prefix), 12, 12, [&](auto, auto, auto q, auto kv) {
        if (q >= 10 || kv >= 10) return false;
        return (within(q, kv) && q >= kv) || (sequence(q) == 2 && sequence(kv) == 0);
    });
    const Capture q_ids = capture(integers({0, 0, 1, 5, 5, 6}, {2, 3}), "q_ids");
    const Capture kv_ids = capture(integers({0, 1, 1, 6}, {4}), "kv_ids");
    expect_mask(segment(q_ids, kv_ids), 3, 4, [](auto b, auto, auto q, auto kv) {
        const int left[] = {0, 0, 1, 5, 5, 6}, right[] = {0, 1, 1, 6};
        return left[b * 3 + q] == right[kv];
    });
}

TEST(Masks, Offsets) {
    const Definition want = [](auto, auto, auto q, auto kv) { return q + 3 >= kv + 1; };
    expect_mask(offset(causal(), 3, 1), 8, 12, want);
    expect_mask(offset(causal(), capture(Tensor::scalar(i64, 3)), capture(Tensor::scalar(i32, 1))),
                8, 12, want);
}

TEST(Masks, TreesAttendToTheirAncestors) {
    // 0 -> 1 -> 2, 0 -> 3.
    const std::vector<bool> ancestors = {1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1};
    expect_mask(tree(capture(Tensor::from_vector(ancestors, {4, 4})), 5), 4, 10,
                [&](auto, auto, auto q, auto kv) {
                    return kv < 5 ||
                           (kv < 9 && ancestors[static_cast<std::size_t>(q * 4 + kv - 5)]);
                });
    expect_mask(tree_training(5, 3), 9, 14, [](auto, auto, auto q, auto kv) {
        return kv < 5 || (q / 3 == (kv - 5) / 3 && (kv - 5) % 3 <= q % 3);
    });
    expect_mask(block_diffusion(9, 2), 18, 18, [](auto, auto, auto q, auto kv) {
        const int64_t a = q % 9 / 2, b = kv % 9 / 2;
        return (a == b && (q < 9) == (kv < 9)) || (q < 9 && kv >= 9 && a > b) ||
               (q >= 9 && kv >= 9 && a >= b);
    });
}

bool near(int64_t q, int64_t kv, int64_t kernel, int64_t extent) {
    const int64_t reach = kernel / 2;
    const int64_t centre = std::min(std::max(q, reach), extent - 1 - reach);
    return std::abs(centre - kv) <= reach;
}

TEST(Masks, ImageMasksAttendToNeighbours) {
    expect_mask(sasa(6, 1), 30, 30, [](auto, auto, auto q, auto kv) {
        return std::abs(q / 6 - kv / 6) <= 1 && std::abs(q % 6 - kv % 6) <= 1;
    });
    expect_mask(natten(8, 6, 5, 3), 48, 48, [](auto, auto, auto q, auto kv) {
        return near(q / 8, kv / 8, 3, 6) && near(q % 8, kv % 8, 5, 8);
    });
    expect_mask(tiled_natten(8, 6, 5, 3, 4, 2), 48, 48, [](auto, auto, auto q, auto kv) {
        const auto row = [](int64_t i) { return i / 8 / 2 * 2 + i % 8 / 4; };
        const auto column = [](int64_t i) { return i / 8 % 2 * 4 + i % 8 % 4; };
        return near(row(q), row(kv), 3, 6) && near(column(q), column(kv), 5, 8);
    });
    expect_mask(morton_natten(8, 8, 3, 5), 64, 64, [](auto, auto, auto q, auto kv) {
        const auto every_other = [](int64_t code) {
            int64_t result = 0;
            for (int bit = 0; bit < 16; ++bit) result |= (code >> (2 * bit) & 1) << bit;
            return result;
        };
        return near(every_other(q >> 1), every_other(kv >> 1), 5, 8) &&
               near(every_other(q), every_other(kv), 3, 8);
    });
    expect_mask(vision_cross_attention(capture(integers({0, 7, 1, 7, 7, 12}, {3, 2})), 3), 12, 12,
                [](auto, auto, auto q, auto kv) {
                    const int64_t from[] = {0, 1, 7}, to[] = {7, 7, 12};
                    return kv < 9 && q >= from[kv / 3] && q < to[kv / 3];
                });
}

TEST(Masks, SlidingTiles) {
    const auto tiles_near = [](int64_t q, int64_t kv, int64_t kernel, int64_t tiles) {
        const int64_t left = kernel / 2, right = kernel / 2 + kernel % 2 - 1;
        const int64_t centre = std::min(std::max(q, left), tiles - 1 - right);
        return kv >= centre - left && kv <= centre + right;
    };
    const auto text = [](int64_t q, int64_t kv, int64_t vision, int64_t length, bool inside) {
        if (q >= vision + length || kv >= vision + length) return false;
        return q >= vision || kv >= vision || inside;
    };
    // 8 x 6 in tiles of 2 x 2: 4 x 3 tiles; the window spans 3 x 1 of them.
    expect_mask(sliding_tile_2d(8, 6, 6, 2, 2, 2, 5), 54, 54, [&](auto, auto, auto q, auto kv) {
        return text(q, kv, 48, 5,
                    tiles_near(q / 4 % 4, kv / 4 % 4, 3, 4) && tiles_near(q / 16, kv / 16, 1, 3));
    });
    expect_mask(sliding_tile_3d(4, 4, 4, 4, 2, 2, 2, 2, 1, 3), 68, 68,
                [&](auto, auto, auto q, auto kv) {
                    const auto at = [](int64_t i) { return i / 4; };
                    return text(q, kv, 64, 3,
                                tiles_near(at(q) % 2, at(kv) % 2, 2, 2) &&
                                    tiles_near(at(q) / 2 % 2, at(kv) / 2 % 2, 1, 2) &&
                                    tiles_near(at(q) / 4, at(kv) / 4, 2, 4));
                });
}

TEST(Masks, VideoMasksFollowTheirFormulas) {
    expect_mask(spatial_head(4, 10, 2, true, 8), 44, 44, [](auto, auto, auto q, auto kv) {
        return q < 4 || kv < 14 || std::abs(q - kv) < 16;
    });
    expect_mask(temporal_head(4, 5, 10, 2), 54, 54, [](auto, auto, auto q, auto kv) {
        if (q < 4 || kv < 4) return true;
        return std::abs((q - 4) % 10 - (kv - 4) % 10) < 4;
    });
    // Dimensions: b, h, 3 tiles of queries, 2 selected tiles of keys.
    std::vector<int> topk;
    for (int i = 0; i < 2 * 2 * 3 * 2; ++i) topk.push_back(i * 7 % 4);
    const Capture chosen = capture(integers(topk, {2, 2, 3, 2})),
                  sizes = capture(integers({4, 2, 4, 3}, {4}));
    const Definition in_tiles = [&](int64_t b, int64_t h, int64_t q, int64_t kv) {
        const int64_t base = ((b * 2 + h) * 3 + q / 4) * 2;
        return topk[static_cast<std::size_t>(base)] == kv / 4 ||
               topk[static_cast<std::size_t>(base + 1)] == kv / 4;
    };
    expect_mask(selected_tiles(chosen, 4), 12, 16, in_tiles);
    expect_mask(selected_tiles(chosen, 4, sizes), 12, 16, [&](auto b, auto h, auto q, auto kv) {
        const int64_t size[] = {4, 2, 4, 3};
        return in_tiles(b, h, q, kv) && kv % 4 < size[kv / 4];
    });
}

TEST(Masks, TextCallsEveryName) {
    const Bindings arrays = {{"ids", integers({0, 0, 1, 1}, {4})},
                             {"offsets", integers({0, 2, 4}, {3})},
                             {"prefix", integers({-1, 0}, {2})},
                             {"flags", Tensor::zeros(boolean, {4})},
                             {"ancestors", Tensor::zeros(boolean, {4, 4})},
                             {"intervals", integers({0, 2, 1, 3}, {2, 2})},
                             {"topk", Tensor::zeros(i32, {1, 1, 2, 1})},
                             {"none", Tensor::zeros(i32, {})}};
    const std::pair<const char*, const char*> texts[] = {
        {"noop", "noop"},
        {"causal", "causal"},
        {"sliding_window", "sliding_window(3)"},
        {"window", "window(3, -1)"},
        {"dilated_window", "dilated_window(4, 2)"},
        {"strided", "strided(2)"},
        {"global_tokens", "global_tokens(1, flags)"},
        {"prefix_lm", "prefix_lm(2) & prefix_lm(ids)"},
        {"document", "document(ids)"},
        {"segment", "segment(ids, ids)"},
        {"jagged", "jagged(causal, offsets)"},
        {"packed_causal", "packed_causal(offsets)"},
        {"batchify", "batchify(causal & sliding_window(1), 2)"},
        {"chunked", "chunked(3)"},
        {"offset", "offset(causal, 3, 0) | offset(causal, none, none)"},
        {"shared_prefix", "shared_prefix(offsets, prefix)"},
        {"block_diffusion", "block_diffusion(2, 1)"},
        {"tree", "tree(ancestors, 2)"},
        {"tree_training", "tree_training(2, 2)"},
        {"sasa", "sasa(2, 1)"},
        {"natten", "natten(4, 4, 3, 3)"},
        {"tiled_natten", "tiled_natten(4, 4, 3, 3, 2, 2)"},
        {"morton_natten", "morton_natten(4, 4, 3, 3)"},
        {"sliding_tile_2d", "sliding_tile_2d(4, 4, 2, 2, 2, 2)"},
        {"sliding_tile_3d", "sliding_tile_3d(4, 4, 4, 2, 2, 2, 2, 2, 2)"},
        {"vision_cross_attention", "vision_cross_attention(intervals, 2)"},
        {"spatial_head", "spatial_head(2, 4)"},
        {"temporal_head", "temporal_head(2, 3, 4)"},
        {"selected_tiles", "selected_tiles(topk, 2) | selected_tiles(topk, 2, ids)"},
    };
    for (const auto& [name, text] : texts) {
        EXPECT_NO_THROW(mod::trace(parse_mod(text, arrays))) << text;
    }
    EXPECT_EQ(std::size(texts), mod::mask_library().size());
}

TEST(Masks, RefuseBadArguments) {
    const Capture ids = capture(integers({0, 1}, {2})), floats = capture(Tensor::zeros(f32, {3}));
    EXPECT_THAT([] { window(-2, 0); }, ThrowsMessage<UserError>(HasSubstr("left of at least -1")));
    EXPECT_THAT([] { dilated_window(4, 0); }, ThrowsMessage<UserError>(HasSubstr("dilation")));
    EXPECT_THAT([] { chunked(0); }, ThrowsMessage<UserError>(HasSubstr("length of at least 1")));
    EXPECT_THAT([&] { document(floats); }, ThrowsMessage<UserError>(HasSubstr("but got f32[3]")));
    EXPECT_THAT([&] { global_tokens(1, ids); }, ThrowsMessage<UserError>(HasSubstr("flags bool")));
    EXPECT_THAT(
        [&] {
            jagged(causal(), capture(integers({0, 5, 3}, {3})));
        },
        ThrowsMessage<UserError>(HasSubstr("ascend from 0 but got 3 at 2")));
    EXPECT_THAT(
        [&] {
            jagged(causal(), capture(integers({1, 5}, {2})));
        },
        ThrowsMessage<UserError>(HasSubstr("ascend from 0 but got 1 at 0")));
    EXPECT_THAT([] { natten(4, 4, 5, 3); },
                ThrowsMessage<UserError>(HasSubstr("kernel of 1 x 1 to 4 x 4")));
    EXPECT_THAT([] { tiled_natten(6, 4, 3, 3, 4, 2); },
                ThrowsMessage<UserError>(HasSubstr("width is 6 and the tile's 4")));
    EXPECT_THAT([&] { tree(ids, 1); }, ThrowsMessage<UserError>(HasSubstr("ancestors bool")));
}

}  // namespace
}  // namespace tilewright::masks
