// The score library against its formulas.
#include "tilewright/scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mod/evaluate.h"
#include "tests/support/accuracy.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright {
namespace {

using testing::random_tensor;
using testing::throws;

/// Compares the mod with a formula over a grid of positions, in f64.
template <typename Formula>
void expect_formula(const Mod& mod, double tolerance, Formula formula) {
    mod::Evaluator evaluator(mod::trace(mod, f64));
    for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 3; ++h)
            for (std::int64_t q = 0; q < 7; ++q)
                for (std::int64_t kv = 0; kv < 9; ++kv) {
                    const double s = 0.25 * static_cast<double>(q) - 0.7 * static_cast<double>(kv);
                    const double error =
                        std::abs(evaluator.score(s, b, h, q, kv) - formula(s, b, h, q, kv));
                    EXPECT_TRUE(error <= tolerance)
                        << mod.name() << " at " << b << h << q << kv << ": error " << error;
                }
}

// Integers are converted to f32 to combine with scores: one ULP of the largest term.
constexpr double kF32 = 1e-5;

TEST(Scores, Alibi) {
    expect_formula(scores::alibi(8), kF32, [](double s, auto, auto h, auto q, auto kv) {
        return s + std::exp2(-8.0 * static_cast<double>(h + 1) / 8) * static_cast<double>(kv - q);
    });
    const Tensor slopes = random_tensor(f32, {3}, 1);
    expect_formula(scores::alibi(capture(slopes)), kF32,
                   [&](double s, auto, auto h, auto q, auto kv) {
                       return s + slopes.get({h}) * static_cast<double>(kv - q);
                   });
}

TEST(Scores, SoftcapRelativePositionCheckerboard) {
    expect_formula(scores::softcap(2), 1e-15,
                   [](double s, auto, auto, auto, auto) { return 2 * std::tanh(s / 2); });
    expect_formula(scores::relative_position(), 0, [](double s, auto, auto, auto q, auto kv) {
        return s + static_cast<double>(q - kv);
    });
    expect_formula(scores::checkerboard(), 0, [](double s, auto, auto, auto q, auto kv) {
        return (kv - q) % 2 == 0 ? s : s * 0.5;
    });
}

TEST(Scores, BiasBroadcasts) {
    const Tensor full = random_tensor(f32, {2, 3, 7, 9}, 2);
    expect_formula(scores::bias(capture(full)), 0, [&](double s, auto b, auto h, auto q, auto kv) {
        return s + full.get({b, h, q, kv});
    });
    const Tensor heads = random_tensor(f32, {3, 1, 9}, 3);
    expect_formula(scores::bias(capture(heads)), 0, [&](double s, auto, auto h, auto, auto kv) {
        return s + heads.get({h, 0, kv});
    });
}

TEST(Scores, T5BucketsAreExactThenLogarithmic) {
    const Tensor table = random_tensor(f32, {8, 3}, 4);
    expect_formula(
        scores::t5(capture(table), true, 6), 0, [&](double s, auto, auto h, auto q, auto kv) {
            const std::int64_t distance = kv - q, n = std::abs(distance);
            std::int64_t bucket = n;
            if (n >= 2) {
                bucket = 2 + static_cast<std::int64_t>(std::log(static_cast<float>(n) / 2) /
                                                       std::log(3.0) * 2);
                bucket = std::min<std::int64_t>(bucket, 3);
            }
            return s + table.get({bucket + (distance > 0 ? 4 : 0), h});
        });
    expect_formula(scores::t5(capture(table), false, 5), 0,
                   [&](double s, auto, auto h, auto q, auto kv) {
                       const std::int64_t n = std::max<std::int64_t>(q - kv, 0);
                       const std::int64_t far =
                           4 + static_cast<std::int64_t>(
                                   std::log(static_cast<double>(std::max<std::int64_t>(n, 1)) / 4) /
                                   std::log(1.25) * 4);
                       return s + table.get({n < 4 ? n : std::min<std::int64_t>(far, 7), h});
                   });
}

TEST(Scores, Sandwich) {
    expect_formula(scores::sandwich(4, 16, 8), 1e-5, [](double s, auto, auto h, auto q, auto kv) {
        double sum = 0;
        for (int i = 0; i < 4; ++i) {
            sum +=
                std::cos(static_cast<double>(std::abs(q - kv)) * std::pow(10000.0, -2.0 * i / 8));
        }
        return s + sum * 4 / (8.0 * static_cast<double>(h + 1));
    });
    EXPECT_FALSE(scores::sandwich(4, 16).captures()[0].differentiable());
}

