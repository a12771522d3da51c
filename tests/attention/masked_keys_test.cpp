// Keys past the length, or that no query may attend to, contribute nothing, whatever they hold.
#include <gtest/gtest.h>

#include "tests/attention/definition.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::attn {
namespace {

using testing::random_tensor;

Tensor lengths(const std::vector<std::int32_t>& values) {
    return Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())});
}

/// Two batches whose keys end early, poisoned from there on.
Case short_keys(std::string name, DType dtype = f32) {
    Case c{.name = std::move(name), .dtype = dtype, .poisoned = true};
    c.options.kv_lengths = lengths({40, 71});
    return c;
}

TEST(KvLengths, EveryDtype) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
        Case c = short_keys("lengths", dtype);
        check(c);
        c.name += " causal";
        c.options.causal = true;
        check(c);
    }
}

TEST(KvLengths, EveryLengthOfShortCalls) {
    for (std::int32_t length = 0; length <= 18; ++length) {
        Case c = short_keys(fmt::format("{} of 18", length));
        c.length = 5;
        c.kv_length = 18;
        c.options.kv_lengths = lengths({length, 18 - length});
        check(c);
        c.name += ", one query";
        c.length = 1;
        check(c);
    }
}

TEST(KvLengths, WithEveryOtherOption) {
    const auto with = [](std::string name, auto change) {
        Case c = short_keys(std::move(name));
        change(c);
        check(c);
    };
    with("window", [](Case& c) { c.options.window = {10, 4}; });
    with("segments", [](Case& c) {
        const auto ids = [](std::int64_t length) {
            Tensor result = Tensor::empty(i32, {2, length});
            for (std::int64_t i = 0; i < 2 * length; ++i)
                result.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % length / 20);
            return result;
        };
        c.options.segment_ids = ids(70);
        c.options.kv_segment_ids = ids(85);
    });
    with("groups", [](Case& c) { c.heads = 6; });
    with("sinks", [](Case& c) { c.options.sinks = random_tensor(f32, {2}, 7); });
    with("dropout", [](Case& c) { c.options.dropout = 0.3; });
    with("score mod", [](Case& c) { c.options.score_mod = scores::alibi(table({2}, 8)); });
    with("mask mod", [](Case& c) {
        c.options.mask = [](auto, auto, auto q, auto kv) { return (q + kv) % 3 != 0; };
    });
    with("block mask", [](Case& c) {
        c.mask = masks::causal();
        c.options.block_mask = create_block_mask(c.mask, 1, 1, 70, 85);
    });
    with("block mask of many blocks", [](Case& c) {
        c.heads = c.kv_heads = 1;
        c.length = 300;
        c.kv_length = 700;
        c.options.kv_lengths = lengths({333, 512});
        c.mask = masks::prefix_lm(200);
        c.options.block_mask = create_block_mask(c.mask, 1, 1, 300, 700);
    });
    with("BSHD", [](Case& c) { c.options.layout = Layout::bshd; });
    with("64-bit", [](Case& c) { c.options.kv_lengths = c.options.kv_lengths.to(i64); });
    with("checked mode", [](Case& c) {
        c.length = 20;
        c.options.checked = true;
    });
    with("long blocks", [](Case& c) {
        c.batch = c.heads = c.kv_heads = 1;
        c.length = 2048;
        c.kv_length = 2300;
        c.head_dim = c.value_dim = 4;
        c.options.kv_lengths = lengths({2203});
        c.options.causal = true;
    });
}

TEST(KvLengths, OneQueryIsDecoded) {
    Case c = short_keys("chunks");
    c.heads = 4;
    c.length = 1;
    c.kv_length = 5000;
    c.head_dim = c.value_dim = 8;
    for (const std::int32_t length : {0, 1, 511, 512, 513, 4999, 5000}) {
        c.options.kv_lengths = lengths({length, 5000 - length});
        check(c);
    }
    c.name += ", mods";
    c.options.score_mod = scores::softcap(3);
    c.options.mask = [](auto, auto, auto, auto kv) { return kv % 2 == 0; };
    check(c);
}

TEST(KvLengths, ZeroIsNothingToAttend) {
    const Tensor q = random_tensor(f32, {2, 2, 3, 4}, 1), k = random_tensor(f32, {2, 2, 5, 4}, 2);
    AttentionOptions options{.kv_lengths = lengths({0, 5})};
    const AttentionOutput result = attention(q, k, k, options);
    for (std::int64_t row = 0; row < 3; ++row) {
        EXPECT_EQ(result.out.get({0, 1, row, 2}), 0);
        EXPECT_EQ(result.lse.get({0, 1, row}), -INFINITY);
        EXPECT_TRUE(std::isfinite(result.lse.get({1, 1, row})));
    }
    const AttentionGradients g =
        attention_backward(q, k, k, result, random_tensor(f32, {2, 2, 3, 4}, 3), options);
    for (const Tensor& x : {g.query, g.key, g.value}) {
        EXPECT_EQ(x.get({0, 0, 1, 1}), 0);
        EXPECT_NE(x.get({1, 0, 1, 1}), 0);
    }
}

