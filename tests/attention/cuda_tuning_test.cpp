// Blocks, warps and stages of attention's tile programs on GPUs: hints are used, and the autotuner
// measures forward, backward, few rows and packed sequences. On a GPU or the stand-in for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "attention/prepare.h"
#include "attention/sm90/engine.h"
#include "attention/tiles/engine.h"
#include "mod/traced.h"
#include "run/tuning.h"
#include "tests/attention/cuda_calls.h"
#include "tilewright/attention.h"

namespace tilewright {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace cuda_calls;

class CudaCallsTuning : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = ::testing::TempDir() + "/tilewright_tuning_" + std::to_string(::getpid());
        ::setenv("TILEWRIGHT_CACHE_DIR", folder_.c_str(), 1);
        run::listen_to_tuning([&](const run::Tuning& tuning) { heard_.push_back(tuning); });
    }
    void TearDown() override {
        run::listen_to_tuning({});
        ::unsetenv("TILEWRIGHT_CACHE_DIR");
        std::filesystem::remove_all(folder_);
    }

    /// Fewer trials on the stand-in, where each takes a second: only warps are tuned.
    static AttentionOptions tuned() {
        AttentionOptions options{.engine = "tiles", .autotune = true};
        if (is_stand_in()) options.forward_blocks = options.backward_blocks = {.q = 16, .kv = 32};
        return options;
    }

    std::string folder_;
    std::vector<run::Tuning> heard_;
};

std::string blocks_of(DType dtype, std::int64_t dim, const AttentionBlocks& hint,
                      attn::Pass pass = attn::Pass::forward) {
    attn::AttentionSpec spec;
    spec.pass = pass;
    spec.device = kGpu;
    spec.dtype = dtype;
    spec.batch = 1;
    spec.query_heads = spec.kv_heads = 2;
    spec.query_length = spec.kv_length = 1000;
    spec.head_dim = spec.value_dim = dim;
    spec.forward_blocks = spec.backward_blocks = hint;
    return attn::tiles::engine().choose(spec)->numbers().to_string();
}

/// A call with a score mod that sums so many terms of three operations each.
attn::AttentionSpec sums_terms(int terms, attn::Pass pass) {
    constexpr int kGroup = 100;  // expressions may be 256 operations deep
    std::string text = "score";
    for (int i = 0; i < terms; ++i) {
        const bool first = i % kGroup == 0;
        if (first) text += i == 0 ? " + (" : ") + (";
        text += fmt::format("{}tanh(score * {})", first ? "" : " + ", i + 2);
    }
    text += ")";
    const Mod parsed = parse_mod(text, {}, Mod::Kind::score);
    const mod::Traced& traced = mod::trace(parsed, f32);
    attn::AttentionSpec spec;
    spec.pass = pass;
    spec.device = kGpu;
    spec.dtype = bf16;
    spec.batch = 1;
    spec.query_heads = spec.kv_heads = 2;
    spec.query_length = spec.kv_length = 1000;
    spec.head_dim = spec.value_dim = 64;
    spec.score.function = spec.score.plain_function = traced.function;
    spec.score.text = spec.score.plain_text = traced.text;
    return spec;
}

TEST_F(CudaCallsTuning, ProgramsOfLongModsHaveSmallBlocks) {
    TW_REQUIRE_GPU();
    const auto blocks = [](int terms, attn::Pass pass = attn::Pass::forward) {
        return attn::tiles::engine().choose(sums_terms(terms, pass))->numbers().to_string();
    };
    EXPECT_EQ(blocks(100), "kv=32, q=32, stages=0, warps=4");  // 1024 * 300 <= 4096 * 128
    EXPECT_EQ(blocks(200), "kv=32, q=16, stages=0, warps=4");  // 512 * 600
    // With its derivative, 512 * 1800 <= 4096 * 256.
    EXPECT_THAT(blocks(200, attn::Pass::backward), HasSubstr("kv=32, q=16, stages=0, warps=8"));
    EXPECT_EQ(blocks(50).find("q=32"), std::string::npos);  // not a long one
    const auto refusal = attn::sm90::engine().supports(sums_terms(350, attn::Pass::forward));
    ASSERT_TRUE(refusal.has_value());
    EXPECT_THAT(refusal->reason,
                AnyOf(HasSubstr("more than 1024 operations"), HasSubstr("compute capability")));
}

