// Attention with mods, sinks, dropout and packed sequences against the f64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/reference.h"
#include "tests/attention/definition.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"
#include "tilewright/error.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"
#include "tilewright/system.h"

namespace tilewright::attn {
namespace {

using testing::expect_accurate;
using ::testing::HasSubstr;
using testing::random_tensor;

std::vector<std::pair<std::string, Mod>> score_mods() {
    const Capture slopes = table({2}, 11), relative = table({2, 154}, 12);
    const Capture full = table({2, 2, 70, 85}, 13), shared = table({70, 85}, 14);
    const Capture rows = table({2, 70}, 15), columns = table({85}, 16);
    const Capture few = table({5}, 17), small = table({1, 2, 1, 85}, 18);
    std::vector<std::int32_t> buckets;
    for (int i = 0; i < 85; ++i) buckets.push_back(i / 9 % 5);
    const Capture bucket = capture(Tensor::from_vector(buckets, {85}));
    return {
        {"noop", [](auto s, auto, auto, auto, auto) { return s; }},
        {"constant", [](auto, auto, auto, auto, auto) { return 1.5; }},
        {"causal_score",
         [](auto s, auto, auto, auto q, auto kv) { return where(q >= kv, s, -INFINITY); }},
        {"alibi", scores::alibi(2)},
        {"alibi_table", scores::alibi(slopes)},
        {"softcap", scores::softcap(1.5)},
        {"relative_position", compose(scores::softcap(5), scores::relative_position())},
        {"checkerboard", scores::checkerboard()},
        {"bias", scores::bias(full)},
        {"bias_qk", scores::bias(shared)},
        {"bias_broadcast", scores::bias(small)},
        {"relative_table",
         [=](auto s, auto, auto h, auto q, auto kv) { return s + relative(h, q - kv + 84); }},
        {"rows_and_columns",
         [=](auto s, auto, auto h, auto q, auto kv) { return s * rows(h, q) + columns[kv]; }},
        {"chained",
         [=](auto s, auto, auto, auto q, auto kv) { return s + few[bucket[q]] * few[bucket[kv]]; }},
        {"clamped", [=](auto s, auto, auto, auto q, auto kv) { return s + few[q - kv]; }},
        {"activation", scores::activation("relu")},
        {"dead_branch", [](auto s, auto, auto, auto, auto) { return where(s > 0, log(s), s); }},
    };
}

TEST(AttentionMods, ScoreModsForwardAndBackward) {
    for (const auto& [name, mod] : score_mods()) {
        check({.name = name, .options = {.score_mod = mod}});
        check({.name = name + " causal", .options = {.causal = true, .score_mod = mod}});
    }
}

TEST(AttentionMods, DistancesOfOtherTypesAreThoseOfPositions) {
    // Relative to a block's first key these would differ: below 0, or rounded differently.
    const Mod mods[] = {
        [](auto s, auto, auto, auto q, auto kv) {
            return s + (cast(cast(q, u32), f32) - cast(cast(kv, u32), f32)) * 0.01;
        },
        [](auto s, auto, auto, auto q, auto kv) {
            return s + cast(cast(q, u8) - cast(kv, u8), f32) * 0.01;
        },
        [](auto s, auto, auto, auto q, auto kv) {
            return s + (cast(q, f32) - cast(kv, f32)) * 0.01;
        },
    };
    for (const Mod& mod : mods) {
        check({.name = "distance", .options = {.score_mod = mod}, .kv_length = 600});
    }
}

TEST(AttentionMods, EveryDtype) {
    for (DType dtype : {f64, f16, bf16}) {
        for (const char* name : {"alibi_table", "softcap", "bias"}) {
            for (const auto& [mod_name, mod] : score_mods()) {
                if (mod_name != name) continue;
                check({.name = name, .options = {.score_mod = mod}, .dtype = dtype});
            }
        }
    }
}

TEST(AttentionMods, ScoresOfAnyMagnitude) {
    // These are exact in f32: only the softmax is compared. Maxima rise from block to block.
    for (const double c : {0x1p20, -0x1p20, 0x1p27, -0x1p27, 0x1p33, -0x1p33, 0x1p100, -0x1p126,
                           0x1p127, 0x1.fp127, -0x1p127, -0x1.fp127}) {
        const double ulp = std::fabs(c) * 0x1p-22;
        const Mod ties = [=](auto, auto, auto, auto q, auto kv) {
            return where(kv % 3 == q % 3, c, c - std::fabs(c));
        };
        const Mod steps = [=](auto, auto, auto, auto, auto kv) { return c + kv / 5 * ulp; };
        const Mod masked = [=](auto s, auto, auto, auto q, auto kv) {
            return where(kv <= q, s, -std::fabs(c));
        };
        for (const DType dtype : {f32, f64, f16, bf16}) {
            for (const std::int64_t length : {1, 70}) {
                for (const auto& [name, mod] :
                     {std::pair("ties", ties), {"steps", steps}, {"masked", masked}}) {
                    check({.name = std::string(name) + " " + std::to_string(c),
                           .options = {.score_mod = mod},
                           .dtype = dtype,
                           .batch = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .length = length,
                           .kv_length = length == 1 ? 2100 : 600});
                }
            }
        }
    }
}

/// Rows of scores far from 0 have the same gradients as those near 0, with any other options.
TEST(AttentionMods, RowsOfLargeScoresHaveGradients) {
    constexpr double kFar = 0x1p25;  // f32 numbers of this size are 4 apart
    const Tensor x = random_tensor(f32, {2, 4, 90, 16}, 1),
                 y = random_tensor(f32, {2, 2, 90, 16}, 2),
                 dout = random_tensor(f32, {2, 4, 90, 16}, 3),
                 dlse = random_tensor(f32, {2, 4, 90}, 4);
    Tensor steps = Tensor::zeros(f32, {4, 5});
    for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 5; ++i) steps.set({h, i}, 4.0 * ((i * 3 + h) % 4));
    const auto gradients = [&](AttentionOptions options, double far, bool every_row) {
        const Capture table = capture(steps, "steps");
        const double odd = every_row ? far : 0;
        options.score_mod = [=](auto s, auto, auto h, auto q, auto kv) {
            return s * 0.0 + table(h, kv % 5) + where(q % 2 == 0, far, odd);
        };
        if (options.sinks.defined()) options.sinks = Tensor::full(f32, {4}, far + 4);
        const AttentionOutput out = attention(x, y, y, options);
        const AttentionGradients g = attention_backward(x, y, y, out, dout, options, dlse);
        std::vector<Tensor> all{g.key, g.value, g.captured.at(0)};
        if (g.sinks.defined()) all.push_back(g.sinks);
        return all;
    };
    const BlockMask data = create_block_mask(masks::sliding_window(30), 1, 1, 90, 90);
    const Tensor ids = Tensor::full(i32, {2, 90}, 1);
    ids.slice(1, 40, 50).fill(2);
    const Tensor lengths = Tensor::from_vector<std::int32_t>({50, 90}, {2});
    const std::pair<const char*, AttentionOptions> cases[] = {
        {"plain", {}},
        {"sinks", {.sinks = Tensor::zeros(f32, {4})}},
        {"causal", {.causal = true}},
        {"window", {.window = {20, 3}}},
        {"mask as data", {.block_mask = data}},
        {"mask in the program", {.mask = masks::prefix_lm(7)}},
        {"segments", {.segment_ids = ids}},
        {"lengths", {.kv_lengths = lengths}},
        {"dropout", {.dropout = 0.3, .seed = 7}},
        {"checked", {.causal = true, .checked = true}},
    };
    for (const auto& [name, options] : cases) {
        for (const bool every_row : {false, true}) {
            if (options.sinks.defined() && !every_row) continue;
            for (const double sign : {1.0, -1.0}) {
                SCOPED_TRACE(name);
                const std::vector<Tensor> got = gradients(options, sign * kFar, every_row),
                                          want = gradients(options, 0, every_row);
                for (std::size_t i = 0; i < want.size(); ++i) {
                    const Array ours = to_array(got[i]), expected = to_array(want[i]);
                    // Those of the table and the sinks sum thousands of terms that cancel.
                    const double tolerance = i < 2 ? 2e-4 : 2e-3;
                    for (std::size_t n = 0; n < expected.data.size(); ++n) {
                        ASSERT_NEAR(ours.data[n], expected.data[n], tolerance) << i << ' ' << n;
                    }
                }
            }
        }
    }
}

TEST(AttentionMods, EveryFiniteScoreIsAScore) {
    for (const DType dtype : {f32, f64}) {
        const double most = dtype == f64 ? std::numeric_limits<double>::max()
                                         : double{std::numeric_limits<float>::max()};
        for (const std::int64_t length : {1, 5}) {
            const Tensor x = random_tensor(dtype, {1, 1, length, 4}, 2);
            const Tensor five = random_tensor(dtype, {1, 1, 5, 4}, 3);
            for (const bool is_checked : {false, true}) {
                for (const auto& [score, others] : {std::pair(most, 0.0),
                                                    {0.6 * most, 0.5 * most},
                                                    {most, 0.9 * most},
                                                    {0.5 * most, -most},
                                                    {0, -most},
                                                    {-0.5 * most, -most}}) {
                    const Mod mod = [score = score, others = others](auto s, auto, auto, auto,
                                                                     auto kv) {
                        return where(kv == 2, s * 0.0 + score, others);
                    };
                    const Mod constants = [score = score, others = others](auto, auto, auto, auto,
                                                                           auto kv) {
                        return where(kv == 2, score, others);
                    };
                    for (const Mod& either : {mod, constants}) {
                        const AttentionOutput ours =
                            attention(x, five, five, {.score_mod = either, .checked = is_checked});
                        EXPECT_EQ(ours.out.get({0, 0, 0, 1}), five.get({0, 0, 2, 1})) << score;
                        EXPECT_EQ(ours.lse.get({0, 0, 0}), score) << others;
                        EXPECT_EQ(ours.max_scores.get({0, 0, 0}), score) << others;
                    }
                }
                // All scores are the lowest number: the result is an average.
                const Mod lowest = [most](auto s, auto, auto, auto, auto kv) {
                    return where(kv < 0, s, -most);
                };
                const AttentionOutput ours =
                    attention(x, five, five, {.score_mod = lowest, .checked = is_checked});
                double mean = 0;
                for (std::int64_t j = 0; j < 5; ++j) mean += five.get({0, 0, j, 3}) / 5;
                EXPECT_NEAR(ours.out.get({0, 0, 0, 3}), mean, 1e-6);
                EXPECT_EQ(ours.lse.get({0, 0, 0}), -most);
            }
        }
    }
}

/// Scores without a mod, which are scaled inside the exponent.
TEST(AttentionMods, LargeProductsAreScores) {
    for (const double scale : {0.25, 0.7, 1.0, 1.5, 1.9, 2.0, -1.0}) {
        for (const double sign : {1.0, -1.0}) {
            for (const std::int64_t length : {1, 40}) {
                Tensor q = Tensor::full(f32, {1, 1, length, 1}, 0x1p63);
                Tensor k = Tensor::full(f32, {1, 1, 300, 1},
                                        0x1p62 * sign / std::max(1.0, std::abs(scale)));
                Tensor v = random_tensor(f32, {1, 1, 300, 4}, 1);
                // A larger score in a late block.
                k.set({0, 0, 250, 0}, sign * (sign * scale > 0 ? 1.6 : 0.4) * 0x1p62 /
                                          std::max(1.0, std::abs(scale)));
                const AttentionOutput ours = attention(q, k, v, {.scale = scale});
                EXPECT_EQ(ours.out.get({0, 0, 0, 1}), v.get({0, 0, 250, 1})) << scale << sign;
                EXPECT_TRUE(std::isfinite(ours.lse.get({0, 0, 0}))) << scale << ' ' << sign;
            }
        }
    }
}

TEST(AttentionMods, InfiniteAndUndefinedScoresAreNanAsInTheDefinition) {
    for (const double score : {std::numeric_limits<double>::infinity(), std::nan("")}) {
        for (const std::int64_t length : {1, 70}) {
            const Mod mod = [=](auto s, auto, auto, auto q, auto kv) {
                return where((q % 2 == 0) & (kv == 33), score, s);
            };
            const Tensor x = random_tensor(f32, {1, 1, length, 4}, 1),
                         k = random_tensor(f32, {1, 1, 300, 4}, 2);
            const AttentionOutput ours = attention(x, k, k, {.score_mod = mod});
            for (std::int64_t q = 0; q < length; ++q) {
                EXPECT_EQ(std::isnan(ours.out.get({0, 0, q, 1})), q % 2 == 0);
                EXPECT_EQ(std::isfinite(ours.lse.get({0, 0, q})), q % 2 != 0);
            }
        }
    }
}

TEST(AttentionMods, GroupedHeadsSeeTheQueryHead) {
    const Capture slopes = table({6}, 21);
    check({.name = "gqa",
           .options = {.score_mod = scores::alibi(slopes)},
           .heads = 6,
           .kv_heads = 2});
    check({.name = "gqa mask",
           .options = {.mask = [](auto, auto h, auto q, auto kv) { return (q + h) % 3 != kv % 2; }},
           .heads = 3,
           .kv_heads = 1});
}

TEST(AttentionMods, CapturesMayHaveNamesOfArgumentsAndOfEachOther) {
    const Capture out = capture(random_tensor(f32, {85}, 61), "out");
    const Capture first = capture(random_tensor(f32, {70}, 62), "bias");
    const Capture second = capture(random_tensor(f32, {85}, 63), "bias");
    const Mod score = [=](auto s, auto, auto, auto q, auto kv) {
        return s + first[q] * second[kv] + out[kv];
    };
    check({.name = "names", .options = {.score_mod = score}});
}

TEST(AttentionMods, PackedSequencesRunSideBySide) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t n = 0; n < 40; ++n) starts.push_back(starts.back() + n * 7 % 60);
    const Tensor x = random_tensor(f32, {1, 2, starts.back(), 16}, 1),
                 k = random_tensor(f32, {1, 2, starts.back(), 16}, 2);
    const AttentionOptions options{.causal = true,
                                   .cu_seqlens = Tensor::from_vector(starts, {41}, i64)};
    const auto results = [&] {
        const AttentionOutput out = attention(x, k, x, options);
        const AttentionGradients g = attention_backward(x, k, x, out, x, options);
        return std::vector{out.out.to_vector<float>(), g.query.to_vector<float>(),
                           g.key.to_vector<float>(), g.value.to_vector<float>()};
    };
    const auto many = results();
    set_num_threads(1);
    EXPECT_EQ(many, results());
    set_num_threads(0);
}

