// The attention programs against the f64 reference, over dtypes, masks, lengths and strides.
#include "tilewright/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/tiles/backward.h"
#include "tests/attention/definition.h"
#include "tilewright/scores.h"

namespace tilewright::attn {
namespace {

using testing::expect_accurate;
using testing::random_tensor;

/// Self-attention over 70 positions.
Case plain_case(std::string name, DType dtype = f32) {
    return {.name = std::move(name), .dtype = dtype, .batch = 1, .kv_length = 70};
}

/// Ids that change every few positions, so that blocks contain several segments.
Tensor segments(std::int64_t batch, std::int64_t length, std::int64_t every,
                std::int64_t first = 0) {
    std::vector<std::int64_t> ids;
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t i = 0; i < length; ++i) ids.push_back(first + i / every);
    return Tensor::from_vector(ids, {batch, length}, i32);
}

TEST(Attention, EveryDtypeAgreesWithTheReference) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
        Case c = plain_case(std::string(name(dtype)), dtype);
        check(c);
        c.name += " causal";
        c.options.causal = true;
        check(c);
    }
}

TEST(Attention, OddLengthsAgreeWithTheReference) {
    for (const auto& [length, kv_length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {1, 150}, {3, 17}, {64, 128}, {65, 129}, {130, 1}, {7, 300}}) {
        Case c = plain_case(fmt::format("{} x {}", length, kv_length));
        c.length = length;
        c.kv_length = kv_length;
        check(c);
        c.name += " causal";
        c.options.causal = true;
        check(c);
    }
}

TEST(Attention, SeveralBlocksAndAnotherValueDimensionAgree) {
    Case c = plain_case("several blocks, value dim differs");
    c.heads = c.kv_heads = 1;
    c.length = 200;
    c.kv_length = 600;
    c.head_dim = 8;
    c.value_dim = 24;
    check(c);
    c.options.causal = true;
    check(c);
}

TEST(Attention, LongBlocks) {
    Case c = plain_case("2048 queries, more keys");
    c.heads = c.kv_heads = 1;
    c.length = 2048;
    c.kv_length = 2091;
    c.head_dim = c.value_dim = 4;
    check(c);
    // Shorter blocks where a diagonal cuts.
    c.name += ", causal";
    c.options.causal = true;
    check(c);
    c.name += ", window";
    c.options.window = {.left = 300};
    check(c);
}

// The first block of queries that attends to a block of keys leaves out the second half of it.
TEST(Attention, HalfBlocksAtTheDiagonal) {
    for (const DType dtype : {f32, bf16}) {
        for (const std::int64_t right : {0, 1, 63, 64, 65, 200}) {
            Case c = plain_case(fmt::format("window up to {}", right), dtype);
            c.heads = 4;
            c.length = 300;
            c.kv_length = 411;
            c.options.window = {-1, right};
            check(c);
        }
    }
}

TEST(Attention, HalfBlocksAreCopiesOfTheLoopWhereTheyPay) {
    const auto dots = [](std::int64_t block_q, bool causal, std::int64_t left) {
        tiles::Options options;
        options.block_q = block_q;
        options.block_k = 128;
        options.causal = causal;
        options.window_left = left;
        const Tensor x = Tensor::zeros(f32, {1, 1, 512, 16}), row = Tensor::zeros(f32, {1, 1, 512});
        const Call call = tiles::backward(options, {}, {});
        std::vector<Tensor> inputs{x, x, x, x, row, row};
        inputs.resize(call.options().in.size());
        if (tiles::looks_for_infinities(options, {}))
            inputs[8 + tiles::Extra::not_finite] = Tensor::zeros(boolean, {1, 1, 512 / block_q});
        const std::string text = call.ir(inputs);
        int count = 0;
        for (std::size_t at = text.find("= dot"); at != std::string::npos;
             at = text.find("= dot", at + 1))
            ++count;
        return count;
    };
    EXPECT_EQ(dots(128, true, -1) + 2 * 5, dots(64, true, -1));  // writes and adds
    EXPECT_EQ(dots(128, false, -1), dots(64, false, -1));
    EXPECT_EQ(dots(128, true, 200), dots(64, true, 200));
}

