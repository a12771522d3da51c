// Attention by tile programs with products by warpgroups, on a Hopper GPU.
#include <gmock/gmock.h>

#include "tests/attention/cuda_calls.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using namespace cuda_calls;

/// Two heads per key head, and lengths that end inside of blocks.
Case with(std::string name, std::int64_t dim, std::function<AttentionOptions(Device)> options) {
    return {.name = fmt::format("{}, {} columns", name, dim),
            .length = 140,
            .kv_length = 150,
            .dim = dim,
            .options = std::move(options),
            .max_scores = false};
}

TEST(CudaWarpgroups, GradientsWithEveryKindOfMask) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const auto causal = [](Device) { return AttentionOptions{.causal = true}; };
    EXPECT_THAT(logged([&] { check(with("causal", 128, causal), "tiles"); }),
                testing::AllOf(testing::HasSubstr("attention_backward_keys: generated"),
                               testing::Not(testing::HasSubstr("no wgmma: it has a"))));
    Case masked = with("window, lengths, segments, a mask", 64, [](Device device) {
        std::vector<std::int32_t> of_keys;
        for (int i = 0; i < 2 * 150; ++i) of_keys.push_back(i / 50 % 3);
        const Tensor lengths = Tensor::from_vector(std::vector<std::int32_t>{0, 140}, {2});
        return AttentionOptions{
            .window = {70, 60},
            .segment_ids = ids(2, 140, 50, device),
            .kv_segment_ids = Tensor::from_vector(of_keys, {2, 150}).to(device),
            .kv_lengths = lengths.to(device),
            .mask = [](auto, auto h, auto q, auto kv) { return (q + kv + h) % 7 != 0; }};
    });
    masked.batch = 2;
    masked.poisoned = true;
    check(masked, "tiles");
}

TEST(CudaWarpgroups, GradientsOfScoreMods) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    Case c = with("capped and biased", 64, [](Device) {
        return AttentionOptions{.score_mod = [](auto s, auto, auto h, auto q, auto kv) {
            return 2 * tanh(s / 2) + (kv - q).to(f32) * 0.02 * (h + 1).to(f32);
        }};
    });
    c.dtype = f16;
    check(c, "tiles");
}

TEST(CudaWarpgroups, ScoresThatHaveBoundsOrThatAreAddedTo) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const Mod& mod : {scores::softcap(2), scores::softcap(20), scores::softcap(50),
                           scores::softcap(20, true), scores::alibi(2)}) {
        for (const bool causal : {false, true}) {
            Case c = with(mod.name(), 128, [=](Device) {
                return AttentionOptions{.causal = causal, .score_mod = mod};
            });
            c.dtype = bf16;
            check(c, "tiles");
        }
    }
}

/// Checks a case, and that warpgroups take all of its backward programs.
void expect_wgmma(const Case& c) {
    EXPECT_THAT(logged([&] { check(c, "tiles"); }),
                testing::AllOf(testing::HasSubstr("backward: programs by wgmma"),
                               testing::Not(testing::HasSubstr("_keys: no wgmma")),
                               testing::Not(testing::HasSubstr("_queries: no wgmma"))))
        << c.name;
}

TEST(CudaWarpgroups, GradientsOfHeadsOfManySizes) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const auto causal = [](Device) { return AttentionOptions{.causal = true}; };
    expect_wgmma(with("causal", 96, causal));
    expect_wgmma(with("causal", 256, causal));
    if (is_stand_in()) return;
    for (const std::int64_t dim : {32, 104, 160}) expect_wgmma(with("causal", dim, causal));
}

TEST(CudaWarpgroups, GradientsWithDropout) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    expect_wgmma(with("dropout", 72, [](Device) {
        return AttentionOptions{.score_mod = [](auto s, auto, auto, auto q,
                                                auto kv) { return s - 0.05 * abs(q - kv).to(f32); },
                                .dropout = 0.25,
                                .seed = 77,
                                .backward_blocks = {.q = 128, .kv = 128, .num_warps = 8}};
    }));
}

TEST(CudaWarpgroups, GradientsOfModsWithCaptures) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    // Rows, a gather, and scalars; a mask that gathers.
    expect_wgmma(with("captures", 64, [](Device device) {
        const auto array = [&](std::vector<std::int64_t> shape, std::uint64_t seed) {
            return capture(random_tensor(f32, shape, seed).to(device), "", false);
        };
        const Capture table = array({2, 289}, 13), slopes = array({2}, 14),
                      of_keys = array({150}, 16), of_queries = array({140}, 17);
        const Capture kinds = capture(ids(1, 150, 40, device).reshape({150}), "kinds");
        return AttentionOptions{
            .mask = [=](auto, auto, auto q, auto kv) { return kinds(kv) <= kinds(q); },
            .score_mod =
                [=](auto s, auto, auto h, auto q, auto kv) {
                    return s + table(h, q - kv + 149) + slopes(h) * of_keys(kv) + of_queries(q);
                }};
    }));
    const Case learned = with("a table that is learned", 64, [](Device device) {
        const Capture of_keys = capture(random_tensor(f32, {150}, 16).to(device), "of_keys");
        return AttentionOptions{
            .score_mod = [=](auto s, auto, auto, auto, auto kv) { return s + of_keys(kv); }};
    });
    EXPECT_THAT(logged([&] { check(learned, "tiles"); }),
                testing::HasSubstr("not by wgmma: captured arrays have gradients"));
}

