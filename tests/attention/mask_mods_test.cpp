// Attention under mask mods, masks as data and parts of larger calls, against the f64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/attention/definition.h"
#include "tests/support/accuracy.h"
#include "tests/support/throws.h"
#include "tilewright/attention.h"
#include "tilewright/error.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::attn {
namespace {

using ::testing::HasSubstr;
using testing::random_tensor;
using testing::throws;

TEST(AttentionMods, MaskMods) {
    const std::pair<const char*, Mod> masks[] = {
        {"causal", masks::causal()},
        {"window", masks::causal() & masks::sliding_window(20)},
        {"prefix", masks::prefix_lm(30)},
        {"batch and head", [](auto b, auto h, auto q, auto kv) { return kv % (b + h + 1) <= q; }},
        {"odd keys", [](auto, auto, auto, auto kv) { return kv % 2 == 1; }},
        {"nothing", [](auto, auto, auto, auto kv) { return kv < 0; }},
        {"empty rows", [](auto, auto, auto q, auto) { return q % 3 == 0; }},
    };
    for (const auto& [name, mask] : masks) {
        check({.name = name, .options = {.mask = mask}});
        check({.name = std::string(name) + " with score and causal",
               .options = {.causal = true, .mask = mask, .score_mod = scores::softcap(2)}});
    }
}

TEST(AttentionMods, LargeMasksAreData) {
    const Capture slopes = table({2}, 51);
    const auto document = [](auto, auto, auto q, auto kv) { return q / 100 == kv / 100; };
    const std::pair<const char*, Mod> masks[] = {
        {"causal", masks::causal()},
        {"window", masks::causal() & masks::sliding_window(90)},
        {"documents", masks::causal() & document},
        {"batch and head",
         [](auto b, auto h, auto q, auto kv) { return kv <= q + 50 * b - 70 * h; }},
        {"scattered", [](auto, auto, auto q, auto kv) { return (q * 7 + kv * 3) % 5 != 0; }},
        {"empty rows", [](auto, auto, auto q, auto kv) { return (q > 200) & (kv < 300); }},
    };
    for (const auto& [name, mask] : masks) {
        Case c{.name = name, .options = {.mask = mask}, .length = 500, .kv_length = 530};
        c.head_dim = c.value_dim = 8;
        c.batch = std::string(name) == "batch and head" ? 2 : 1;
        check(c);
    }
    // Distances only enter through tanh, which bounds scores: see `table`.
    const Mod score = [slopes](auto s, auto, auto h, auto q, auto kv) {
        return s + slopes[h] * tanh((kv - q) * 0.01);
    };
    for (const std::size_t i : {2, 5}) {
        Case c{.name = std::string(masks[i].first) + " with a score and a window",
               .options = {.window = {400, 300}, .mask = masks[i].second, .score_mod = score},
               .batch = 1,
               .kv_heads = 1,
               .length = 500,
               .kv_length = 530};
        c.head_dim = c.value_dim = 8;
        check(c);
    }
}

TEST(AttentionMods, BlockMasksOfAnyOrigin) {
    const Tensor q = random_tensor(f32, {2, 2, 100, 8}, 1),
                 k = random_tensor(f32, {2, 2, 90, 8}, 2);
    const Mod window = [](auto, auto h, auto i, auto j) {
        return (j <= i) & (i - j < 20 * (h + 1));
    };
    const Mod even = [](auto b, auto, auto, auto j) { return j % 2 == b; };
    const AttentionOptions by_function{.mask = window & even};
    const AttentionOptions by_data{.block_mask = create_block_mask(window & even, 2, 2, 100, 90)};
    const AttentionOptions by_both{.mask = even,
                                   .block_mask = create_block_mask(window, 1, 2, 100, 90)};
    const AttentionOutput expected = attention(q, k, k, by_function);
    const AttentionGradients gradients = attention_backward(q, k, k, expected, q, by_function);
    for (const AttentionOptions& options : {by_data, by_both}) {
        const AttentionOutput ours = attention(q, k, k, options);
        EXPECT_LE(largest_error(to_array(ours.out), to_array(expected.out)), 1e-6);
        EXPECT_LE(largest_error(to_array(ours.lse), to_array(expected.lse)), 1e-5);
        const AttentionGradients g = attention_backward(q, k, k, ours, q, options);
        EXPECT_LE(largest_error(to_array(g.query), to_array(gradients.query)), 1e-5);
        EXPECT_LE(largest_error(to_array(g.key), to_array(gradients.key)), 1e-5);
    }
    // One query by data.
    const Tensor one = q.slice(2, 0, 1);
    EXPECT_LE(
        largest_error(
            to_array(
                attention(one, k, k, {.block_mask = create_block_mask(even, 2, 1, 1, 90)}).out),
            to_array(attention(one, k, k, {.mask = even}).out)),
        1e-6);
    // With packed sequences, a mask as data is over packed positions.
    const Tensor starts = Tensor::from_vector(std::vector<std::int32_t>{0, 30, 100}, {3});
    const Tensor x = random_tensor(f32, {1, 2, 100, 8}, 3);
    const Mod positions = [](auto, auto, auto i, auto j) { return (i + j) % 3 != 0; };
    const Mod same = [](auto, auto, auto i, auto j) { return (i < 30) == (j < 30); };
    EXPECT_LE(largest_error(
                  to_array(attention(x, x, x,
                                     {.block_mask = create_block_mask(positions, 1, 1, 100, 100),
                                      .cu_seqlens = starts})
                               .out),
                  to_array(attention(x, x, x, {.mask = positions & same}).out)),
              1e-6);
    EXPECT_THAT([&] { attention(x, x, x, {.block_mask = create_block_mask(even, 1, 1, 99, 100)}); },
                throws("expected a block mask of 100 queries and 100 keys but got 99 and 100"));
    EXPECT_THAT(
        [&] { attention(x, x, x, {.block_mask = create_block_mask(even, 3, 1, 100, 100)}); },
        throws("with the batches and heads of query, 1 and 2, or 1 of either, but got 3 and 1"));
}

TEST(AttentionMods, MasksOfManyProgramsComeInLargeTiles) {
    // Programs take 128 queries: there are enough, and causal tiles of that size waste little.
    const Tensor x = random_tensor(f32, {2, 8, 1024, 8}, 1),
                 k = random_tensor(f32, {2, 8, 1024, 8}, 2);
    const auto expect_equal = [&](const AttentionOptions& by_data, const AttentionOptions& plain) {
        const AttentionOutput ours = attention(x, k, x, by_data);
        const AttentionOutput expected = attention(x, k, x, plain);
        EXPECT_LE(largest_error(to_array(ours.out), to_array(expected.out)), 1e-6);
        EXPECT_LE(largest_error(to_array(ours.lse), to_array(expected.lse)), 1e-5);
    };
    expect_equal({.mask = masks::causal()}, {.causal = true});
    expect_equal({.mask = masks::sliding_window(70)}, {.causal = true, .window = {70, -1}});
    expect_equal({.mask = masks::causal(), .score_mod = scores::alibi(8)},
                 {.causal = true, .score_mod = scores::alibi(8)});
}

/// The same with a mask as data that covers only the part.
TEST(AttentionMods, APartHasItsOwnBlockMask) {
    const Tensor q = random_tensor(f32, {3, 4, 40, 16}, 1),
                 k = random_tensor(f32, {3, 4, 40, 16}, 2),
                 dout = random_tensor(f32, {3, 4, 40, 16}, 3);
    const BlockMask mask = create_block_mask(
        [](auto b, auto h, auto i, auto j) { return (i + b + h) % 3 != j % 5; }, 3, 4, 40, 40);
    AttentionOptions options{
        .block_mask = mask,
        .score_mod = [](auto s, auto b, auto h, auto, auto j) { return s + (b + h) * j * 0.01; }};
    const AttentionOutput whole = attention(q, k, k, options);
    const AttentionGradients all = attention_backward(q, k, k, whole, dout, options);
    const auto cut = [](const Tensor& x) { return x.slice(0, 1, 2).slice(1, 2, 2).clone(); };
    const auto same = [](const Tensor& a, const Tensor& b) {
        EXPECT_THAT(a.to_vector<float>(),
                    ::testing::Pointwise(::testing::FloatNear(1e-5F), b.to_vector<float>()));
    };
    options.origin = {1, 2};
    options.block_mask = mask.part(1, 2, 2, 2);
    const Tensor pq = cut(q), pk = cut(k);
    const AttentionOutput part = attention(pq, pk, pk, options);
    same(part.out, cut(whole.out));
    const AttentionGradients grads = attention_backward(pq, pk, pk, part, cut(dout), options);
    same(grads.query, cut(all.query));
    same(grads.key, cut(all.key));
}

/// Batches 1 and 2, query heads 2 and 3 of a larger call, with that call's indices.
TEST(AttentionMods, APartCountsFromItsOrigin) {
    const auto cut = [](const Tensor& x, std::int64_t first, std::int64_t count) {
        return x.slice(0, 1, 2).slice(1, first, count).clone();
    };
    for (const std::int64_t length : {std::int64_t{40}, std::int64_t{1}}) {
        const Tensor q = random_tensor(f32, {3, 4, length, 16}, 1),
                     k = random_tensor(f32, {3, 2, 40, 16}, 2),
                     v = random_tensor(f32, {3, 2, 40, 16}, 3),
                     dout = random_tensor(f32, {3, 4, length, 16}, 4);
        const Capture factors = table({3, 4}, 5);
        AttentionOptions options{
            .mask = [](auto b, auto h, auto i, auto j) { return (i + b + h) % 3 != j % 5; },
            .score_mod = [=](auto s, auto b, auto h, auto i,
                             auto j) { return s + factors(b, h) * (j - i); },
            .dropout = 0.5,
            .seed = 5};
        const AttentionOutput whole = attention(q, k, v, options);
        const AttentionGradients all = attention_backward(q, k, v, whole, dout, options);
        options.origin = {1, 2};
        const Tensor pq = cut(q, 2, 2), pk = cut(k, 1, 1), pv = cut(v, 1, 1);
        const AttentionOutput part = attention(pq, pk, pv, options);
        const auto same = [](const Tensor& a, const Tensor& b) {
            EXPECT_THAT(a.to_vector<float>(),
                        ::testing::Pointwise(::testing::FloatNear(1e-5F), b.to_vector<float>()));
        };
        same(part.out, cut(whole.out, 2, 2));
        const AttentionGradients grads =
            attention_backward(pq, pk, pv, part, cut(dout, 2, 2), options);
        same(grads.query, cut(all.query, 2, 2));
        same(grads.key, cut(all.key, 1, 1));
        const auto own = [](const Tensor& x) { return x.slice(0, 1, 2).slice(1, 2, 2).clone(); };
        same(own(grads.captured[0]), own(all.captured[0]));
        EXPECT_EQ(grads.captured[0].get({0, 0}), 0);
    }
    const Tensor x = random_tensor(f32, {1, 1, 8, 8}, 1);
    EXPECT_THAT(
        [&] {
            attention(x, x, x, {.origin = {{-1, 0}}});
        },
        ::testing::ThrowsMessage<UserError>(HasSubstr("an origin of at least 0")));
}

TEST(AttentionMods, NarrowTypesUnderWindowsOfBothSides) {
    for (DType dtype : {bf16, f16}) {
        check({.name = "window", .options = {.window = {20, 7}}, .dtype = dtype});
    }
}

}  // namespace
}  // namespace tilewright::attn
