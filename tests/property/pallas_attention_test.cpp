// The Pallas form of attention in examples/pallas_attention.h: random lengths and blocks against
// the dense computation, and refusals.
#include "examples/pallas_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/run/support.h"

namespace examples {
namespace {

using testing::HasSubstr;

struct Problem {
    tw::Tensor q, k, v, dout, segment_ids;

    Problem(std::int64_t length, std::int64_t kv_length, tw::DType dtype) {
        const auto random = [&](std::int64_t rows, std::uint32_t seed) {
            return random_tensor({2, rows, 2, 5}, seed).to(dtype);
        };
        q = random(length, 1), k = random(kv_length, 2), v = random(kv_length, 3);
        dout = random(length, 4);
    }
};

/// The largest difference from the dense output and gradients; infinity for any NaN.
double largest_difference(const Problem& x, const MhaOptions& o) {
    const auto [out, lse] = mha_forward(x.q, x.k, x.v, x.segment_ids, o);
    const auto [dq, dk, dv] = mha_backward(x.q, x.k, x.v, x.segment_ids, out, lse, x.dout, o);
    const DenseMha dense(x.q, x.k, x.v, x.segment_ids, o);
    const DenseMhaGradients gradients(dense, x.q, x.k, x.v, x.dout, o);
    double worst = 0;
    const auto compare = [&](const tw::Tensor& ours, const std::vector<double>& expected) {
        const std::vector<double> values = ours.to_vector<double>();
        ASSERT_EQ(values.size(), expected.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double error = std::abs(values[i] - expected[i]);
            if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
    };
    compare(out, dense.out);
    compare(dq, gradients.dq);
    compare(dk, gradients.dk);
    compare(dv, gradients.dv);
    return worst;
}

TEST(PallasAttention, EveryLengthWithOddBlocks) {
    std::mt19937 random(7);
    const auto below = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
    };
    for (std::int64_t length = 1; length <= 40; ++length) {
        for (const tw::DType dtype : {tw::f32, tw::f64, tw::f32, tw::f64}) {
            const std::int64_t kv_length = below(2) == 0 ? length : 1 + below(40);
            Problem problem(length, kv_length, dtype);
            if (kv_length == length && below(2) == 0) {
                problem.segment_ids = tw::Tensor::empty(tw::i32, {2, length});
                for (std::int64_t i = 0; i < 2 * length; ++i)
                    problem.segment_ids.set({i / length, i % length},
                                            static_cast<double>(below(3)));
            }
            const MhaOptions o{.sm_scale = 0.5,
                               .causal = below(2) == 0,
                               .block_q = 1 + 2 * below(11),
                               .block_k = 1 + 2 * below(11),
                               .interpret = below(2) == 0};
            EXPECT_LE(largest_difference(problem, o), dtype == tw::f64 ? 1e-13 : 3e-5)
                << length << " x " << kv_length << ", blocks " << o.block_q << " x " << o.block_k
                << (o.causal ? " causal" : "") << (o.interpret ? " checked " : " ")
                << tw::name(dtype);
        }
    }
}

TEST(PallasAttention, MoreBlocksOfOneSideThanOfTheOtherInTheCheckedMode) {
    const Problem problem(19, 19, tw::f32);
    for (const auto& [block_q, block_k] : {std::pair(8, 16), {16, 8}, {19, 1}, {1, 19}})
        for (const bool causal : {false, true}) {
            const MhaOptions o{
                .causal = causal, .block_q = block_q, .block_k = block_k, .interpret = true};
            EXPECT_LE(largest_difference(problem, o), 3e-5) << block_q << " x " << block_k;
        }
}

TEST(PallasAttention, SixteenBitArrays) {
    for (const tw::DType dtype : {tw::bf16, tw::f16})
        EXPECT_LE(largest_difference(Problem(21, 34, dtype), {.block_q = 8, .block_k = 16}), 0.03);
}

TEST(PallasAttention, NoQueriesGiveKeysNoGradient) {
    const Problem problem(0, 7, tw::f32);
    EXPECT_EQ(largest_difference(problem, {.block_k = 3}), 0);
}

TEST(PallasAttention, RefusesWhatDoesNotFit) {
    const auto expect_error = [](const std::function<void(Problem&, MhaOptions&)>& change,
                                 const char* message) {
        Problem x(9, 9, tw::f32);
        x.segment_ids = tw::Tensor::zeros(tw::i32, {2, 9});
        MhaOptions o;
        change(x, o);
        EXPECT_THAT(tw::error_of([&] { mha_forward(x.q, x.k, x.v, x.segment_ids, o); }),
                    HasSubstr(message));
        const tw::Tensor lse = tw::Tensor::zeros(tw::f32, {2, 2, 9});
        EXPECT_THAT(tw::error_of([&] {
                        mha_backward(x.q, x.k, x.v, x.segment_ids, x.dout, lse, x.dout, o);
                    }),
                    HasSubstr(message));
    };
    const auto zeros = [](tw::DType dtype, std::vector<std::int64_t> shape) {
        return tw::Tensor::zeros(dtype, std::move(shape));
    };
    expect_error([](Problem& x, MhaOptions&) { x.q = {}; },
                 "expected q of type f32[any, any, any, any] but got nothing");
    expect_error([&](Problem& x, MhaOptions&) { x.q = zeros(tw::f32, {9, 5}); }, "expected q");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.q = zeros(tw::i32, {2, 9, 2, 5});
        },
        "expected q");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.k = zeros(tw::f32, {2, 9, 1, 5});
        },
        "expected k of type f32[2, any, 2, 5] but got f32[2, 9, 1, 5]");
    expect_error([&](Problem& x, MhaOptions&) { x.k = x.k.to(tw::f64); }, "expected k");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.k = x.v = zeros(tw::f32, {2, 0, 2, 5});
        },
        "expected k of one key or more");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.v = zeros(tw::f32, {2, 8, 2, 5});
        },
        "expected v of type f32[2, 9, 2, 5] but got f32[2, 8, 2, 5]");
    expect_error([&](Problem& x, MhaOptions&) { x.v = x.v.to(tw::bf16); }, "expected v");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.k = x.v = zeros(tw::f32, {2, 8, 2, 5});
        },
        "expected k with segment_ids");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.segment_ids = zeros(tw::i32, {2, 8});
        },
        "expected segment_ids of type i32[2, 9] but got i32[2, 8]");
    expect_error(
        [&](Problem& x, MhaOptions&) {
            x.segment_ids = zeros(tw::f32, {2, 9});
        },
        "expected segment_ids");
    expect_error([](Problem&, MhaOptions& o) { o.block_q = 0; },
                 "expected block_q of at least 1 but got 0");
    expect_error([](Problem&, MhaOptions& o) { o.block_k = -3; }, "expected block_k");
}

}  // namespace
}  // namespace examples