TEST(CudaWarpgroups, GradientsWithAMaskAsData) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    Case c = with("bits and whole blocks", 64, [](Device) {
        const auto keep = [](auto, auto h, auto q, auto kv) {
            return (kv < 70) | ((q * 7 + kv + h) % 5 != 0);
        };
        return AttentionOptions{.block_mask = create_block_mask(keep, 1, 2, 300, 280)};
    });
    c.length = 300;
    c.kv_length = 280;
    expect_wgmma(c);
}

/// Warpgroups take masks as data whose blocks are mostly whole, if their programs fill the GPU.
TEST(CudaWarpgroups, ForwardWithAMaskAsData) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const std::int64_t heads = is_stand_in() ? 2 : 16, length = is_stand_in() ? 500 : 2170;
    const auto log_of = [&](const char* name, const Mod& mask) {
        Case c = with(name, 64, [=](Device) {
            const Mod mod = scores::alibi(heads);
            return AttentionOptions{.block_mask = create_block_mask(mask, 1, 1, length, length),
                                    .score_mod = mod};
        });
        c.heads = heads;
        c.length = c.kv_length = length;
        c.backward = false;
        return logged([&] { check(c, "tiles"); });
    };
    // Blocks of 128 x 128 pairs have 384 threads: two warpgroups and a producer.
    const char* const of_warpgroups = "attention: generated for cuda:0, 384 threads";
    const auto prefix = [](auto, auto, auto q, auto kv) { return (kv < 384) | (kv <= q); };
    EXPECT_THAT(log_of("mostly whole", prefix), testing::HasSubstr(of_warpgroups));
    const auto sparse = [](auto, auto, auto q, auto kv) { return (q + kv) % 3 != 0; };
    EXPECT_THAT(log_of("no whole block", sparse), testing::Not(testing::HasSubstr(of_warpgroups)));
}

TEST(CudaWarpgroups, ForwardWithSlopesFromAnArray) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const auto log_of = [&](bool by_key) {
        Case c = with("slopes", 128, [=](Device device) {
            const std::vector<std::int64_t> shape{by_key ? 151 : 2};
            const Capture slopes = capture(random_tensor(f32, shape, 14).to(device), "", false);
            return AttentionOptions{
                .causal = true, .score_mod = [=](auto s, auto, auto h, auto q, auto kv) {
                    return s + slopes[by_key ? abs(kv - q) : h] * 0.05 * (kv - q).to(f32);
                }};
        });
        c.backward = false;
        return logged([&] { check(c, "tiles"); });
    };
    const char* const of_warpgroups = "attention: generated for cuda:0, 384 threads";
    EXPECT_THAT(log_of(false), testing::HasSubstr(of_warpgroups));
    EXPECT_THAT(log_of(true), testing::Not(testing::HasSubstr(of_warpgroups)));
}

TEST(CudaWarpgroups, TheLogSaysWhyGradientsAreForWarps) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const auto log_of = [](std::int64_t dim, AttentionBlocks blocks, double dropout) {
        return logged([&] {
            check(with("for warps", dim,
                       [=](Device) {
                           return AttentionOptions{.dropout = dropout, .backward_blocks = blocks};
                       }),
                  "tiles");
        });
    };
    EXPECT_THAT(log_of(16, {}, 0), testing::HasSubstr("heads have 16 columns"));
    EXPECT_THAT(log_of(32, {.q = 64, .kv = 64}, 0),
                testing::HasSubstr("blocks are 128 x 128 with 8 warps, and 64 x 64 with 0"));
    const auto of_pairs = [](Device device) {
        const Capture pairs = capture(random_tensor(f32, {140, 150}, 12).to(device), "", false);
        return AttentionOptions{
            .score_mod = [=](auto s, auto, auto, auto q, auto kv) { return s + pairs(q, kv); }};
    };
    EXPECT_THAT(logged([&] { check(with("pairs", 32, of_pairs), "tiles"); }),
                testing::HasSubstr("a mod reads an array of pairs"));
    if (is_stand_in()) return;
    EXPECT_THAT(log_of(64, {}, 0.1), testing::HasSubstr("there is dropout"));
}

}  // namespace
}  // namespace tilewright
