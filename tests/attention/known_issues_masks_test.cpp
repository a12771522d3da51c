// Issues known from other libraries' programmable attention do not occur here: masks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/attention/known_issues.h"
#include "tests/support/accuracy.h"
#include "tilewright/masks.h"

namespace tilewright::known_issues {
namespace {

using testing::random_tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Ids of documents of 37, 74, 111, ... tokens.
Tensor documents(std::int64_t length) {
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; static_cast<std::int64_t>(ids.size()) < length; ++id)
        ids.insert(ids.end(), static_cast<std::size_t>(37 * (id + 1)), id);
    ids.resize(static_cast<std::size_t>(length));
    return Tensor::from_vector(ids, {length});
}

TEST(KnownIssues, MasksThatBroadcastHeadsOrBatchesReadTheRightRows) {
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

TEST(KnownIssues, CausalWrittenAsAScoreSkipsBlocks) {
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

TEST(KnownIssues, MasksOfLongSequencesAreSmall) {
    // As bools these masks would take 9, 12 and 17 GB.
    const std::int64_t n = 96000;
    const BlockMask causal = create_block_mask(masks::causal(), 1, 1, n, n);
    EXPECT_LT(causal.nbytes(), 256 << 10);
    EXPECT_TRUE(causal.attends(0, 0, n - 1, n - 1));
    EXPECT_FALSE(causal.attends(0, 0, n - 2, n - 1));
    const BlockMask late =
        create_block_mask(masks::offset(masks::causal(), 196000, 0), 1, 1, 49000, 245000);
    EXPECT_LT(late.nbytes(), 256 << 10);
    EXPECT_TRUE(late.attends(0, 0, 0, 196000));
    EXPECT_FALSE(late.attends(0, 0, 0, 196001));
    const Capture ids = capture(documents(1 << 17));
    const BlockMask packed =
        create_block_mask(masks::causal() & masks::document(ids), 1, 1, 1 << 17, 1 << 17);
    EXPECT_LT(packed.nbytes(), 4 << 20);
    EXPECT_TRUE(packed.attends(0, 0, 36, 0));
    EXPECT_FALSE(packed.attends(0, 0, 37, 36));
}

TEST(KnownIssues, HeadsThatTheMaskDoesNotReadTakeNoMemory) {
    const BlockMask one = create_block_mask(masks::causal(), 1, 1, 4096, 4096);
    EXPECT_EQ(create_block_mask(masks::causal(), 16, 64, 4096, 4096).nbytes(), one.nbytes());
}

TEST(KnownIssues, DocumentsOfABatchByOffsetsIdsAndMaskAreOne) {
    const Tensor ids = documents(600);  // so that the mask is data
    const Tensor starts =
        Tensor::from_vector(std::vector<std::int32_t>{0, 37, 111, 222, 370, 555, 600}, {7});
    const Tensor x = random_tensor(f32, {1, 2, 600, 16}, 1);
    const AttentionOptions by_offsets{.causal = true, .cu_seqlens = starts};
    const AttentionOutput expected = attention(x, x, x, by_offsets);
    const AttentionGradients g = attention_backward(x, x, x, expected, x, by_offsets);
    const AttentionOptions by_ids{.causal = true, .segment_ids = ids.reshape({1, 600})},
        by_mask{.mask = masks::causal() & masks::document(capture(ids))};
    for (const AttentionOptions& options : {by_ids, by_mask}) {
        const AttentionOutput ours = attention(x, x, x, options);
        expect_near(ours.out, expected.out, 1e-6);
        const AttentionGradients own = attention_backward(x, x, x, ours, x, options);
        expect_near(own.query, g.query, 1e-5);
        expect_near(own.key, g.key, 1e-5);
        expect_near(own.value, g.value, 1e-5);
    }
}

TEST(KnownIssues, MasksOfOneQueryDoNotGrowWithTheCache) {
    const auto bytes = [](std::int64_t cache) {
        const Mod last = masks::offset(masks::sliding_window(1000), cache - 1, 0);
        const BlockMask mask = create_block_mask(last, 1, 1, 1, cache);
        EXPECT_TRUE(mask.attends(0, 0, 0, cache - 1));
        EXPECT_FALSE(mask.attends(0, 0, 0, cache - 1002));
        return mask.nbytes();
    };
    EXPECT_LT(bytes(1 << 24), bytes(1 << 12) + 4096);
}

TEST(KnownIssues, OneMaskAppliesToShorterLengths) {
    const Mod mod = [](auto, auto h, auto q, auto kv) {
        return (q >= kv) & ((q - kv < 90) | (kv % (h + 2) == 0));
    };
    const BlockMask longest = create_block_mask(mod, 1, 2, 700, 700);
    for (const std::int64_t length : {1, 64, 333, 700}) {
        const BlockMask cut = longest.shifted(0, 0, length, length);
        EXPECT_TRUE(cut == create_block_mask(mod, 1, 2, length, length));
        const Tensor x = random_tensor(f32, {2, 2, length, 8}, 1);
        expect_near(attention(x, x, x, {.block_mask = cut}).out,
                    attention(x, x, x, {.mask = mod}).out, 1e-6);
    }
}

TEST(KnownIssues, DecodingByARowOfAMaskIsThatRow) {
    const Tensor x = random_tensor(f32, {2, 3, 300, 16}, 1);
    const Mod by_head = [](auto b, auto h, auto q, auto kv) {
        return (kv <= q) & ((q - kv) % (b + h + 2) != 1);
    };
    const Mod by_batch = [](auto b, auto, auto q, auto kv) { return (kv <= q) & (kv >= 40 * b); };
    for (const auto& [mod, heads] : {std::pair(by_head, 3), {by_batch, 1}}) {
        const Tensor all = attention(x, x, x, {.mask = mod}).out;
        const BlockMask mask = create_block_mask(mod, 2, heads, 300, 300, {1, 128});
        for (const std::int64_t position : {0, 100, 299}) {
            const Tensor one = x.slice(2, position, 1), expected = all.slice(2, position, 1);
            const auto decoded = [&](const AttentionOptions& options) {
                return attention(one, x, x, options).out;
            };
            expect_near(decoded({.block_mask = mask.shifted(position, 0, 1, 300)}), expected, 1e-6);
            expect_near(decoded({.block_mask = mask.q_rows(position, 1)}), expected, 1e-6);
            expect_near(decoded({.mask = masks::offset(mod, position, 0)}), expected, 1e-6);
        }
    }
}

TEST(KnownIssues, ProductsOfPositionsDoNotOverflowInMasks) {
    // 46341 * 46341 exceeds 2^31.
    const std::int64_t n = 50000;
    const Tensor x = Tensor::zeros(f32, {1, 1, n, 4}), dout = Tensor::full(f32, {1, 1, n, 4}, 1);
    const AttentionOptions options{.mask = [](auto, auto, auto q, auto kv) {
        return (q * q >= kv * kv) & (q * 50000 <= kv * 50000 + 3 * 50000);
    }};
    const AttentionOutput out = attention(x, x, x, options);
    const AttentionGradients g = attention_backward(x, x, x, out, dout, options);
    for (const std::int64_t q : {2, 3, 30000, 46340, 46341, 49999}) {
        EXPECT_NEAR(out.lse.get({0, 0, q}), std::log(std::min<double>(4, q + 1)), 1e-6) << q;
    }
    // Each key gets a probability of 1/4 from each of four queries.
    for (const std::int64_t kv : {3, 46340, 46342, 49996}) {
        EXPECT_NEAR(g.value.get({0, 0, kv, 0}), 1, 1e-6) << kv;
    }
    EXPECT_NEAR(g.value.get({0, 0, 49999, 0}), 0.25, 1e-6);
}

TEST(KnownIssues, OrderAndKindOfListedBlocksChangeNoBit) {
    const Tensor x = random_tensor(f32, {1, 2, 384, 16}, 1);
    const auto list = [](std::vector<std::int32_t> ids, Tensor::Dims shape) {
        return Tensor::from_vector(ids, std::move(shape));
    };
    // The same blocks in order, in another order, and as full blocks where all pairs attend.
    const Tensor counts = list({1, 2, 3}, {1, 1, 3});
    const Mod mod = masks::causal();
    const BlockMask in_order = BlockMask::from_kv_blocks(
        counts, list({0, 0, 0, 0, 1, 0, 0, 1, 2}, {1, 1, 3, 3}), {}, {}, 128, mod);
    const BlockMask shuffled = BlockMask::from_kv_blocks(
        counts, list({0, 0, 0, 1, 0, 0, 2, 0, 1}, {1, 1, 3, 3}), {}, {}, 128, mod);
    const BlockMask by_kind = BlockMask::from_kv_blocks(
        list({1, 1, 1}, {1, 1, 3}), list({0, 0, 0, 1, 0, 0, 2, 0, 0}, {1, 1, 3, 3}),
        list({0, 1, 2}, {1, 1, 3}), list({0, 0, 0, 0, 0, 0, 1, 0, 0}, {1, 1, 3, 3}), 128, mod);
    const auto bits = [&](const BlockMask& mask) {
        const AttentionOptions options{.block_mask = mask};
        const AttentionOutput out = attention(x, x, x, options);
        const AttentionGradients g = attention_backward(x, x, x, out, x, options);
        return std::vector{values(out.out), values(out.lse), values(g.query), values(g.key),
                           values(g.value)};
    };
    const auto expected = bits(create_block_mask(mod, 1, 1, 384, 384));
    for (const BlockMask& mask : {in_order, shuffled, by_kind}) EXPECT_EQ(bits(mask), expected);
}

TEST(KnownIssues, SparseBlocksOfHeadDimension64HaveTheRightGradients) {
    const Mod mod = [](auto, auto h, auto q, auto kv) {
        return (q / 64 + kv / 64 + h) % 3 == 0 && (q / 64 % 2 == 0 || (q + kv) % 5 != 0);
    };
    const BlockMask mask = create_block_mask(mod, 1, 2, 330, 400);
    expect_definition({.heads = 2, .length = 330, .kv_length = 400, .dim = 64},
                      {.block_mask = mask}, mod);
}

TEST(KnownIssues, TheTopKeysOfARowByATableOfThresholds) {
    // The thresholds are computed in f64, halfway between the fifth and the sixth score: no ties.
    const Tensor q = random_tensor(f32, {1, 2, 40, 16}, 1),
                 k = random_tensor(f32, {1, 2, 60, 16}, 2);
    Tensor thresholds = Tensor::zeros(f32, {2, 40});
    for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = 0; i < 40; ++i) {
            std::vector<double> row(60, 0.0);
            for (std::int64_t j = 0; j < 60; ++j)
                for (std::int64_t d = 0; d < 16; ++d)
                    row[static_cast<std::size_t>(j)] +=
                        q.get({0, h, i, d}) * k.get({0, h, j, d}) / 4;
            std::sort(row.begin(), row.end(), std::greater<>());
            thresholds.set({h, i}, (row[4] + row[5]) / 2);
        }
    }
    const Capture limit = capture(thresholds, "limit", false);
    const AttentionOptions options{.score_mod = [limit](auto s, auto, auto h, auto i, auto) {
        return where(s >= limit(h, i), s, -kInfinity);
    }};
    const Tensor ones = Tensor::full(f32, {1, 2, 60, 16}, 1);
    const AttentionOutput out = attention(q, k, ones, options);
    const AttentionGradients g =
        attention_backward(q, k, ones, out, Tensor::full(f32, {1, 2, 40, 16}, 1), options);
    for (std::int64_t h = 0; h < 2; ++h) {
        // The probabilities of every row sum to 1.
        double sum = 0;
        for (std::int64_t j = 0; j < 60; ++j) sum += g.value.get({0, h, j, 0});
        EXPECT_NEAR(sum, 40, 1e-4);
    }
    expect_definition({.heads = 2, .kv_heads = 2, .length = 40, .kv_length = 60}, options);
}

TEST(KnownIssues, PackedSequencesTakeMasksOfTheirOwn) {
    const Tensor starts = Tensor::from_vector(std::vector<std::int32_t>{0, 37, 111, 222}, {4});
    const Tensor x = random_tensor(f32, {1, 2, 222, 16}, 1);
    const Mod mod = [](auto b, auto h, auto q, auto kv) {
        return (kv <= q) & ((q - kv) % (b + h + 2) != 1);
    };
    const AttentionOptions packed{.mask = mod, .cu_seqlens = starts};
    const AttentionOutput out = attention(x, x, x, packed);
    const AttentionGradients g = attention_backward(x, x, x, out, x, packed);
    for (std::int64_t n = 0; n < 3; ++n) {
        const auto first = static_cast<std::int64_t>(starts.get({n})),
                   length = static_cast<std::int64_t>(starts.get({n + 1})) - first;
        const auto own = [&](const Tensor& t) { return t.slice(2, first, length); };
        const AttentionOptions options{.mask = mod, .origin = {{n, 0}}};
        const Tensor part = own(x);
        const AttentionOutput one = attention(part, part, part, options);
        expect_near(own(out.out), one.out, 1e-6);
        const AttentionGradients h = attention_backward(part, part, part, one, part, options);
        expect_near(own(g.query), h.query, 1e-5);
        expect_near(own(g.key), h.key, 1e-5);
    }
}

}  // namespace
}  // namespace tilewright::known_issues