/// For packed sequences, a length each is the same as cutting their keys.
TEST(KvLengths, OfPackedSequences) {
    const std::vector<std::int64_t> starts{0, 30, 30, 90}, kv_starts{0, 50, 60, 100},
        given{20, 0, 40};
    const Tensor q = random_tensor(f32, {1, 2, 90, 8}, 1),
                 k = random_tensor(f32, {1, 1, 100, 8}, 2),
                 v = random_tensor(f32, {1, 1, 100, 8}, 3), dout = random_tensor(f32, q.shape(), 4);
    for (const Tensor& x : {k, v}) x.slice(2, 20, 40).fill(std::nan(""));
    AttentionOptions options;
    options.cu_seqlens = Tensor::from_vector(starts, {4});
    options.kv_cu_seqlens = Tensor::from_vector(kv_starts, {4});
    options.kv_lengths = Tensor::from_vector(given, {3});
    const AttentionOutput ours = attention(q, k, v, options);
    const AttentionGradients grads = attention_backward(q, k, v, ours, dout, options);
    for (std::size_t n = 0; n < 3; ++n) {
        const auto rows = [&](const Tensor& x) {
            return x.slice(2, starts[n], starts[n + 1] - starts[n]);
        };
        const auto keys = [&](const Tensor& x) { return x.slice(2, kv_starts[n], given[n]); };
        const AttentionOutput alone = attention(rows(q), keys(k), keys(v));
        const AttentionGradients g =
            attention_backward(rows(q), keys(k), keys(v), alone, rows(dout));
        const auto same = [&](const char* what, const Tensor& have, const Tensor& want) {
            EXPECT_LE(largest_error(to_array(have), to_array(want)), 1e-5) << what << n;
        };
        same("out", rows(ours.out), alone.out);
        same("lse", rows(ours.lse), alone.lse);
        same("dq", rows(grads.query), g.query);
        same("dk", keys(grads.key), g.key);
        same("dv", keys(grads.value), g.value);
    }
    for (const Tensor& x : {grads.key, grads.value})
        for (std::int64_t j = 20; j < 60; ++j) EXPECT_EQ(x.get({0, 0, j, 3}), 0);
}

/// A call whose masks exclude keys, poisoned where no query may attend.
Case masked(std::string name, AttentionOptions options, DType dtype = f32) {
    return {
        .name = std::move(name), .options = std::move(options), .dtype = dtype, .poisoned = true};
}

TEST(MaskedKeys, ContributeNothingWhateverTheyHold) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
        check(masked("causal tail", {.causal = true}, dtype));
        check(masked("window", {.window = {4, 3}}, dtype));
        Case c = masked("keys of a mod", {}, dtype);
        c.options.mask = [](auto, auto, auto q, auto kv) { return (kv % 3 == 0) & (q + 20 > kv); };
        check(c);
        c.name += ", decoded";
        c.length = 1;
        c.kv_length = 2100;
        check(c);
        c = masked("data", {}, dtype);
        c.mask = [](auto b, auto, auto q, auto kv) { return ((kv + b) % 5 != 0) & (q + 33 > kv); };
        c.options.block_mask = create_block_mask(c.mask, 2, 1, 70, 85);
        check(c);
        c = masked("score mod", {.causal = true}, dtype);
        c.options.score_mod = scores::alibi(table({2}, 8));
        c.options.dropout = 0.2;
        c.options.sinks = random_tensor(f32, {2}, 7);
        check(c);
        c.options.checked = true;
        c.length = 20;
        check(c);
    }
    Case c = masked("long, segments", {});
    c.batch = c.heads = c.kv_heads = 1;
    c.length = 200;
    c.kv_length = 600;
    const auto ids = [](std::int64_t length, std::int64_t kinds) {
        Tensor result = Tensor::empty(i32, {1, length});
        for (std::int64_t i = 0; i < length; ++i)
            result.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 % kinds);
        return result;
    };
    c.options.segment_ids = ids(200, 3);
    c.options.kv_segment_ids = ids(600, 5);
    check(c);
    c = masked("long, causal", {.causal = true});
    c.batch = c.heads = c.kv_heads = 1;
    c.length = 2048;
    c.kv_length = 2300;
    c.head_dim = c.value_dim = 4;
    check(c);
}