TEST(Attention, GroupedHeads) {
    Case c = plain_case("8 over 2");
    c.batch = 2;
    c.heads = 8;
    c.length = 20;
    c.kv_length = 33;
    check(c);
    c.name = "8 over 2, one query";
    c.length = 1;
    check(c);
    c.name = "6 over 1, one query, several chunks";
    c.batch = 1;
    c.heads = 6;
    c.kv_heads = 1;
    c.kv_length = 5000;
    c.head_dim = c.value_dim = 8;
    check(c);
}

TEST(Attention, FewQueriesOverManyKeys) {
    Case c = plain_case("5 queries, 4 heads over 2, several chunks");
    c.heads = 4;
    c.length = 5;
    c.kv_length = 2500;
    check(c);
    c.name += ", BSHD";
    c.options.layout = Layout::bshd;
    check(c);
    c.name += ", as many heads";
    c.heads = 2;
    check(c);
    c.name += ", window";
    c.options.window.left = 2;
    check(c);
    c.name = "bf16, odd chunk";
    c.options = {};
    c.dtype = bf16;
    c.length = 15;
    c.kv_length = 2171;
    check(c);
}

TEST(Attention, BlocksOfMoreQueriesWhereProgramsAreMany) {
    for (const DType dtype : {f32, bf16}) {
        Case c = plain_case("64 heads", dtype);
        c.heads = 64;
        c.length = 260;
        c.kv_length = 20;
        c.head_dim = c.value_dim = 4;
        check(c);
        c.name += ", causal";
        c.options.causal = true;
        check(c);
    }
}

TEST(Attention, WindowsAgreeWithTheReference) {
    constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
    for (const Window window : {Window{10, 0}, Window{0, -1}, Window{-1, 5}, Window{33, 40},
                                Window{-1, kFar}, Window{kFar, kFar}}) {
        Case c = plain_case(fmt::format("window {}, {}", window.left, window.right));
        c.heads = c.kv_heads = 1;
        c.length = 140;
        c.kv_length = 270;
        c.options.window = window;
        check(c);
        c.options.causal = true;
        check(c);
    }
}

TEST(Attention, RowsWithNothingToAttend) {
    Case c = plain_case("window beyond the keys");  // queries from 60 on see nothing
    c.length = 100;
    c.kv_length = 50;
    c.options.window = {10, -1};
    check(c);
}

TEST(Attention, SegmentsLeaveRowsEmptyThatHaveNoKey) {
    Case c = plain_case("self attention");
    c.batch = 2;
    c.options.segment_ids = segments(2, 70, 13);
    check(c);
    c.options.causal = true;
    check(c);
    c.name = "cross attention, some rows empty";
    c.options.causal = false;
    c.kv_length = 200;
    c.options.kv_segment_ids = segments(2, 200, 50, 2);
    check(c);
    c.options.window = {40, 30};
    check(c);
}

TEST(Attention, TheLayoutBshdAgreesWithTheReference) {
    Case c = plain_case("bshd");
    c.batch = 2;
    c.kv_heads = 1;
    c.options.layout = Layout::bshd;
    c.options.causal = true;
    check(c);
}

TEST(Attention, StridedInputs) {
    const Tensor wide = random_tensor(f32, {1, 2, 40, 24}, 1);
    const Tensor q = wide.slice(3, 3, 8), k = wide.slice(2, 0, 20, 2).slice(3, 8, 8);
    const Tensor v = random_tensor(f32, {1, 2, 8, 20}, 2).transpose({0, 1, 3, 2});
    const AttentionOutput ours = attention(q, k, v);
    const AttentionOutput dense = attention(q.contiguous(), k.contiguous(), v.contiguous());
    EXPECT_EQ(ours.out.to_vector<float>(), dense.out.to_vector<float>());
}

TEST(Attention, ScalesOfAnySign) {
    for (const double scale : {0.5, -0.3, 0.0}) {
        Case c = plain_case(fmt::format("scale {}", scale));
        c.options.scale = scale;
        check(c);
        c.length = 1;
        check(c);
    }
}