TEST(Scores, Graphormer) {
    const Tensor bias = random_tensor(f32, {3, 5}, 5);
    std::vector<std::int64_t> hops;
    for (std::int64_t i = 0; i < 2 * 7 * 9; ++i) hops.push_back(i * 7 % 5);
    const Tensor distance = Tensor::from_vector(hops, {2, 7, 9}, i32);
    expect_formula(scores::graphormer_spatial(capture(bias), capture(distance)), 0,
                   [&](double s, auto b, auto h, auto q, auto kv) {
                       return s + bias.get({h, distance.get_int({b, q, kv})});
                   });
    const Tensor edges = random_tensor(f32, {3, 2, 5}, 6);
    std::vector<std::int64_t> kinds, counts;
    for (std::int64_t i = 0; i < 2 * 7 * 9 * 2; ++i) kinds.push_back(i * 3 % 5);
    for (std::int64_t i = 0; i < 2 * 7 * 9; ++i) counts.push_back(i % 3);
    const Tensor types = Tensor::from_vector(kinds, {2, 7, 9, 2}, i32);
    const Tensor lengths = Tensor::from_vector(counts, {2, 7, 9}, i32);
    expect_formula(scores::graphormer_edge(capture(edges), capture(types), capture(lengths)), 1e-6,
                   [&](double s, auto b, auto h, auto q, auto kv) {
                       const std::int64_t length = lengths.get_int({b, q, kv});
                       double sum = 0;
                       for (std::int64_t n = 0; n < length; ++n) {
                           sum += edges.get({h, n, types.get_int({b, q, kv, n})});
                       }
                       return s + sum / static_cast<double>(std::max<std::int64_t>(length, 1));
                   });
}

TEST(Scores, ActivationAndRotaryPart) {
    expect_formula(scores::activation("relu", 1), 1e-15,
                   [](double s, auto, auto, auto, auto) { return std::log(std::max(s, 0.0) + 1); });
    const Tensor q_rope = random_tensor(f64, {2, 4, 7, 5}, 7);
    const Tensor k_rope = random_tensor(f64, {2, 2, 9, 5}, 8);
    expect_formula(scores::mla_rope(capture(q_rope), capture(k_rope), 0.5), 1e-14,
                   [&](double s, auto b, auto h, auto q, auto kv) {
                       double sum = 0;
                       for (std::int64_t d = 0; d < 5; ++d) {
                           sum += q_rope.get({b, h, q, d}) * k_rope.get({b, h / 2, kv, d});
                       }
                       return s + 0.5 * sum;
                   });
}

TEST(Scores, ComposedModsApplyInOrder) {
    expect_formula(compose(scores::softcap(2), scores::relative_position()), 1e-15,
                   [](double s, auto, auto, auto q, auto kv) {
                       return 2 * std::tanh((s + static_cast<double>(q - kv)) / 2);
                   });
}

TEST(Scores, BadArgumentsAreErrors) {
    const Capture ints = capture(Tensor::arange(i32, 3));
    EXPECT_THAT([&] { scores::alibi(0); }, throws("expected heads of at least 1 but got 0"));
    EXPECT_THAT([&] { scores::alibi(ints); },
                throws("expected slopes of rank 1 and floats but got i32"));
    EXPECT_THAT([&] { scores::softcap(0); }, throws("expected a positive finite cap but got 0"));
    EXPECT_THAT(
        [&] { scores::bias(ints); },
        throws("expected a table (q, kv), (h, q, kv) or (b, h, q, kv) of floats but got i32"));
    EXPECT_THAT(
        [&] {
            scores::t5(capture(Tensor::zeros(f32, {2, 3})), true);
        },
        throws("with fewer exact buckets than max_distance, 128, but got f32[2, 3]"));
    EXPECT_THAT([&] { scores::sandwich(2, 0); },
                throws("expected max_length of at least 1 but got 0"));
    EXPECT_THAT([&] { scores::graphormer_spatial(ints, ints); },
                throws("expected bias of rank 2 and floats but got i32"));
    EXPECT_THAT([&] { scores::activation("foo"); },
                throws("expected one of relu, sigmoid, softplus, exp, square but got `foo`"));
    EXPECT_THAT([&] { scores::mla_rope(ints, ints, 1); },
                throws("expected q_rope of rank 4 and floats but got i32"));
    EXPECT_THAT([&] { compose(Mod(), scores::softcap(1)); },
                throws("expected outer but it was left out"));
}

}  // namespace
}  // namespace tilewright