TEST(AttentionMods, OneQueryIsDecoded) {
    const Capture slopes =
        capture(Tensor::from_vector(std::vector<float>{.01F, -.02F, 0, .001F}, {4}));
    Tensor offset = Tensor::scalar(i32, 3000);
    const Capture position = capture(offset);
    for (std::int64_t kv_length : {1, 100, 5000}) {
        check({.name = "decode",
               .options = {.mask = [=](auto, auto, auto q, auto kv) { return q + position >= kv; },
                           .score_mod = scores::alibi(slopes),
                           .sinks = random_tensor(f32, {4}, 23)},
               .heads = 4,
               .length = 1,
               .kv_length = kv_length,
               .bounds = 2});  // gradients are off by an lse of up to log(5000), in eps
    }
    check({.name = "nothing to attend",
           .options = {.mask = [](auto, auto, auto, auto kv) { return kv < 0; }},
           .length = 1});
}

TEST(AttentionMods, Sinks) {
    const Tensor sinks = random_tensor(f32, {2}, 31);
    check({.name = "sinks", .options = {.causal = true, .sinks = sinks}});
    // Gradients are off by a further |lse| eps: 8 + 30 instead of 8.
    check({.name = "large sinks", .options = {.sinks = Tensor::full(f32, {2}, 30)}, .bounds = 5});
    check({.name = "rows with a sink alone",
           .options = {.mask = [](auto, auto, auto q, auto kv) { return kv + 5 <= q; },
                       .sinks = sinks}});
    check({.name = "bf16", .options = {.sinks = sinks.to(bf16)}, .dtype = bf16});
    check({.name = "no keys", .options = {.sinks = sinks}, .kv_length = 0});
}

