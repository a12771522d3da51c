// Masks built by interval analysis against their dense definition, bit for bit.
#include "mask/build.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/print.h"
#include "mask/dense.h"
#include "mod/evaluate.h"
#include "tests/support/random_mod.h"
#include "tests/support/seeds.h"
#include "tilewright/lang.h"
#include "tilewright/masks.h"

namespace tilewright::mask {
namespace {

struct Shape {
    std::int64_t batch, heads, q_len, kv_len;
};

/// The definition: one evaluation per pair by the scalar evaluator.
std::vector<bool> definition(const MaskFunction& mask, const Shape& shape) {
    mod::Evaluator evaluator(*mask.function, mask.arrays);
    std::vector<bool> bits;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
            for (std::int64_t q = 0; q < shape.q_len; ++q) {
                for (std::int64_t kv = 0; kv < shape.kv_len; ++kv) {
                    const std::uint64_t scalars[] = {
                        static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(h),
                        static_cast<std::uint64_t>(q), static_cast<std::uint64_t>(kv)};
                    bits.push_back(evaluator.run(scalars)[0] != 0);
                }
            }
        }
    }
    return bits;
}

::testing::AssertionResult equals_definition(const MaskFunction& mask, const Shape& shape) {
    const MaskData data = build(mask, shape.batch, shape.heads, shape.q_len, shape.kv_len);
    const auto got = to_dense(data, shape.batch, shape.heads).to_vector<bool>();
    const auto want = definition(mask, shape);
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (got[i] == want[i]) continue;
        const auto n = static_cast<std::int64_t>(i);
        return ::testing::AssertionFailure()
               << "q " << n / shape.kv_len % shape.q_len << " kv " << n % shape.kv_len << " is "
               << got[i] << " of " << shape.q_len << " x " << shape.kv_len << "\n"
               << ir::print(*mask.function);
    }
    const auto machine = evaluate_dense(mask, shape.batch, shape.heads, shape.q_len, shape.kv_len);
    if (machine.to_vector<bool>() != want)
        return ::testing::AssertionFailure() << "evaluate_dense:\n" << ir::print(*mask.function);
    return ::testing::AssertionSuccess();
}

/// Random masks built from the terms of real masks.
class RandomMask {
  public:
    explicit RandomMask(std::uint64_t seed) : random_(seed) {
        std::vector<std::int32_t> ids(300);
        std::int32_t id = 0;
        for (auto& element : ids) element = below(30) == 0 ? ++id : id;
        ids_ = capture(Tensor::from_vector(ids, {300}), "ids");
        std::vector<std::int64_t> links(300);
        for (auto& element : links) element = below(400) - 50;
        links_ = capture(Tensor::from_vector(links, {300}), "links");
        std::vector<bool> flags(4 * 300);
        for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = below(20) == 0;
        flags_ = capture(Tensor::from_vector(flags, {4, 300}), "flags");
    }

    Mod make(int depth) {
        if (depth == 0 || below(5) == 0) return term();
        const Mod a = make(depth - 1);
        switch (below(5)) {
            case 0:
            case 1:
                return a & make(depth - 1);
            case 2:
            case 3:
                return a | make(depth - 1);
            default:
                return ~a;
        }
    }

  private:
    std::int64_t below(std::int64_t n) {
        return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
    }

    Mod term() {
        const std::int64_t w = below(200), m = 1 + below(40), r = below(m);
        const Capture ids = ids_, links = links_, flags = flags_;
        switch (below(13)) {
            case 0:
                return [](auto, auto, auto q, auto kv) { return q >= kv; };
            case 1:
                return [w](auto, auto, auto q, auto kv) { return abs(q - kv) <= w; };
            case 2:
                return [w](auto b, auto, auto, auto kv) { return kv < w + 20 * b; };
            case 3:
                return [m, r](auto, auto, auto q, auto kv) { return (q - kv) % m == r; };
            case 4:
                return [m](auto, auto, auto q, auto kv) { return q / m == kv / m; };
            case 5:
                return [ids](auto, auto, auto q, auto kv) { return ids[q] == ids[kv]; };
            case 6:
                return
                    [flags](auto, auto h, auto q, auto kv) { return flags(h, q) || flags(h, kv); };
            case 7:
                return [ids, links](auto, auto, auto q, auto kv) {
                    return links[ids[q]] <= kv && kv <= q;
                };
            case 8:
                return [m](auto, auto, auto q, auto kv) {
                    return abs(q / m - kv / m) <= 1 && abs(q % m - kv % m) <= 2;
                };
            case 9:
                return [w](auto, auto h, auto q, auto kv) {
                    return (q ^ kv) < w + h && ((q & 31) >= (kv & 7));
                };
            case 10:
                return [links](auto, auto, auto q, auto kv) { return links[q - kv + 10] > q; };
            case 11:
                return [m](auto, auto, auto q, auto kv) {
                    return q.to(f32) * 0.75f >= kv.to(f32) + static_cast<float>(m);
                };
            default:
                return [w](auto, auto, auto q, auto kv) {
                    return (q.to(i32) * 50000 - kv.to(i32) * 40000) > w * 1000;  // wraps
                };
        }
    }