TEST(Attention, LargeScoresDoNotOverflow) {
    const Tensor q = random_tensor(f32, {1, 1, 70, 16}, 1),
                 k = random_tensor(f32, {1, 1, 70, 16}, 2);
    const AttentionOptions options{.scale = 1000};
    const AttentionOutput ours = attention(q, k, k, options);
    const AttentionGradients g = attention_backward(q, k, k, ours, q, options);
    for (const Tensor& x : {ours.out, ours.lse, g.query, g.key, g.value})
        for (const float value : x.to_vector<float>()) ASSERT_TRUE(std::isfinite(value));
}

TEST(Attention, NanReachesItsRowOnly) {
    Tensor q = random_tensor(f32, {1, 1, 4, 8}, 1);
    q.set({0, 0, 2, 3}, NAN);
    const Tensor k = random_tensor(f32, {1, 1, 9, 8}, 2);
    const Tensor out = attention(q, k, k).out;
    EXPECT_TRUE(std::isnan(out.get({0, 0, 2, 0})));
    EXPECT_FALSE(std::isnan(out.get({0, 0, 1, 0})));
}

TEST(Attention, ZeroLengths) {
    const Tensor none = Tensor::empty(f32, {1, 2, 0, 8}),
                 some = random_tensor(f32, {1, 2, 3, 8}, 1);
    EXPECT_EQ(attention(none, some, some).out.size(), 0);
    const AttentionOutput nothing = attention(some, none, none);
    EXPECT_EQ(nothing.out.to_vector<float>(), std::vector<float>(48, 0));
    EXPECT_EQ(nothing.lse.get({0, 1, 2}), -INFINITY);
    const AttentionGradients g = attention_backward(some, none, none, nothing, some);
    EXPECT_EQ(g.query.to_vector<float>(), std::vector<float>(48, 0));
    EXPECT_EQ(g.key.size(), 0);
}

TEST(Attention, CheckedModeFindsNothing) {
    Case c = plain_case("checked");
    c.length = c.kv_length = 20;
    c.options.causal = true;
    c.options.checked = true;
    c.options.segment_ids = segments(1, 20, 7);
    check(c);
}

TEST(Attention, BadInputIsNamed) {
    const Tensor q = random_tensor(f32, {1, 4, 5, 8}, 1);
    const auto expect_error = [&](const std::string& part, const Tensor& k, const Tensor& v,
                                  const AttentionOptions& options = {}) {
        try {
            attention(q, k, v, options);
            ADD_FAILURE() << "no error: " << part;
        } catch (const UserError& error) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    expect_error("key", random_tensor(f32, {1, 4, 5, 9}, 1), q);
    expect_error("key of dtype f32", q.to(bf16), q);
    expect_error("key of rank 4", q.select(0, 0), q);
    expect_error("value", q, random_tensor(f32, {1, 4, 6, 8}, 1));
    expect_error("value", q, Tensor());
    const Tensor three = random_tensor(f32, {1, 3, 5, 8}, 1);
    expect_error("multiple", three, three);
    expect_error("window", q, q, {.window = {-2, 0}});
    expect_error("scale", q, q, {.scale = NAN});
    expect_error("segment_ids", q, q, {.segment_ids = Tensor::zeros(i32, {1, 6})});
    expect_error("integer", q, q, {.segment_ids = Tensor::zeros(f32, {1, 5})});
    expect_error("segment_ids", q, q, {.kv_segment_ids = Tensor::zeros(i32, {1, 5})});
}

TEST(Attention, ResultsNeverOverwriteWhatIsRead) {
    const auto expect_error = [](const std::string& part, const auto& write) {
        EXPECT_THAT(write, ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(part)));
    };
    const Tensor q = random_tensor(f32, {1, 2, 40, 16}, 1),
                 k = random_tensor(f32, {1, 2, 40, 16}, 2);
    const AttentionOutput out = attention(q, k, k);
    expect_error("expected out.out apart from query but they share memory", [&] {
        attention_into({q, out.lse, {}}, q, k, k);
    });
    AttentionGradients g{q.clone(), q.clone(), {}, {}, {}};
    g.value = g.key;
    expect_error("expected gradients.value apart from gradients.key",
                 [&] { attention_backward_into(g, q, k, k, out, k); });
    // Slices of one packed tensor are not contiguous.
    const Tensor packed = Tensor::zeros(f32, {1, 40, 6, 16});
    const auto heads = [&](int first) { return packed.slice(2, first, 2).transpose({0, 2, 1, 3}); };
    AttentionGradients slices{heads(0), heads(2), heads(4), {}, {}};
    attention_backward_into(slices, q, k, k, out, k);
    EXPECT_EQ(slices.key.to_vector<float>(),
              attention_backward(q, k, k, out, k).key.to_vector<float>());
}

