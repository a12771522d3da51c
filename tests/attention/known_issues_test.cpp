// Issues known from other libraries' programmable attention do not occur here: values, gradients.
#include "tests/attention/known_issues.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "tests/support/accuracy.h"
#include "tilewright/error.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"
#include "tilewright/system.h"

namespace tilewright::known_issues {
namespace {

using attn::table;
using testing::random_tensor;

TEST(KnownIssues, GradientsOfLengthsThatFitNoBlockAreFinite) {
    const Tensor q = random_tensor(f32, {1, 1, 129, 24}, 1),
                 k = random_tensor(f32, {1, 1, 67, 24}, 2);
    const AttentionOptions options{.mask = masks::sliding_window(3),
                                   .score_mod = scores::activation("softplus")};
    const AttentionOutput out = attention(q, k, k, options);
    const AttentionGradients g = attention_backward(q, k, k, out, q, options);
    for (const Tensor& x : {out.out, g.query, g.key, g.value})
        for (float value : values(x)) ASSERT_TRUE(std::isfinite(value));
}

TEST(KnownIssues, ResultsDoNotDependOnTheBatchAround) {
    const Tensor x = random_tensor(f32, {3, 2, 100, 16}, 1);
    const AttentionOptions options{.causal = true, .score_mod = scores::softcap(5)};
    const Tensor all = attention(x, x, x, options).out;
    for (std::int64_t b = 0; b < 3; ++b) {
        const Tensor one = x.slice(0, b, 1);
        EXPECT_EQ(values(attention(one, one, one, options).out), values(all.slice(0, b, 1))) << b;
    }
}

TEST(KnownIssues, ManyGathersOfOneLearnedTableHaveOneGradient) {
    const Capture table = capture(Tensor::full(f32, {2, 9}, 0.5));
    const Mod mod = [table](auto s, auto, auto h, auto q, auto kv) {
        return s + table(h, q % 3) * table(h, kv % 9) + table(0, 0);
    };
    const Tensor x = random_tensor(f32, {1, 2, 20, 8}, 1);
    const AttentionOptions options{.score_mod = mod};
    const AttentionOutput out = attention(x, x, x, options);
    const AttentionGradients g = attention_backward(x, x, x, out, x, options);
    ASSERT_EQ(g.captured.size(), 1U);
    // Against a finite difference in one element.
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

TEST(KnownIssues, DecodeOfGroupsThatAreNoPowerOfTwo) {
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

TEST(KnownIssues, MemoryDoesNotGrowWithTheSquareOfTheLength) {
    // A dense mask of this length would take 2 GiB.
    const Tensor x = Tensor::zeros(f32, {1, 1, 46500, 8});
    const AttentionOptions options{.mask = masks::causal() & masks::sliding_window(64)};
    const AttentionOutput out = attention(x, x, x, options);
    EXPECT_NEAR(out.lse.get({0, 0, 46499}), std::log(65.0), 1e-5);
}

TEST(KnownIssues, NewLengthsCompileNothing) {
    const Capture slopes = table({16}, 1), lengths = capture(Tensor::full(i32, {4}, 500));
    const auto run = [&](std::int64_t batch, std::int64_t length) {
        const Tensor x = random_tensor(f32, {batch, 16, length, 4}, 1);
        AttentionOptions options{.mask = masks::prefix_lm(lengths),
                                 .score_mod = [slopes](auto s, auto, auto h, auto q, auto kv) {
                                     return s + slopes[h] * tanh((kv - q) * 0.01);
                                 }};
        // Without a hint, the call's size chooses among three block sizes.
        options.forward_blocks = {.q = 64, .kv = 64};
        // Everything that is compiled goes through passes, which are logged.
        ::setenv("TILEWRIGHT_DEBUG_PASSES", "1", 1);
        ::testing::internal::CaptureStderr();
        const AttentionOutput out = attention(x, x, x, options);
        attention_backward(x, x, x, out, x, options);
        ::unsetenv("TILEWRIGHT_DEBUG_PASSES");
        return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_FALSE(run(1, 513).empty());
    for (const auto& [batch, length] :
         {std::pair{1, 600}, {2, 530}, {3, 515}, {3, 750}, {1, 1100}}) {
        EXPECT_TRUE(run(batch, length).empty()) << batch << " x " << length;
    }
}

TEST(KnownIssues, ManyModsOfOneCallAreAllComputed) {
    for (int n = 0; n < 20; ++n) {
        SCOPED_TRACE(n);
        expect_definition({.length = 40, .kv_length = 40, .dim = 8},
                          {.score_mod = [n](auto s, auto, auto, auto, auto kv) {
                              return s + 0.125 * n * (kv % 3);
                          }});
    }
}

TEST(KnownIssues, BothModsHaveTheRightGradientsForLengthsThatFitNoBlock) {
    const Capture slopes = table({2}, 5);
    const Mod by_distance = [slopes](auto s, auto, auto h, auto q, auto kv) {
        return s + slopes[h] * tanh((kv - q) * 0.1);
    };
    const AttentionOptions options{.mask = masks::causal() & masks::sliding_window(50),
                                   .score_mod = compose(scores::softcap(2), by_distance)};
    for (const auto& [length, kv_length] : {std::pair{129, 129}, {200, 67}, {31, 300}}) {
        SCOPED_TRACE(length);
        expect_definition({.heads = 2, .kv_heads = 2, .length = length, .kv_length = kv_length},
                          options);
    }
    SCOPED_TRACE("mask as data");
    expect_definition({.heads = 2, .length = 525, .kv_length = 525, .dim = 8}, options);
}

TEST(KnownIssues, ModsThatReadTheBatchAreRightForEveryShape) {
    const Capture lengths = capture(Tensor::from_vector(std::vector{9, 60, 33}, {3}));
    const Capture factors = table({3, 2}, 5);
    const AttentionOptions options{
        .mask = [lengths](auto b, auto, auto, auto kv) { return kv < lengths[b]; },
        .score_mod = [factors](auto s, auto b, auto h, auto,
                               auto kv) { return s + factors(b, h) * tanh(kv * 0.1); }};
    for (const auto& [batch, length] : {std::pair{1, 61}, {3, 61}, {2, 130}, {3, 7}}) {
        SCOPED_TRACE(length);
        expect_definition(
            {.batch = batch, .heads = 2, .kv_heads = 2, .length = length, .kv_length = length},
            options);
    }
}

TEST(KnownIssues, BatchesFarApartInMemoryHaveTheirOwnGradients) {
    constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;  // elements: beyond i32
    constexpr std::int64_t kRows = 70, kDim = 8, kBlock = kRows * kDim;
    constexpr std::size_t kBytes = (kStride + 7 * kBlock) * sizeof(float);
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "NOT RUN: no address space of 8 GiB";
    const std::shared_ptr<void> owner(memory, [=](void* at) { ::munmap(at, kBytes); });
    const auto far = [&](int n) {
        return Tensor::from_data(static_cast<float*>(memory) + n * kBlock, f32, {2, 1, kRows, kDim},
                                 {kStride, kBlock, kDim, 1}, owner);
    };
    const AttentionOptions options{.causal = true, .score_mod = scores::softcap(2)};
    std::vector<Tensor> near, inputs;
    for (int n = 0; n < 4; ++n) {
        near.push_back(random_tensor(f32, {2, 1, kRows, kDim}, 1 + static_cast<unsigned>(n)));
        inputs.push_back(far(n));
        inputs.back().copy_from(near.back());
    }
    const AttentionOutput expected = attention(near[0], near[1], near[2], options),
                          ours = attention(inputs[0], inputs[1], inputs[2], options);
    EXPECT_EQ(values(ours.out), values(expected.out));
    const AttentionGradients want =
        attention_backward(near[0], near[1], near[2], expected, near[3], options);
    AttentionGradients g{far(4), far(5), far(6), {}, {}};
    attention_backward_into(g, inputs[0], inputs[1], inputs[2], ours, inputs[3], options);
    EXPECT_EQ(values(g.query), values(want.query));
    EXPECT_EQ(values(g.key), values(want.key));
    EXPECT_EQ(values(g.value), values(want.value));
}

TEST(KnownIssues, AFewQueriesOverAVeryLongCache) {
    const std::int64_t n = 300000;
    const Tensor q = Tensor::zeros(f32, {1, 2, 3, 8}), dout = Tensor::full(f32, {1, 2, 3, 8}, 1);
    const Tensor kv = Tensor::full(f32, {1, 1, n, 8}, 2);
    const AttentionOptions options{
        .mask = [n](auto, auto, auto i, auto j) { return j < n - 100000 * i; }};
    const AttentionOutput out = attention(q, kv, kv, options);
    const AttentionGradients g = attention_backward(q, kv, kv, out, dout, options);
    double share = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
        const auto keys = static_cast<double>(n - 100000 * i);
        EXPECT_NEAR(out.lse.get({0, 1, i}), std::log(keys), 1e-5);
        EXPECT_NEAR(out.out.get({0, 1, i, 7}), 2, 1e-5);
        share += 2 / keys;
    }
    EXPECT_NEAR(g.value.get({0, 0, 0, 0}), share, 1e-9);
    EXPECT_NEAR(g.value.get({0, 0, n - 1, 0}), 2.0 / static_cast<double>(n), 1e-9);
}

TEST(KnownIssues, NarrowTypesKeepTheAccuracyOfTheirRounding) {
    for (const DType dtype : {bf16, f16}) {
        expect_definition(
            {.heads = 2, .length = 65, .kv_length = 1500, .dtype = dtype},
            {.mask = masks::dilated_window(1400, 3), .score_mod = scores::softcap(3)});
    }
}

TEST(KnownIssues, LearnedBiasesHaveTheGradientsOfTheDenseDefinition) {
    const Shape shape{.batch = 2, .heads = 3, .kv_heads = 3, .length = 75, .kv_length = 90};
    const Capture t5 = table({32, 3}, 5), pair = table({1, 3, 75, 90}, 6),
                  row = table({2, 1, 1, 90}, 7), relative = table({3, 200}, 8);
    const auto both = [](const Capture& a, const Capture& b) {
        return compose(scores::bias(a), scores::bias(b));
    };
    const std::pair<const char*, Mod> mods[] = {
        {"T5", scores::t5(t5)},
        {"T5 of one direction", scores::t5(t5, false, 40)},
        {"pairs, and a row for each batch", both(pair, row)},
        {"distances", [relative](auto s, auto, auto h, auto q,
                                 auto kv) { return s + relative(h, q - kv + 100); }},
    };
    for (const auto& [name, mod] : mods) {
        SCOPED_TRACE(name);
        expect_definition(shape, {.score_mod = mod});
        expect_definition(shape, {.mask = masks::sliding_window(20), .score_mod = mod});
    }
}

TEST(KnownIssues, RunsRepeatToTheBitWithAnyNumberOfThreads) {
    const Capture bias = table({30}, 5);
    const Tensor x = random_tensor(f32, {1, 3, 300, 16}, 1);
    const AttentionOptions options{.score_mod = [bias](auto s, auto, auto, auto q, auto kv) {
        return s + bias[abs(q - kv) % 30];
    }};
    const auto bits = [&](int threads) {
        set_num_threads(threads);
        const AttentionOutput out = attention(x, x, x, options);
        const AttentionGradients g = attention_backward(x, x, x, out, x, options);
        set_num_threads(0);
        return std::vector{values(out.out), values(g.query), values(g.key), values(g.value),
                           values(g.captured.at(0))};
    };
    const auto first = bits(1);
    for (const int threads : {1, 2, 3, 4, 4, 4}) EXPECT_EQ(bits(threads), first) << threads;
}

TEST(KnownIssues, HeadDimension72AndLength521AreComputedAsTheyAre) {
    expect_definition({.length = 521, .kv_length = 521, .dim = 72}, {.causal = true});
}

TEST(KnownIssues, HeadDimensionsAbove128HaveGradients) {
    for (const std::int64_t dim : {192, 256}) {
        expect_definition({.length = 70, .kv_length = 90, .dim = dim},
                          {.mask = masks::causal(), .score_mod = scores::softcap(2)});
    }
}

TEST(KnownIssues, DropoutDropsAFixedShareOfPairs) {
    // With equal scores and values of 1, a row's result is the kept fraction, scaled.
    const Tensor x = Tensor::zeros(f32, {1, 1, 512, 8}),
                 ones = Tensor::full(f32, {1, 1, 512, 8}, 1);
    const AttentionOptions options{.dropout = 0.25, .seed = 3};
    const AttentionOutput out = attention(x, x, ones, options);
    double mean = 0;
    for (const float value : values(out.out)) mean += value / (512.0 * 8);
    // For 2^18 pairs one standard deviation is 0.0011.
    EXPECT_NEAR(mean, 1, 0.006);
    const AttentionGradients g = attention_backward(x, x, ones, out, ones, options);
    double sum = 0;
    for (const float value : values(g.value)) sum += value / (512.0 * 8);
    EXPECT_NEAR(sum, mean, 1e-6);
}

TEST(KnownIssues, SinksAreTheirEmulationByLse) {
    const Tensor q = random_tensor(f32, {2, 4, 50, 16}, 1),
                 k = random_tensor(f32, {2, 2, 80, 16}, 2),
                 dout = random_tensor(f32, {2, 4, 50, 16}, 3), sinks = random_tensor(f32, {4}, 4);
    const AttentionOptions with{.sinks = sinks};
    const AttentionOutput a = attention(q, k, k, with), b = attention(q, k, k);
    // out * sigmoid(lse - sink); the sink affects lse too.
    const Tensor scaled = dout.clone(), dlse = Tensor::zeros(f32, {2, 4, 50});
    std::vector<double> dsinks(4, 0.0);
    for (std::int64_t n = 0; n < 2 * 4 * 50; ++n) {
        const std::int64_t h = n / 50 % 4;
        const double sink = sinks.get({h}), lse = b.lse.data<float>()[n],
                     share = 1 / (1 + std::exp(sink - lse));
        ASSERT_NEAR(a.lse.data<float>()[n], std::log(std::exp(lse) + std::exp(sink)), 1e-5);
        double dot = 0;
        for (std::int64_t i = n * 16; i < (n + 1) * 16; ++i) {
            const double out = b.out.data<float>()[i], d = dout.data<float>()[i];
            ASSERT_NEAR(a.out.data<float>()[i], out * share, 1e-6);
            dot += out * d;
            scaled.data<float>()[i] = static_cast<float>(d * share);
        }
        dlse.data<float>()[n] = static_cast<float>(dot * share * (1 - share));
        dsinks[static_cast<std::size_t>(h)] -= dot * share * (1 - share);
    }
    const AttentionGradients ga = attention_backward(q, k, k, a, dout, with),
                             gb = attention_backward(q, k, k, b, scaled, {}, dlse);
    expect_near(ga.query, gb.query, 1e-5);
    expect_near(ga.key, gb.key, 1e-5);
    expect_near(ga.value, gb.value, 1e-5);
    for (std::int64_t h = 0; h < 4; ++h)
        EXPECT_NEAR(ga.sinks.get({h}), dsinks[static_cast<std::size_t>(h)], 1e-4);
}

TEST(KnownIssues, RotaryScoresInTheModEqualALargerHeadDimension) {
    const Tensor q = random_tensor(f32, {2, 4, 50, 24}, 1),
                 k = random_tensor(f32, {2, 1, 70, 24}, 2),
                 v = random_tensor(f32, {2, 1, 70, 16}, 3);
    const auto part = [](const Tensor& x, std::int64_t first, std::int64_t count) {
        return x.slice(3, first, count).clone();
    };
    const double scale = 0.2;
    const AttentionOptions wide{.scale = scale, .causal = true},
        split{
            .scale = scale,
            .causal = true,
            .score_mod = scores::mla_rope(capture(part(q, 16, 8)), capture(part(k, 16, 8)), scale)};
    const AttentionOutput a = attention(q, k, v, wide),
                          b = attention(part(q, 0, 16), part(k, 0, 16), v, split);
    expect_near(b.out, a.out, 1e-6);
    const Tensor dout = random_tensor(f32, {2, 4, 50, 16}, 4);
    const AttentionGradients ga = attention_backward(q, k, v, a, dout, wide),
                             gb = attention_backward(part(q, 0, 16), part(k, 0, 16), v, b, dout,
                                                     split);
    expect_near(gb.query, part(ga.query, 0, 16), 1e-5);
    ASSERT_EQ(gb.captured.size(), 2U);
    expect_near(gb.captured[0], part(ga.query, 16, 8), 1e-5);
    expect_near(gb.captured[1], part(ga.key, 16, 8), 1e-5);
}

TEST(KnownIssues, SplitKeysCombineByTheirLse) {
    const Tensor x = random_tensor(f32, {1, 2, 300, 16}, 1),
                 dout = random_tensor(f32, {1, 2, 300, 16}, 2);
    const BlockMask mask = create_block_mask(masks::causal(), 1, 1, 300, 300);
    const AttentionOptions options{.block_mask = mask};
    const AttentionOutput whole = attention(x, x, x, options);
    const AttentionGradients all = attention_backward(x, x, x, whole, dout, options);
    // The gradients of a part are computed from the output and lse of the whole.
    std::vector<double> joined(static_cast<std::size_t>(x.size()), 0.0), dq = joined;
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 110}, {110, 190}}) {
        const Tensor kv = x.slice(2, first, count);
        const AttentionOptions own{.block_mask = mask.shifted(0, first, 300, count)};
        const AttentionOutput part = attention(x, kv, kv, own);
        const AttentionGradients g = attention_backward(x, kv, kv, whole, dout, own);
        for (std::size_t i = 0; i < joined.size(); ++i) {
            const double share = std::exp(double{part.lse.data<float>()[i / 16]} -
                                          double{whole.lse.data<float>()[i / 16]});
            joined[i] += share * part.out.data<float>()[i];
            dq[i] += g.query.data<float>()[i];
        }
        expect_near(g.key, all.key.slice(2, first, count), 1e-5);
        expect_near(g.value, all.value.slice(2, first, count), 1e-5);
    }
    expect_near(Tensor::from_vector(joined, x.shape(), f32), whole.out, 1e-5);
    expect_near(Tensor::from_vector(dq, x.shape(), f32), all.query, 1e-5);
}

TEST(KnownIssues, EightBitInputsAreRefusedByName) {
    const Tensor x = Tensor::zeros(f8e4m3, {1, 1, 8, 16});
    EXPECT_THAT([&] { attention(x, x, x); },
                ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(
                    "expected query of f32, f64, f16 or bf16 but got f8e4m3")));
}

}  // namespace
}  // namespace tilewright::known_issues