TEST_F(CudaCallsTuning, TakesBlocksThatSharedMemoryHolds) {
    TW_REQUIRE_GPU();
    EXPECT_EQ(blocks_of(bf16, 64, {.q = 32, .kv = 100}), "kv=64, q=32, stages=0, warps=0");
    EXPECT_EQ(blocks_of(bf16, 64, {.q = 1, .kv = 5000, .num_warps = 2, .num_stages = 3}),
              "kv=256, q=16, stages=3, warps=2");
    EXPECT_THAT(blocks_of(bf16, 64, {.q = 32, .kv = 32}, attn::Pass::backward),
                HasSubstr("kv=32, q=32"));
    // 256 x 256 scores alone are 256 KiB.
    EXPECT_EQ(blocks_of(f64, 128, {.q = 256, .kv = 256}).find("kv=256"), std::string::npos);
    const AttentionBlocks hint{.q = 16, .kv = 32, .num_warps = 2};
    check({.name = "blocks",
           .dtype = f32,
           .heads = 1,
           .options =
               [&](Device) {
                   return AttentionOptions{
                       .causal = true, .forward_blocks = hint, .backward_blocks = hint};
               }},
          "tiles");
}

void expect_near(const Tensor& a, const Tensor& b) {
    EXPECT_LE(largest_error(to_array(a), to_array(b)), 0.05);  // for sums rounded to bf16
}

TEST_F(CudaCallsTuning, MeasuresBothPassesOnce) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {1, 1, 40, 16}, 1).to(kGpu);
    AttentionOptions options = tuned(), plain{.window = {20, 5}, .engine = "tiles"};
    options.window = plain.window;
    const AttentionOutput want = attention(q, q, q, plain);
    const AttentionGradients want_gradients = attention_backward(q, q, q, want, q, plain);
    for (int i = 0; i < 2; ++i) {
        const AttentionOutput out = attention(q, q, q, options);
        const AttentionGradients gradients = attention_backward(q, q, q, out, q, options);
        expect_near(out.out, want.out);
        expect_near(gradients.query, want_gradients.query);
        expect_near(gradients.key, want_gradients.key);
    }
    ASSERT_EQ(heard_.size(), 2U);
    EXPECT_THAT(heard_[0].what, HasSubstr("attention tiles forward bf16 q 1x1x40x16"));
    EXPECT_THAT(heard_[1].what, HasSubstr("attention tiles backward bf16"));
    for (const run::Tuning& tuning : heard_) {
        EXPECT_GE(std::count(tuning.table.begin(), tuning.table.end(), '\n'), 2);
        EXPECT_THAT(tuning.chosen, HasSubstr("warps="));
    }
}

TEST_F(CudaCallsTuning, MeasuresFewRowsAndPackedSequences) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {1, 1, 1, 16}, 1).to(kGpu),
                 k = random_tensor(bf16, {1, 1, 40, 16}, 2).to(kGpu);
    expect_near(attention(q, k, k, tuned()).out, attention(q, k, k, {.engine = "tiles"}).out);
    ASSERT_EQ(heard_.size(), 1U);
    EXPECT_THAT(heard_[0].what, HasSubstr("q 1x1x1x16"));
    AttentionOptions plain{.engine = "tiles"}, options = tuned();
    const auto run = [&](int split) {
        plain.cu_seqlens = options.cu_seqlens = Tensor::from_vector(std::vector{0, split, 40}, {3});
        expect_near(attention(k, k, k, options).out, attention(k, k, k, plain).out);
    };
    run(18);
    ASSERT_EQ(heard_.size(), 2U);
    EXPECT_THAT(heard_[1].what, HasSubstr("2 packed sequences"));
    run(19);  // nearly the same lengths
    EXPECT_EQ(heard_.size(), 2U);
    if (is_stand_in()) return;
    run(3);
    EXPECT_EQ(heard_.size(), 3U);
}

}  // namespace
}  // namespace tilewright
