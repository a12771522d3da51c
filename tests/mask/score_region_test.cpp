// Regions that score mods mask for any score.
#include "mask/score_region.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mod/evaluate.h"
#include "tilewright/lang.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::mask {
namespace {

constexpr std::int64_t kLength = 90;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

BlockMask built(const Mod& score_mod) {
    return mask_of_scores(score_mod, 1, 2, kLength, kLength).value();
}

/// Expects -inf outside of the mask for ordinary and for extreme scores.
void expect_sound(const Mod& score_mod) {
    const BlockMask mask = built(score_mod);
    mod::Evaluator evaluator(mod::trace(score_mod));
    for (std::int64_t q = 0; q < kLength; ++q) {
        for (std::int64_t kv = 0; kv < kLength; ++kv) {
            if (mask.attends(0, 1, q, kv)) continue;
            for (const double score : {0.0, -3.5, 1e30, kInfinity, -kInfinity, std::nan("")})
                ASSERT_EQ(evaluator.score(score, 0, 1, q, kv), -kInfinity) << q << " " << kv;
        }
    }
}

TEST(ScoreRegion, WhereIsAMask) {
    const Mod causal = [](auto s, auto, auto, auto q, auto kv) {
        return where(q >= kv, s, -INFINITY);
    };
    EXPECT_TRUE(built(causal) == create_block_mask(masks::causal(), 1, 2, kLength, kLength));
    expect_sound(causal);
}

TEST(ScoreRegion, ConditionsNest) {
    const Mod mod = [](auto s, auto, auto h, auto q, auto kv) {
        return where(q >= kv, where(q - kv <= 20 + h, s * 2, -INFINITY),
                     where(kv < 5, 0.5, -INFINITY));
    };
    const Mod mask = [](auto, auto h, auto q, auto kv) {
        return (q >= kv && q - kv <= 20 + h) || (q < kv && kv < 5);
    };
    EXPECT_TRUE(built(mod) == create_block_mask(mask, 1, 2, kLength, kLength));
    expect_sound(mod);
}

TEST(ScoreRegion, FiniteTermsChangeNothing) {
    const Mod mod = [](auto s, auto, auto, auto q, auto kv) {
        return where(q >= kv, s, -INFINITY) + 0.5 * (kv - q).to(f32);
    };
    EXPECT_TRUE(built(mod) == create_block_mask(masks::causal(), 1, 2, kLength, kLength));
    expect_sound(mod);
}

TEST(ScoreRegion, ArraysDecideRegions) {
    const Tensor lengths = Tensor::from_vector<int>({20, 50}, {2});
    const Mod mod = [ends = capture(lengths)](auto s, auto, auto h, auto, auto kv) {
        return where(kv < ends[h], s, -INFINITY);
    };
    expect_sound(mod);
    EXPECT_TRUE(built(mod).attends(0, 1, 0, 49));
    EXPECT_FALSE(built(mod).attends(0, 1, 0, 50));
    lengths.set({1}, 51);  // seen by the next call
    EXPECT_TRUE(built(mod).attends(0, 1, 0, 50));
}

TEST(ScoreRegion, NothingIsPromotedWhereTheScoreDecides) {
    const Mod threshold = [](auto s, auto, auto, auto, auto) { return where(s > 0, s, -INFINITY); };
    const auto region = mask_of_scores(threshold, 1, 1, kLength, kLength);
    EXPECT_TRUE(!region || region->sparsity() == 0);
    EXPECT_FALSE(visible_region(scores::alibi(8)));
    EXPECT_FALSE(visible_region(scores::softcap(20)));
    const Tensor table = Tensor::full(f32, {8}, INFINITY);
    const Mod infinite = [slopes = capture(table)](auto s, auto, auto h, auto q, auto kv) {
        return where(q >= kv, s, -INFINITY) + slopes[h];  // inf - inf is NaN
    };
    EXPECT_FALSE(visible_region(infinite));
}

}  // namespace
}  // namespace tilewright::mask
