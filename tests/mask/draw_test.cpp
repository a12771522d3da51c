// Pictures of masks: axes, labels, legends, and omissions.
#include "mask/draw.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "mask/block_mask.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"

namespace tilewright::mask {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string svg_of(const Mod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len) {
    return create_block_mask(mod, batch, heads, q_len, kv_len).svg();
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        ++n;
    return n;
}

/// A label in SVG.
std::string label(std::string_view text) {
    return fmt::format(">{}</text>", text);
}

TEST(Draw, AxesHavePositions) {
    const std::string svg = svg_of(masks::causal(), 1, 1, 1000, 300);
    for (const char* text : {"keys", "queries", "0", "75", "150", "225", "300", "250", "500", "750",
                             "1000", "all batches and heads"})
        EXPECT_THAT(svg, HasSubstr(label(text)));
    const std::string odd = svg_of(masks::causal(), 1, 1, 7, 1'000'003);
    EXPECT_THAT(odd, HasSubstr(label("200000")));
    EXPECT_THAT(odd, HasSubstr(label("1000000")));
}

TEST(Draw, LegendsSayWhatColoursMean) {
    const std::string exact = svg_of(masks::causal(), 1, 1, 64, 64);
    EXPECT_THAT(exact, HasSubstr(label("attends")));
    EXPECT_THAT(exact, HasSubstr(label("masked")));
    EXPECT_THAT(exact, Not(HasSubstr("a cell")));
    const std::string coarse = svg_of(masks::causal(), 1, 1, 8192, 4096);
    for (const char* text : {"all pairs attend", "many", "few", "none", "a cell: 64 x 64 pairs"})
        EXPECT_THAT(coarse, HasSubstr(label(text)));
    // The legend only has shades that occur.
    EXPECT_THAT(
        svg_of(masks::prefix_lm(4096) & Mod([](auto, auto, auto, auto kv) { return kv < 4096; }), 1,
               1, 8192, 8192),
        Not(HasSubstr(label("few"))));
}

TEST(Draw, HeadsAreLabelledAndThoseLeftOutCounted) {
    const Mod by_head = [](auto b, auto h, auto q, auto kv) { return q + 40 * h + 9 * b >= kv; };
    const std::string all = svg_of(by_head, 2, 3, 20, 20);
    EXPECT_EQ(count(all, label("keys")), 6U);
    for (const char* text : {"batch 0, head 0", "batch 0, head 2", "batch 1, head 2"})
        EXPECT_THAT(all, HasSubstr(label(text)));
    EXPECT_THAT(all, Not(HasSubstr("not drawn")));
    const std::string some = svg_of(by_head, 3, 32, 20, 20);
    EXPECT_EQ(count(some, label("keys")), 12U);
    EXPECT_THAT(some, HasSubstr(label("12 of 96 heads, 84 are not drawn")));
    const Mod heads_alone = [](auto, auto h, auto q, auto kv) { return q + h >= kv; };
    EXPECT_THAT(svg_of(heads_alone, 2, 3, 20, 20), HasSubstr(label("head 2")));
}

TEST(Draw, EmptyAndNarrowMasks) {
    EXPECT_THAT(svg_of(masks::causal(), 1, 1, 0, 5), HasSubstr("no queries or no keys"));
    EXPECT_THAT(create_block_mask(masks::causal(), 1, 1, 5, 0).png(),
                testing::StartsWith("\x89PNG"));
    // A single query must be visible: its row has a panel's least height.
    EXPECT_THAT(svg_of(masks::causal(), 1, 1, 1, 4096), HasSubstr("height=\"96\""));
}

}  // namespace
}  // namespace tilewright::mask