    std::mt19937_64 random_;
    Capture ids_ = capture(Tensor::scalar(i32, 0)), links_ = ids_, flags_ = ids_;
};

Shape random_shape(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::int64_t lengths[] = {1, 2, 63, 64, 65, 100, 128, 191, 200, 260};
    return {1 + static_cast<std::int64_t>(random() % 2),
            1 + static_cast<std::int64_t>(random() % 2), lengths[random() % std::size(lengths)],
            lengths[random() % std::size(lengths)]};
}

TEST(MaskBuild, MasksOfUsualTermsEqualTheirDefinition) {
    const auto seeds = tilewright::testing::seeds(150);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const Mod mod = RandomMask(seed).make(3);
        ASSERT_TRUE(equals_definition(MaskFunction::of("test", mod), random_shape(seed)))
            << "seed " << seed;
    }
}

TEST(MaskBuild, AnyFunctionEqualsItsDefinition) {
    const auto seeds = tilewright::testing::seeds(150);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        MaskFunction mask;
        mask.function = std::make_shared<ir::Function>(tilewright::testing::random_mod(seed, true));
        mask.arrays = tilewright::testing::random_mod_arrays(seed % 5);
        ASSERT_TRUE(equals_definition(mask, random_shape(seed))) << "seed " << seed;
    }
}

TEST(MaskBuild, ScoreModsMaskWhereTheyAreMinusInfinity) {
    const Mod score = [](auto s, auto, auto h, auto q, auto kv) {
        return where(q >= kv, s + h, where(kv < 3, -1.0, -INFINITY));
    };
    const Mod mask = [](auto, auto, auto q, auto kv) { return q >= kv || kv < 3; };
    const MaskFunction a = MaskFunction::of("test", score), b = MaskFunction::of("test", mask);
    const Shape shape{1, 2, 100, 130};
    EXPECT_TRUE(equals_definition(a, shape));
    EXPECT_EQ(definition(a, shape), definition(b, shape));
}

TEST(MaskBuild, WorksOnBordersOnly) {
    const std::int64_t n = 1 << 17;
    BuildReport report;
    const MaskData causal = build(MaskFunction::of("test", masks::causal()), 8, 16, n, n, &report);
    EXPECT_EQ(causal.batch, 1);
    EXPECT_EQ(causal.heads, 1);
    EXPECT_EQ(report.pieces, n / 64);
    EXPECT_EQ(report.evaluated, 1);
    EXPECT_LT(report.boxes, 12 * n / 64);
    EXPECT_LT(causal.nbytes(), 200 * 1024);
    const MaskData window =
        build(MaskFunction::of("test", masks::sliding_window(1000)), 1, 1, n, n, &report);
    EXPECT_LE(report.evaluated, 3);
    EXPECT_LT(window.nbytes(), 300 * 1024);
}

TEST(MaskBuild, PositionsDoNotOverflow) {
    const std::int64_t n = 1 << 17;  // q * q exceeds 2^31
    const Mod mod = [](auto, auto, auto q, auto kv) { return q * q >= kv * kv; };
    const MaskData data = build(MaskFunction::of("test", mod), 1, 1, n, n);
    const MaskData causal = build(MaskFunction::of("test", masks::causal()), 1, 1, n, n);
    EXPECT_EQ(data.runs.size(), causal.runs.size());
    EXPECT_TRUE(data.get(0, 0, 70000, 70000));
    EXPECT_FALSE(data.get(0, 0, 70000, 70001));
}

TEST(MaskBuild, EmptyMasks) {
    const MaskFunction causal = MaskFunction::of("test", masks::causal());
    EXPECT_EQ(build(causal, 1, 1, 0, 100).runs.size(), 0u);
    EXPECT_EQ(build(causal, 1, 1, 100, 0).runs.size(), 0u);
    const Mod never = [](auto, auto, auto q, auto kv) { return q < 0 && kv < 0; };
    EXPECT_EQ(build(MaskFunction::of("test", never), 1, 1, 1000, 1000).runs.size(), 0u);
}

}  // namespace
}  // namespace tilewright::mask
