// The separate programs of the backward pass, with products by warpgroups, on a Hopper GPU.
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

}  // namespace
}  // namespace tilewright