TEST(AttentionMods, DropoutHasTheBitsOfItsDefinition) {
    check({.name = "dropout", .options = {.dropout = 0.3, .seed = 7}});
    check({.name = "dropout and mods",
           .options = {.causal = true, .score_mod = scores::alibi(4), .dropout = 0.5, .seed = 1},
           .heads = 4,
           .length = 130,
           .kv_length = 130});
    check({.name = "one query", .options = {.dropout = 0.5}, .length = 1});
    const Tensor x = random_tensor(f32, {1, 1, 64, 16}, 1);
    const auto out = [&](std::uint64_t seed) {
        return attention(x, x, x, {.dropout = 0.5, .seed = seed}).out.to_vector<float>();
    };
    EXPECT_EQ(out(3), out(3));
    EXPECT_NE(out(3), out(4));
}

TEST(AttentionMods, PackedSequencesRestartPositions) {
    const std::vector<std::int64_t> starts{0, 5, 5, 75, 90}, kv_starts{0, 9, 20, 84, 100};
    const Tensor cu = Tensor::from_vector(starts, {5}, i32);
    const Tensor kv_cu = Tensor::from_vector(kv_starts, {5}, i32);
    const Tensor q = random_tensor(f32, {1, 4, 90, 16}, 1),
                 k = random_tensor(f32, {1, 2, 100, 16}, 2),
                 v = random_tensor(f32, {1, 2, 100, 16}, 3),
                 dout = random_tensor(f32, {1, 4, 90, 16}, 4);
    const Capture factors = table({4, 4}, 5);
    const AttentionOptions options{
        .causal = true,
        .mask = [](auto b, auto, auto q_idx, auto kv) { return (q_idx + b) % 7 != kv; },
        .score_mod = [=](auto s, auto b, auto h, auto q_idx,
                         auto kv) { return s + factors(b, h) * (kv - q_idx); },
        .cu_seqlens = cu,
        .kv_cu_seqlens = kv_cu,
        .sinks = random_tensor(f32, {4}, 6),
        .dropout = 0.2};
    const AttentionOutput ours = attention(q, k, v, options);
    const AttentionGradients grads = attention_backward(q, k, v, ours, dout, options);
    Array dtable({4, 4}), dsinks({4}), plain_dtable({4, 4}), plain_dsinks({4});
    const auto add = [](Array& sum, const Array& part) {
        for (std::size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += part.data[i];
    };
    for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
        const std::int64_t length = starts[n + 1] - starts[n];
        const std::int64_t kv_length = kv_starts[n + 1] - kv_starts[n];
        if (length == 0) continue;
        const auto part = [](const Tensor& x, std::int64_t first, std::int64_t count) {
            return to_array(x.slice(2, first, count));
        };
        const Array qa = part(q, starts[n], length), ka = part(k, kv_starts[n], kv_length),
                    va = part(v, kv_starts[n], kv_length), da = part(dout, starts[n], length);
        ReferenceOptions exact_options;
        exact_options.causal = true;
        exact_options.mask = options.mask;
        exact_options.score_mod = options.score_mod;
        exact_options.sinks = to_array(options.sinks);
        exact_options.dropout = 0.2;
        exact_options.first_batch = static_cast<std::int64_t>(n);
        ReferenceOptions plain_options = exact_options;
        plain_options.arithmetic = f32;
        const auto exact = reference_forward(qa, ka, va, exact_options);
        const auto plain = reference_forward(qa, ka, va, plain_options);
        expect_accurate("out", ours.out.slice(2, starts[n], length), exact.out, plain.out, f32);
        expect_accurate("lse", ours.lse.slice(2, starts[n], length), exact.lse, plain.lse, f32);
        const auto exact_grads = reference_backward(qa, ka, va, da, {}, exact_options);
        const auto plain_grads = reference_backward(qa, ka, va, da, {}, plain_options);
        expect_accurate("dq", grads.query.slice(2, starts[n], length), exact_grads.query,
                        plain_grads.query, f32);
        expect_accurate("dk", grads.key.slice(2, kv_starts[n], kv_length), exact_grads.key,
                        plain_grads.key, f32);
        add(dtable, exact_grads.captured[0]);
        add(dsinks, exact_grads.sinks);
        add(plain_dtable, plain_grads.captured[0]);
        add(plain_dsinks, plain_grads.sinks);
    }
    expect_accurate("dtable", grads.captured[0], dtable, plain_dtable, f32);
    expect_accurate("dsinks", grads.sinks, dsinks, plain_dsinks, f32);
    // Keys of a sequence without queries have no gradient.
    EXPECT_EQ(largest_error(to_array(grads.key.slice(2, 9, 11)), Array({1, 2, 11, 16})), 0);
}

