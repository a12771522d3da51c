// Score mods of the Hopper backward kernels, and gradients of what they capture, on a Hopper GPU:
// against a dense computation in f64.
#include "tests/attention/sm90_programmable_backward.h"
#include "tilewright/scores.h"

namespace tilewright::attn::sm90 {
namespace {

TEST_F(Sm90ProgrammableBackwardGpu, ScoreMods) {
    for (std::int64_t dim : {64, 128, 256}) {
        const Problem p{.heads = 2,
                        .kv_heads = 1,
                        .q_len = 250,
                        .kv_len = 300,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        Dense dense;
        dense.score = [](double s, auto, auto h, auto q, auto kv) {
            return s + slope_of(h, 2) * static_cast<double>(kv - q);
        };
        check(p, dense, {.mod = scores::alibi(2), .deterministic = dim == 64});
        Problem listed = p;
        listed.causal = false;
        dense.attends = [](auto q, auto kv) { return kv <= q; };
        check(listed, dense, {.mod = scores::alibi(2), .listed = true, .deterministic = dim != 64});
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, ScoreModsThatAreNotAffine) {
    for (std::int64_t dim : {64, 128, 256}) {
        const Problem p{.heads = 2,
                        .kv_heads = 1,
                        .q_len = 250,
                        .kv_len = 300,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        Dense dense;
        dense.score = [](double s, auto, auto, auto, auto) { return 2 * std::tanh(s / 2); };
        dense.derivative = [](double s, auto, auto, auto, auto) {
            return 1 - std::tanh(s / 2) * std::tanh(s / 2);
        };
        check(p, dense, {.mod = scores::softcap(2)});
        check(p, dense, {.mod = scores::softcap(2, true)}, 2e-2);  // tanh.approx: 2^-11 of the cap
        // A derivative that is unbounded where the probability is 0.
        dense.score = [](double s, auto, auto, auto q, auto kv) {
            return kv >= q / 2 ? std::copysign(std::sqrt(std::abs(s)), s) : -kInfinity;
        };
        dense.derivative = [](double s, auto, auto, auto, auto) {
            return 0.5 / std::sqrt(std::abs(s));
        };
        const Mod roots([](auto s, auto, auto, auto q, auto kv) {
            const auto root = tilewright::sqrt(tilewright::abs(s));
            return tilewright::where(kv >= q / 2, tilewright::where(s < 0.0f, -root, root),
                                     -INFINITY);
        });
        check(p, dense, {.mod = roots});
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, GradientsOfCaptures) {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    constexpr std::int64_t kRows = 200, kColumns = 330;
    std::vector<float> values(2 * kRows * kColumns);
    for (float& value : values) value = normal(generator);
    const auto at = [&](std::int64_t i) {
        return static_cast<double>(values[static_cast<std::size_t>(i)]);
    };
    const auto capture_of = [&](std::vector<std::int64_t> shape) {
        std::int64_t size = 1;
        for (std::int64_t extent : shape) size *= extent;
        return capture(
            Tensor::from_vector(std::vector<float>(values.begin(), values.begin() + size), shape));
    };
    for (std::int64_t dim : {64, 128, 256}) {
        for (bool deterministic : {false, true}) {
            Problem p{.heads = 2,
                      .kv_heads = 1,
                      .q_len = kRows,
                      .kv_len = kColumns,
                      .dim = dim,
                      .value_dim = dim};
            ProgramOptions options{.deterministic = deterministic};
            Dense dense;
            const auto run = [&](const Mod& mod, std::size_t size, auto index, auto weight) {
                std::vector<double> expected(size, 0.0);
                options.mod = mod;
                check_captured(p, dense, options, expected,
                               [&](double grad, double score, auto, auto h, auto q, auto kv) {
                                   expected[static_cast<std::size_t>(index(h, q, kv))] +=
                                       grad * weight(score, q, kv);
                               });
            };
            const auto one = [](double, auto, auto) { return 1.0; };
            // Slopes per head, of two batches.
            p.batch = 2;
            dense.score = [&](double s, auto, auto h, auto q, auto kv) {
                return s + at(h) * 0.01 * static_cast<double>(kv - q);
            };
            const Capture slopes = capture_of({2});
            run(
                Mod([=](auto s, auto, auto h, auto q, auto kv) {
                    return s + slopes[h] * 0.01f * cast(kv - q, f32);
                }),
                2, [](auto h, auto, auto) { return h; },
                [](double, auto q, auto kv) { return 0.01 * static_cast<double>(kv - q); });
            // A bias per head and key, of two batches.
            dense.score = [&](double s, auto, auto h, auto, auto kv) {
                return s + at(h * kColumns + kv);
            };
            const Capture columns = capture_of({2, kColumns});
            run(
                Mod([=](auto s, auto, auto h, auto, auto kv) { return s + columns(h, kv); }),
                2 * kColumns, [](auto h, auto, auto kv) { return h * kColumns + kv; }, one);
            p.batch = 1;
            // A bias per pair.
            dense.score = [&](double s, auto, auto h, auto q, auto kv) {
                return s + at((h * kRows + q) * kColumns + kv);
            };
            const Capture wide = capture_of({2, kRows, kColumns});
            run(
                Mod([=](auto s, auto, auto h, auto q, auto kv) { return s + wide(h, q, kv); }),
                values.size(),
                [](auto h, auto q, auto kv) { return (h * kRows + q) * kColumns + kv; }, one);
            if (deterministic) continue;
            // A factor per query, and a bias by distance.
            dense.score = [&](double s, auto, auto, auto q, auto) { return s * (1 + at(q)); };
            dense.derivative = [&](double, auto, auto, auto q, auto) { return 1 + at(q); };
            const Capture rows = capture_of({kRows});
            run(
                Mod([=](auto s, auto, auto, auto q, auto) { return s * (1.0f + rows[q]); }), kRows,
                [](auto, auto q, auto) { return q; }, [](double s, auto, auto) { return s; });
            dense = Dense{};
            const auto place = [](std::int64_t index) {  // negative ones count from the end
                return std::clamp<std::int64_t>(index < 0 ? index + 400 : index, 0, 399);
            };
            dense.score = [&](double s, auto, auto, auto q, auto kv) {
                return s + at(place(q - kv + 300));
            };
            const Capture distances = capture_of({400});
            run(
                Mod([=](auto s, auto, auto, auto q, auto kv) {
                    return s + distances[q - kv + 300];
                }),
                400, [&](auto, auto q, auto kv) { return place(q - kv + 300); }, one);
        }
    }
}

// A number per sequence and head, a bias per head and key, a factor per query; batches of mods are
// sequences.
TEST_F(Sm90ProgrammableBackwardGpu, GradientsOfCapturesOfPackedSequences) {
    const PackedRows rows;
    std::mt19937 generator(6);
    std::normal_distribution<float> normal;
    std::vector<float> values(4 * 400);
    for (float& value : values) value = normal(generator);
    const auto at = [&](std::int64_t i) {
        return static_cast<double>(values[static_cast<std::size_t>(i)]);
    };
    const auto array = [&](std::int64_t size, std::vector<std::int64_t> shape) {
        return capture(
            Tensor::from_vector(std::vector<float>(values.begin(), values.begin() + size), shape));
    };
    for (std::int64_t dim : {64, 128, 256}) {
        for (bool deterministic : {false, true}) {
            const Problem p = rows.problem(dim);
            ProgramOptions options{.deterministic = deterministic};
            Dense dense;
            dense.attends = [&](auto q, auto kv) { return rows.together(q, kv); };
            const auto run = [&](const Mod& mod, std::size_t size, auto index, auto weight) {
                std::vector<double> expected(size, 0.0);
                options.mod = mod;
                check_captured(
                    p, dense, options, expected,
                    [&](double grad, double score, auto, auto h, auto q, auto kv) {
                        expected[static_cast<std::size_t>(index(h, q, kv))] +=
                            grad * weight(score, q, kv);
                    },
                    [&](Programmed& problem) { rows.apply(problem); });
            };
            const auto distance = [&](std::int64_t q, std::int64_t kv) {
                return 0.01 * static_cast<double>(rows.key(kv) - rows.query(q));
            };
            const auto sequence = [&](std::int64_t q) {
                return static_cast<std::int64_t>(rows.of_query(q));
            };
            dense.score = [&](double s, auto, auto h, auto q, auto kv) {
                return s + at(sequence(q) * 4 + h) * distance(q, kv);
            };
            const Capture slopes = array(20, {5, 4});
            run(
                Mod([=](auto s, auto b, auto h, auto q, auto kv) {
                    return s + slopes(b, h) * 0.01f * cast(kv - q, f32);
                }),
                20, [&](auto h, auto q, auto) { return sequence(q) * 4 + h; },
                [&](double, auto q, auto kv) { return distance(q, kv); });
            dense.score = [&](double s, auto, auto h, auto, auto kv) {
                return s + at(h * 400 + rows.key(kv));
            };
            const Capture columns = array(1600, {4, 400});
            run(
                Mod([=](auto s, auto, auto h, auto, auto kv) { return s + columns(h, kv); }), 1600,
                [&](auto h, auto, auto kv) { return h * 400 + rows.key(kv); },
                [](double, auto, auto) { return 1.0; });
            if (deterministic) continue;
            dense.score = [&](double s, auto, auto, auto q, auto) {
                return s * (1 + at(rows.query(q)));
            };
            dense.derivative = [&](double, auto, auto, auto q, auto) {
                return 1 + at(rows.query(q));
            };
            const Capture factors = array(400, {400});
            run(
                Mod([=](auto s, auto, auto, auto q, auto) { return s * (1.0f + factors[q]); }), 400,
                [&](auto, auto q, auto) { return rows.query(q); },
                [](double s, auto, auto) { return s; });
        }
    }
}

TEST(Sm90ProgrammableBackward, RefusesSumsWithoutAnOrderByName) {
    const Capture table = capture(Tensor::zeros(f32, {64}));
    const Mod mod([=](auto s, auto, auto, auto q, auto kv) { return s + table[q - kv]; });
    const mod::Traced& traced = mod::trace(mod);
    BackwardInputs inputs;
    static_cast<ProblemInputs&>(inputs) = inputs_of({.q_len = 100, .kv_len = 100});
    inputs.grad_query = inputs.query;
    inputs.grad_key = inputs.key;
    inputs.grad_value = inputs.value;
    inputs.grad_out = inputs.out;
    inputs.score_mod = traced.function;
    inputs.captures = views_of(traced.captures, {1 << 20});
    EXPECT_NO_THROW(check_backward(inputs));
    inputs.grad_captures = {1 << 20};
    try {
        check_backward(inputs);
        FAIL() << "accepted";
    } catch (const UserError& error) {
        EXPECT_STREQ(error.what(),
                     "[attention (sm90)] deterministic: expected gradients of captures that add up "
                     "in one order, but capture 0 of the score mod is read by pairs that meet");
    }
    inputs.deterministic = false;
    EXPECT_NO_THROW(check_backward(inputs));
}

}  // namespace
}  // namespace tilewright::attn::sm90
