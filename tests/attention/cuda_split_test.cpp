// Attention of few queries over many keys by tile programs: the keys are split over programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/tiles/config.h"
#include "run/machine.h"
#include "tests/attention/cuda_calls.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using namespace cuda_calls;

/// 40 queries over the keys of three programs and some.
Case few_queries(std::string name, std::function<AttentionOptions(Device)> options) {
    return {.name = std::move(name),
            .heads = 1,
            .length = 40,
            .kv_length = 1100,
            .options = std::move(options),
            .backward = false};
}

TEST(CudaCallsSplit, GivesWhatOneProgramGives) {
    TW_REQUIRE_GPU();
    check(few_queries("plain", [](Device) { return AttentionOptions{}; }), "tiles");
    Case mod = few_queries("lengths, sinks and a score mod", [](Device device) {
        AttentionOptions options{.score_mod = [](auto s, auto, auto, auto q, auto kv) {
            return s - abs(q - kv) * 0.01;
        }};
        options.kv_lengths = Tensor::from_vector(std::vector{700}, {1}, i32).to(device);
        options.sinks = random_tensor(bf16, {1}, 21).to(device);
        return options;
    });
    mod.poisoned = true;  // the third part has no key
    check(mod, "tiles");
    // Rows whose first keys lie in the second part, and a hidden key that holds NaN.
    Case mask = few_queries("a mask as data", [](Device) {
        const BlockMask far = create_block_mask(
            [](auto, auto, auto q, auto kv) { return (kv >= q + 600) & (kv != 1000); }, 1, 1, 40,
            1100);
        return AttentionOptions{.block_mask = far};
    });
    mask.hidden = [](std::int64_t kv) { return kv == 1000 || kv < 500; };
    check(mask, "tiles");
    if (is_stand_in()) return;
    check(few_queries("a mask as a mod",
                      [](Device device) {
                          const Capture documents =
                              capture(ids(1, 1100, 300, device).reshape({1100}), "ids");
                          return AttentionOptions{.mask = masks::document(documents)};
                      }),
          "tiles");
    check(few_queries("segments and dropout",
                      [](Device device) {
                          AttentionOptions options{.segment_ids = ids(1, 40, 30, device)};
                          options.kv_segment_ids = ids(1, 1100, 600, device);
                          options.dropout = 0.25;
                          options.seed = 7;
                          return options;
                      }),
          "tiles");
    for (const DType dtype : {f32, f16, f64}) {
        for (const std::int64_t dim : {40, 64, 128, 256}) {
            Case c = few_queries("plain", [](Device) { return AttentionOptions{}; });
            c.dtype = dtype;
            c.dim = dim;
            c.length = 100;
            c.kv_length = 4097;
            check(c, "tiles");
        }
    }
}

TEST(CudaCallsSplit, IsWhereFewProgramsWouldRun) {
    TW_REQUIRE_GPU();
    const auto log_of = [](std::int64_t length, std::int64_t kv_length, AttentionOptions options) {
        options.engine = "tiles";
        const Tensor q = Tensor::zeros(f32, {1, 1, length, 16}, kGpu),
                     k = Tensor::zeros(f32, {1, 1, kv_length, 16}, kGpu);
        return logged([&] { attention(q, k, k, options); });
    };
    EXPECT_THAT(log_of(20, 1100, {}), HasSubstr("split-KV by 3, 512 keys each"));
    EXPECT_THAT(log_of(20, 1000, {}), Not(HasSubstr("split-KV")));
    EXPECT_THAT(log_of(20, 1100, {.causal = true}), Not(HasSubstr("split-KV")));
}

TEST(CudaCallsSplit, LeavesWarpgroupsTheirBlocksWhereItSplitsNothing) {
    TW_REQUIRE_GPU();
    if (run::arch(0) != "sm_90a")
        GTEST_SKIP() << "needs a GPU with wgmma but it is " << run::arch(0);
    const auto options_of = [](std::int64_t heads, const AttentionBlocks& hint) {
        attn::AttentionSpec spec;
        spec.device = kGpu;
        spec.dtype = bf16;
        spec.batch = 1;
        spec.query_heads = spec.kv_heads = heads;
        spec.query_length = 128;
        spec.kv_length = 1 << 16;
        spec.head_dim = spec.value_dim = 64;
        spec.forward_blocks = hint;
        return attn::tiles::choose(spec, attn::tiles::features_of(spec))->options;
    };
    const std::int64_t few = run::multiprocessors(0) / 8, many = run::multiprocessors(0) * 2 / 5;
    const attn::tiles::Options split = options_of(few, {});
    EXPECT_GT(split.split_k, 0);
    EXPECT_FALSE(split.guarded);
    // Programs of 128 queries are few enough to split, those of 64 are not.
    const attn::tiles::Options whole = options_of(many, {});
    EXPECT_EQ(whole.split_k, 0);
    EXPECT_TRUE(whole.guarded);
    EXPECT_EQ(whole.block_q, 128);
    const attn::tiles::Options asked = options_of(few, {.q = 128, .kv = whole.block_k});
    EXPECT_EQ(asked.split_k, 0);
    EXPECT_EQ(asked.block_q, 128);
}

TEST(GpuBlocksSplit, DependsOnTheNumberOfPrograms) {
    const auto keys = [](std::int64_t heads, std::int64_t queries, std::int64_t kv_length,
                         bool splits = true) {
        attn::tiles::Options options;
        options.block_q = 64;
        return attn::tiles::split_of(options, {.heads = heads,
                                               .query_length = queries,
                                               .kv_length = kv_length,
                                               .multiprocessors = 132,
                                               .splits = splits});
    };
    EXPECT_EQ(keys(8, 64, 16384), 512);
    EXPECT_EQ(keys(8, 64, 65536), 2048);
    EXPECT_EQ(keys(1, 17, 1024), 512);
    EXPECT_EQ(keys(1, 17, 1023), 0);
    EXPECT_EQ(keys(33, 128, 4096), 2048);
    EXPECT_EQ(keys(34, 128, 4096), 0) << "more than half of the multiprocessors are busy";
    EXPECT_EQ(keys(8, 64, 16384, false), 0);
}

}  // namespace
}  // namespace tilewright