TEST(Attention, GradientsOfCapturesAndSinksGoWhereTheCallerSays) {
    const Tensor q = random_tensor(f32, {1, 2, 40, 16}, 1), slopes = random_tensor(f32, {2}, 2),
                 sinks = random_tensor(bf16, {2}, 3);
    AttentionOptions options;
    options.score_mod = scores::alibi(capture(slopes, "slopes"));
    options.sinks = sinks;
    const AttentionOutput out = attention(q, q, q, options);
    const Tensor nobody_reads = Tensor::zeros(f32, q.shape());
    attention_into({nobody_reads, {}, {}}, q, q, q, options);
    EXPECT_EQ(nobody_reads.to_vector<float>(), out.out.to_vector<float>());
    const AttentionGradients made = attention_backward(q, q, q, out, q, options);
    AttentionGradients given;
    given.sinks = Tensor::full(bf16, {2}, NAN);
    given.captured = {Tensor::full(f32, {2}, NAN)};
    const Tensor own_sinks = given.sinks, own_slopes = given.captured[0];
    attention_backward_into(given, q, q, q, out, q, options);
    EXPECT_EQ(own_sinks.to_vector<float>(), made.sinks.to_vector<float>());
    EXPECT_EQ(own_slopes.to_vector<float>(), made.captured.at(0).to_vector<float>());
    const auto expect_error = [&](const std::string& part, const Tensor& of_sinks,
                                  const std::vector<Tensor>& captured) {
        AttentionGradients wrong;
        wrong.sinks = of_sinks;
        wrong.captured = captured;
        EXPECT_THAT([&] { attention_backward_into(wrong, q, q, q, out, q, options); },
                    ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(part)));
    };
    const Tensor wide = Tensor::zeros(f64, {2});
    expect_error("expected gradients.sinks", wide, {});
    expect_error("expected gradients.captured", {}, {wide});
    expect_error("at most 1 tensors in gradients.captured", {}, {own_slopes, wide});
}

TEST(Attention, GradientsThatAreNotWantedAreLeftOut) {
    const Tensor q = random_tensor(f32, {2, 4, 70, 16}, 1),
                 k = random_tensor(f32, {2, 2, 90, 16}, 2),
                 v = random_tensor(f32, {2, 2, 90, 24}, 3),
                 dout = random_tensor(f32, {2, 4, 70, 24}, 4), slopes = random_tensor(f32, {4}, 5);
    for (const bool with_mod : {false, true}) {
        AttentionOptions options;
        options.causal = true;
        if (with_mod) options.score_mod = scores::alibi(capture(slopes, "slopes"));
        const AttentionOutput out = attention(q, k, v, options);
        const AttentionGradients all = attention_backward(q, k, v, out, dout, options);
        for (int wanted = 0; wanted < 8; ++wanted) {
            AttentionGradients some;
            if (wanted & 1) some.query = Tensor::empty(f32, q.shape());
            if (wanted & 2) some.key = Tensor::empty(f32, k.shape());
            if (wanted & 4) some.value = Tensor::empty(f32, v.shape());
            attention_backward_into(some, q, k, v, out, dout, options);
            const auto expect_same = [&](const Tensor& given, const Tensor& expected, bool there) {
                ASSERT_EQ(given.defined(), there) << wanted;
                if (!there) return;
                EXPECT_EQ(given.to_vector<float>(), expected.to_vector<float>());
            };
            expect_same(some.query, all.query, wanted & 1);
            expect_same(some.key, all.key, wanted & 2);
            expect_same(some.value, all.value, wanted & 4);
            ASSERT_EQ(some.captured.size(), with_mod ? 1u : 0u);
            if (with_mod) expect_same(some.captured[0], all.captured[0], true);
        }
    }
}

}  // namespace
}  // namespace tilewright::attn