TEST(AttentionMods, LargeCapturesTakeNoCopyPerProgram) {
    // Batches, and heads too, run one after the other if a copy for each would fill memory.
    const Capture bias = table({512, 2048}, 41);
    Case c{.name = "batches in turn",
           .options = {.score_mod = scores::bias(bias)},
           .batch = 3,
           .heads = 6,
           .kv_heads = 6,
           .length = 20,
           .kv_length = 30};
    check(c);
    c.name = "heads in turn";
    c.batch = 1;
    c.heads = c.kv_heads = 18;
    check(c);
}

TEST(AttentionMods, ScalarCapturesChangeWithoutCompiling) {
    Tensor factor = Tensor::scalar(f32, 1);
    const Capture scale = capture(factor);
    const Mod mod = [scale](auto s, auto, auto, auto, auto) { return s * scale; };
    const Tensor x = random_tensor(f32, {1, 1, 65, 16}, 1);
    const Array plain = to_array(attention(x, x, x).out);
    EXPECT_LE(largest_error(to_array(attention(x, x, x, {.score_mod = mod}).out), plain), 1e-6);
    factor.fill(2);
    const Array doubled = to_array(attention(x, x, x, {.scale = 0.5}).out);
    EXPECT_LE(largest_error(to_array(attention(x, x, x, {.score_mod = mod}).out), doubled), 1e-6);
}

