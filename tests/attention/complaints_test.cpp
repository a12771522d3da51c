// What users of programmable attention elsewhere complained about, as tests.
#include <gtest/gtest.h>

#include <cmath>

#include "support/accuracy.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using testing::random_tensor;

std::vector<float> values(const Tensor& x) {
    return x.to_vector<float>();
}

TEST(Complaints, MasksThatBroadcastHeadsOrBatchesReadTheRightRows) {
    const Tensor x = random_tensor(f32, {2, 3, 80, 16}, 1);
    const Mod mask = masks::causal() & masks::sliding_window(30);
    const std::vector<float> expected = values(attention(x, x, x, {.mask = mask}).out);
    for (const auto& [b, h] : {std::pair{1, 1}, {2, 1}, {1, 3}, {2, 3}}) {
        const BlockMask data = create_block_mask(mask, b, h, 80, 80);
        const Array ours = to_array(attention(x, x, x, {.block_mask = data}).out);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(ours.data[i], expected[i], 1e-6) << b << h;
        }
    }
}

TEST(Complaints, GradientsOfLengthsThatFitNoBlockAreFinite) {
    const Tensor q = random_tensor(f32, {1, 1, 129, 24}, 1),
                 k = random_tensor(f32, {1, 1, 67, 24}, 2);
    const AttentionOptions options{.mask = masks::sliding_window(3),
                                   .score_mod = scores::activation("softplus")};
    const AttentionOutput out = attention(q, k, k, options);
    const AttentionGradients g = attention_backward(q, k, k, out, q, options);
    for (const Tensor& x : {out.out, g.query, g.key, g.value})
        for (float value : values(x)) ASSERT_TRUE(std::isfinite(value));
}

TEST(Complaints, ResultsDoNotDependOnTheBatchAround) {
    const Tensor x = random_tensor(f32, {3, 2, 100, 16}, 1);
    const AttentionOptions options{.causal = true, .score_mod = scores::softcap(5)};
    const Tensor all = attention(x, x, x, options).out;
    for (std::int64_t b = 0; b < 3; ++b) {
        const Tensor one = x.slice(0, b, 1);
        EXPECT_EQ(values(attention(one, one, one, options).out), values(all.slice(0, b, 1))) << b;
    }
}

TEST(Complaints, ManyGathersOfOneLearnedTableHaveOneGradient) {
    const Capture table = capture(Tensor::full(f32, {2, 9}, 0.5));
    const Mod mod = [table](auto s, auto, auto h, auto q, auto kv) {
        return s + table(h, q % 3) * table(h, kv % 9) + table(0, 0);
    };
    const Tensor x = random_tensor(f32, {1, 2, 20, 8}, 1);
    const AttentionOptions options{.score_mod = mod};
    const AttentionOutput out = attention(x, x, x, options);
    const AttentionGradients g = attention_backward(x, x, x, out, x, options);
    ASSERT_EQ(g.captured.size(), 1U);
    // Against a difference in one element.
    const auto loss = [&] {
        const std::vector<float> o = values(attention(x, x, x, options).out), d = values(x);
        double sum = 0;
        for (std::size_t i = 0; i < o.size(); ++i) sum += double{o[i]} * d[i];
        return sum;
    };
    Tensor cells = table.tensor();
    cells.set({1, 2}, 0.5 + 1e-2);
    const double high = loss();
    cells.set({1, 2}, 0.5 - 1e-2);
    EXPECT_NEAR(g.captured[0].get({1, 2}), (high - loss()) / 2e-2, 1e-3);
}

TEST(Complaints, DecodeOfGroupsThatAreNoPowerOfTwo) {
    const Tensor q = random_tensor(f32, {2, 6, 1, 16}, 1),
                 kv = random_tensor(f32, {2, 2, 300, 16}, 2);
    const AttentionOutput one = attention(q, kv, kv, {.score_mod = scores::alibi(6)});
    const Tensor two = Tensor::zeros(f32, {2, 6, 2, 16});
    two.slice(2, 0, 1).copy_from(q);
    const AttentionOutput both = attention(two, kv, kv, {.score_mod = scores::alibi(6)});
    const std::vector<float> a = values(one.out), b = values(both.out.slice(2, 0, 1));
    // Biases reach 300 * 2^(-8 / 6) = 119: rounding one to f32 changes its probability by 4e-6.
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 8e-6);
}

TEST(Complaints, CausalWrittenAsAScoreSkipsBlocks) {
    const Tensor x = random_tensor(f32, {1, 1, 600, 16}, 1);
    const Mod score = [](auto s, auto, auto, auto q, auto kv) {
        return where(q >= kv, s, -std::numeric_limits<double>::infinity());
    };
    const AttentionOptions by_score{.score_mod = score}, by_flag{.causal = true};
    const AttentionOutput a = attention(x, x, x, by_score), b = attention(x, x, x, by_flag);
    EXPECT_LE(largest_error(to_array(a.out), to_array(b.out)), 1e-6);
    const AttentionGradients ga = attention_backward(x, x, x, a, x, by_score),
                             gb = attention_backward(x, x, x, b, x, by_flag);
    EXPECT_LE(largest_error(to_array(ga.query), to_array(gb.query)), 1e-5);
    EXPECT_LE(largest_error(to_array(ga.key), to_array(gb.key)), 1e-5);
}

TEST(Complaints, MemoryDoesNotGrowWithTheSquareOfTheLength) {
    // A dense mask of this length would take 2 GiB.
    const Tensor x = Tensor::zeros(f32, {1, 1, 46500, 8});
    const AttentionOptions options{.mask = masks::causal() & masks::sliding_window(64)};
    const AttentionOutput out = attention(x, x, x, options);
    EXPECT_NEAR(out.lse.get({0, 0, 46499}), std::log(65.0), 1e-5);
}

}  // namespace
}  // namespace tilewright