/// NaN or infinity in a key that one query attends to reaches only that query, in both passes.
TEST(MaskedKeys, QueriesAreApartFromWhatOthersAttend) {
    constexpr std::int64_t kLength = 150;
    const AttentionOptions options{.causal = true};
    const Tensor dout = random_tensor(f32, {1, 1, kLength, 8}, 4);
    Tensor q = random_tensor(f32, {1, 1, kLength, 8}, 1),
           k = random_tensor(f32, {1, 1, kLength, 8}, 2),
           v = random_tensor(f32, {1, 1, kLength, 8}, 3);
    const AttentionOutput plain = attention(q, k, v, options);
    const AttentionGradients plain_grads = attention_backward(q, k, v, plain, dout, options);
    Tensor bad_k = k.contiguous().to(f64).to(f32), bad_v = v.to(f64).to(f32);
    bad_k.set({0, 0, 100, 3}, std::nan(""));
    bad_v.set({0, 0, 120, 2}, INFINITY);
    const AttentionOutput ours = attention(q, bad_k, bad_v, options);
    const AttentionGradients g = attention_backward(q, bad_k, bad_v, ours, dout, options);
    for (std::int64_t i = 0; i < kLength; ++i) {
        for (std::int64_t d = 0; d < 8; ++d) {
            if (i < 100) {
                EXPECT_NEAR(ours.out.get({0, 0, i, d}), plain.out.get({0, 0, i, d}), 1e-6) << i;
                EXPECT_NEAR(g.query.get({0, 0, i, d}), plain_grads.query.get({0, 0, i, d}), 1e-5)
                    << i;
            } else {
                EXPECT_TRUE(std::isnan(ours.out.get({0, 0, i, d}))) << i;
                EXPECT_TRUE(std::isnan(g.query.get({0, 0, i, d}))) << i;
            }
        }
    }
    // An infinite value makes its column infinite, and no other.
    const AttentionOutput infinite = attention(q, k, bad_v, options);
    for (std::int64_t i = 0; i < kLength; ++i) {
        EXPECT_NEAR(infinite.out.get({0, 0, i, 1}), plain.out.get({0, 0, i, 1}), 1e-6);
        EXPECT_EQ(std::isinf(infinite.out.get({0, 0, i, 2})), i >= 120);
    }
    // Rows of NaN with their own segments do not affect other rows.
    AttentionOptions apart;
    apart.segment_ids = Tensor::empty(i32, {1, kLength});
    for (std::int64_t i = 0; i < kLength; ++i)
        apart.segment_ids.data<std::int32_t>()[i] = i < 140 ? 0 : 1;
    for (const Tensor& x : {q, k, v}) x.slice(2, 140, 10).fill(std::nan(""));
    const AttentionOutput split = attention(q, k, v, apart);
    const AttentionGradients split_grads = attention_backward(q, k, v, split, dout, apart);
    for (const Tensor& x : {split.out, split_grads.query, split_grads.key, split_grads.value})
        for (std::int64_t i = 0; i < kLength; ++i)
            EXPECT_EQ(std::isfinite(x.get({0, 0, i, 5})), i < 140) << i;
}

/// NaN or infinity in a query or its dout reaches only the keys that the query attends to.
TEST(MaskedKeys, KeysAreApartFromQueriesThatDoNotAttendToThem) {
    constexpr std::int64_t kLength = 1100, kRow = 700;  // two parts of keys
    const AttentionOptions options{.causal = true};
    for (const DType dtype : {f32, bf16}) {
        const auto random = [&](std::uint64_t seed) {
            return random_tensor(dtype, {1, 2, kLength, 8}, seed);
        };
        const Tensor q = random(1), k = random(2), v = random(3), dout = random(4);
        const AttentionOutput plain = attention(q, k, v, options);
        const AttentionGradients expected = attention_backward(q, k, v, plain, dout, options);
        for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
            for (const bool in_query : {false, true}) {
                const Tensor other_q = q.to(f64).to(dtype), other_dout = dout.to(f64).to(dtype);
                (in_query ? other_q : other_dout).set({0, 1, kRow, 5}, bad);
                const AttentionOutput out = attention(other_q, k, v, options);
                const AttentionGradients g =
                    attention_backward(other_q, k, v, out, other_dout, options);
                const auto same = [&](const Tensor& ours, const Tensor& theirs, std::int64_t h,
                                      std::int64_t i) {
                    for (std::int64_t d = 0; d < 8; ++d) {
                        ASSERT_NEAR(ours.get({0, h, i, d}), theirs.get({0, h, i, d}), 1e-2)
                            << name(dtype) << ", row " << i;
                    }
                };
                for (std::int64_t i = 0; i < kLength; ++i) {
                    if (i != kRow) same(g.query, expected.query, 1, i);
                    if (i > kRow) same(g.key, expected.key, 1, i);
                    if (i > kRow) same(g.value, expected.value, 1, i);
                    same(g.key, expected.key, 0, i);
                }
                EXPECT_FALSE(std::isfinite(g.value.get({0, 1, 0, 5}))) << name(dtype);
            }
        }
    }
}

TEST(KvLengths, BadOnesAreNamed) {
    const Tensor q = Tensor::zeros(f32, {2, 1, 3, 4}), k = Tensor::zeros(f32, {2, 1, 5, 4});
    const auto refused = [&](const Tensor& given, const std::string& words) {
        try {
            attention(q, k, k, {.kv_lengths = given});
            ADD_FAILURE() << "no error: " << words;
        } catch (const UserError& error) {
            EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        }
    };
    refused(lengths({1, -1}), "expected kv_lengths from 0 to the keys' length 5 but got -1");
    refused(lengths({6, 1}), "expected kv_lengths from 0 to the keys' length 5 but got 6");
    refused(lengths({1, 1, 1}), "expected kv_lengths of shape (2)");
    refused(Tensor::zeros(f32, {2}), "expected kv_lengths of an integer dtype");
}

}  // namespace
}  // namespace tilewright::attn