TEST(AttentionMods, NaNPropagatesToItsRowAlone) {
    const Mod mod = [](auto s, auto, auto, auto q, auto) { return where(q == 3, NAN, s); };
    const Tensor x = random_tensor(f32, {1, 1, 70, 16}, 1);
    const std::vector<float> lse = attention(x, x, x, {.score_mod = mod}).lse.to_vector<float>();
    for (std::size_t q = 0; q < lse.size(); ++q) EXPECT_EQ(std::isnan(lse[q]), q == 3) << q;
}

TEST(AttentionMods, CheckedModeNamesTheIndexOutside) {
    const Capture table = capture(random_tensor(f32, {64}, 1), "table");
    const Tensor x = random_tensor(f32, {1, 1, 70, 16}, 1);
    const auto run = [&](const Mod& mod, bool causal) {
        const AttentionOptions options{.causal = causal, .score_mod = mod, .checked = true};
        const AttentionOutput out = attention(x, x, x, options);
        attention_backward(x, x, x, out, x, options);
    };
    try {
        run([table](auto s, auto, auto, auto q, auto) { return s + table[q]; }, false);
        ADD_FAILURE() << "an index outside passed";
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("capture `table`"));
    }
    // Pairs that do not attend may read out of bounds.
    const Capture distances = capture(random_tensor(f32, {70}, 1), "distances");
    run([distances](auto s, auto, auto, auto q, auto kv) { return s + distances[q - kv]; }, true);
}

TEST(AttentionMods, BadArgumentsAreErrors) {
    const Tensor x = random_tensor(f32, {1, 2, 8, 16}, 1);
    const auto error = [&](const AttentionOptions& options) {
        try {
            attention(x, x, x, options);
        } catch (const UserError& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    EXPECT_THAT(error({.score_mod = masks::causal()}), HasSubstr("score_mod"));
    EXPECT_THAT(error({.mask = scores::alibi(2)}), HasSubstr("mask"));
    EXPECT_THAT(error({.sinks = Tensor::zeros(f32, {3})}), HasSubstr("sinks of shape (2)"));
    EXPECT_THAT(error({.sinks = Tensor::zeros(i32, {2})}), HasSubstr("sinks of floats"));
    EXPECT_THAT(error({.dropout = 1}), HasSubstr("dropout in [0, 1)"));
    EXPECT_THAT(error({.dropout = NAN}), HasSubstr("dropout in [0, 1)"));
    const auto cu = [](std::vector<std::int32_t> values) {
        const auto n = static_cast<std::int64_t>(values.size());
        return Tensor::from_vector(values, {n});
    };
    EXPECT_THAT(error({.cu_seqlens = cu({0, 9})}), HasSubstr("cu_seqlens from 0 to the total"));
    EXPECT_THAT(error({.cu_seqlens = cu({0, 6, 5, 8})}), HasSubstr("never to decrease"));
    EXPECT_THAT(error({.cu_seqlens = cu({0, 8}), .kv_cu_seqlens = cu({0, 4, 8})}),
                HasSubstr("as many sequences"));
    EXPECT_THAT(error({.kv_cu_seqlens = cu({0, 8})}), HasSubstr("cu_seqlens with kv_cu_seqlens"));
}

}  // namespace
}  // namespace tilewright::attn
