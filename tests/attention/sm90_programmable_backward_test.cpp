// Masks as data, segments, packed sequences, sinks, dropout and score mods of the Hopper backward
// kernels on a Hopper GPU: gradients against a dense computation in f64.
#include <gtest/gtest.h>

#include <array>

#include "attention/sm90/backward.h"
#include "tests/attention/sm90_programmable.h"
#include "tilewright/scores.h"

namespace tilewright::attn::sm90 {
namespace {

// P, dS and the result are each rounded to 8 bits, and delta comes from an out that was.
constexpr double kTolerance = 1.0 / 128;

struct DenseGradients {
    Array query, key, value;
    std::vector<double> sinks;
};

/// Adds dL/d(new score) of a pair, whose old score is given, to gradients of captured arrays.
using Capturing = std::function<void(double grad, double score, std::int64_t b, std::int64_t h,
                                     std::int64_t q, std::int64_t kv)>;

DenseGradients dense_gradients(const Problem& p, const Dense& dense, const Array& q, const Array& k,
                               const Array& v, const Array& dout, const Capturing& captured = {}) {
    const double scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<double>(p.dim));
    const std::int64_t group = p.heads / p.kv_heads;
    const auto dim = static_cast<std::size_t>(p.dim),
               value_dim = static_cast<std::size_t>(p.value_dim);
    DenseGradients result{Array({p.batch, p.heads, p.q_len, p.dim}, 0.0),
                          Array({p.batch, p.kv_heads, p.kv_len, p.dim}, 0.0),
                          Array({p.batch, p.kv_heads, p.kv_len, p.value_dim}, 0.0),
                          std::vector<double>(dense.sinks.size(), 0.0)};
    const auto keys = static_cast<std::size_t>(p.kv_len);
    std::vector<double> old(keys), share(keys), grad(keys);
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t h = 0; h < p.heads; ++h) {
            for (std::int64_t i = 0; i < p.q_len; ++i) {
                double top = -kInfinity;
                for (std::size_t j = 0; j < keys; ++j) {
                    const auto kv = static_cast<std::int64_t>(j);
                    double sum = 0;
                    for (std::size_t d = 0; d < dim; ++d) {
                        sum += q.row(b, h, i)[d] * k.row(b, h / group, kv)[d];
                    }
                    old[j] = sum * scale;
                    const bool alive = dense.alive(h, i, kv) && (!p.causal || kv <= i);
                    share[j] = alive ? dense.score(old[j], b, h, i, kv) : -kInfinity;
                    top = std::max(top, share[j]);
                }
                const double sink =
                    dense.sinks.empty() ? -kInfinity : dense.sinks[static_cast<std::size_t>(h)];
                const double base = std::max(top, sink);
                if (base == -kInfinity) continue;
                double total = std::exp(sink - base);
                for (double& x : share) total += x = std::exp(x - base);
                double delta = 0;
                for (std::size_t j = 0; j < keys; ++j) {
                    const auto kv = static_cast<std::int64_t>(j);
                    share[j] /= total;
                    const double kept = share[j] == 0 ? 0 : dense.keep(b, h, i, kv);
                    grad[j] = 0;
                    for (std::size_t d = 0; d < value_dim; ++d) {
                        grad[j] += dout.row(b, h, i)[d] * v.row(b, h / group, kv)[d] * kept;
                        result.value.row(b, h / group, kv)[d] +=
                            share[j] * kept * dout.row(b, h, i)[d];
                    }
                    delta += share[j] * grad[j];
                }
                if (!dense.sinks.empty()) {
                    result.sinks[static_cast<std::size_t>(h)] -=
                        std::exp(sink - base) / total * delta;
                }
                for (std::size_t j = 0; j < keys; ++j) {
                    if (share[j] == 0) continue;
                    const auto kv = static_cast<std::int64_t>(j);
                    double of_score = share[j] * (grad[j] - delta);
                    if (captured) captured(of_score, old[j], b, h, i, kv);
                    of_score *= dense.derivative(old[j], b, h, i, kv) * scale;
                    for (std::size_t d = 0; d < dim; ++d) {
                        result.query.row(b, h, i)[d] += of_score * k.row(b, h / group, kv)[d];
                        result.key.row(b, h / group, kv)[d] += of_score * q.row(b, h, i)[d];
                    }
                }
            }
        }
    }
    return result;
}

class Sm90ProgrammableBackwardGpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    /// A problem whose forward has run, ready for the backward.
    struct Run {
        Programmed problem;
        Guarded grad_out, grad_query, grad_key, grad_value, grad_sinks;
        std::vector<Guarded> grad_captures;
        Buffer workspace;
        BackwardInputs inputs;

        Run(const Problem& p, const Dense& dense, const ProgramOptions& options, const Array& q,
            const Array& k, const Array& v, const Array& dout,
            const std::function<void(Programmed&)>& change = {})
            : problem(p, dense, options, q, k, v),
              grad_out(dout.data.size() * 2),
              grad_query(q.data.size() * 2),
              grad_key(k.data.size() * 2),
              grad_value(v.data.size() * 2),
              grad_sinks(static_cast<std::size_t>(p.heads) * 4) {
            if (change) change(problem);
            const cuda::Stream stream(0);
            forward(problem.device.inputs, stream.handle());
            stream.synchronize();
            static_cast<ProblemInputs&>(inputs) = problem.device.inputs;
            if (std::max(p.dim, p.value_dim) > 128) inputs.query_mask = inputs.mask;
            if (options.listed) inputs.mask = problem.key_lists->mask();
            inputs.grad_out = inputs.out;
            Device::upload(dout, grad_out, inputs.grad_out, p.dtype);
            inputs.grad_query = inputs.query;
            inputs.grad_query.address = grad_query.address();
            inputs.grad_key = inputs.key;
            inputs.grad_key.address = grad_key.address();
            inputs.grad_value = inputs.value;
            inputs.grad_value.address = grad_value.address();
            if (inputs.sinks != 0) inputs.grad_sinks = grad_sinks.address();
            inputs.deterministic = options.deterministic;
            const BackwardDesc desc = check_backward(inputs);
            workspace = Buffer(0, backward_workspace_bytes(desc, choose_backward(desc)));
            workspace.fill(kPoison);
            inputs.workspace = workspace.address();
        }

        void launch() {
            const cuda::Stream stream(0);
            for (Guarded* out : {&grad_query, &grad_key, &grad_value, &grad_sinks}) {
                out->buffer.fill(kPoison);
            }
            backward(inputs, stream.handle());
            stream.synchronize();
            EXPECT_TRUE(problem.device.guards_intact() && grad_out.intact() &&
                        grad_query.intact() && grad_key.intact() && grad_value.intact() &&
                        grad_sinks.intact());
        }

        std::vector<std::uint16_t> bits(Guarded& from, const DeviceTensor& tensor) const {
            std::vector<std::uint16_t> result(static_cast<std::size_t>(
                tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3]));
            from.buffer.download(result.data(), result.size() * 2, kGuard);
            return result;
        }

        std::array<std::vector<std::uint16_t>, 3> gradients() {
            return {bits(grad_query, inputs.query), bits(grad_key, inputs.key),
                    bits(grad_value, inputs.value)};
        }

        void compare(const Problem& p, const DenseGradients& truth, double tolerance) {
            const auto near = [&](const char* what, Guarded& from, const DeviceTensor& tensor,
                                  const Array& expected) {
                const std::vector<std::uint16_t> words = bits(from, tensor);
                std::vector<double> got(words.size());
                for_each(tensor, [&](std::size_t index, std::size_t at) {
                    got[index] = from_bits(words[at], p.dtype);
                });
                const double error = relative_error(got, expected.data);
                EXPECT_TRUE(error <= tolerance) << what << ": " << error;
            };
            near("dQ", grad_query, inputs.grad_query, truth.query);
            near("dK", grad_key, inputs.grad_key, truth.key);
            near("dV", grad_value, inputs.grad_value, truth.value);
            if (truth.sinks.empty()) return;
            std::vector<float> sinks(truth.sinks.size());
            grad_sinks.buffer.download(sinks.data(), sinks.size() * 4, kGuard);
            const double error =
                relative_error(std::vector<double>(sinks.begin(), sinks.end()), truth.sinks);
            // Rows of either sign cancel, their rounding does not.
            EXPECT_TRUE(error <= 4 * tolerance) << "sinks: " << error;
        }
    };

    static void check(const Problem& p, const Dense& dense, const ProgramOptions& options,
                      double tolerance = kTolerance) {
        SCOPED_TRACE(fmt::format("{} B{} H{}/{} L{} S{} D{}x{} {}{}{}", name(p.dtype), p.batch,
                                 p.heads, p.kv_heads, p.q_len, p.kv_len, p.dim, p.value_dim,
                                 options.mod ? options.mod.name() : "no mod",
                                 options.listed ? " listed"
                                 : p.causal     ? " causal"
                                                : "",
                                 options.deterministic ? " ordered" : ""));
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        const Array k = growing_keys(p, options.key_growth);
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
        const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
        Run run(p, dense, options, q, k, v, dout);
        run.launch();
        run.compare(p, dense_gradients(p, dense, q, k, v, dout), tolerance);
        if (!options.deterministic) return;
        const auto first = run.gradients();
        run.launch();
        EXPECT_EQ(run.gradients(), first) << "two runs differ";
    }

    /// The same with gradients of the captures. `expected`: of the first, in its order. `change`:
    /// of the problem before it runs.
    static void check_captured(const Problem& p, const Dense& dense, const ProgramOptions& options,
                               std::vector<double>& expected, const Capturing& captured,
                               const std::function<void(Programmed&)>& change = {}) {
        SCOPED_TRACE(fmt::format("D{} {}{}", p.dim, options.mod.name(),
                                 options.deterministic ? " ordered" : ""));
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
        const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
        Run run(p, dense, options, q, k, v, dout, change);
        run.grad_captures.emplace_back(expected.size() * 4);
        run.inputs.grad_captures = {run.grad_captures[0].address()};
        const BackwardDesc desc = check_backward(run.inputs);
        run.workspace = Buffer(0, backward_workspace_bytes(desc, choose_backward(desc)));
        run.workspace.fill(kPoison);
        run.inputs.workspace = run.workspace.address();
        std::vector<float> got(expected.size()), again(expected.size());
        run.launch();
        run.grad_captures[0].buffer.download(got.data(), got.size() * 4, kGuard);
        EXPECT_TRUE(run.grad_captures[0].intact());
        run.compare(p, dense_gradients(p, dense, q, k, v, dout, captured), kTolerance);
        const double error = relative_error(std::vector<double>(got.begin(), got.end()), expected);
        // Pairs of either sign cancel, what the rounding of out does to a row's delta does not.
        EXPECT_TRUE(error <= 2 * kTolerance) << "capture: " << error;
        run.launch();
        run.grad_captures[0].buffer.download(again.data(), again.size() * 4, kGuard);
        if (options.deterministic) {
            EXPECT_EQ(got, again);
        }
    }

    static std::vector<std::int64_t> dims() { return {64, 96, 128, 192, 256}; }
};

TEST_F(Sm90ProgrammableBackwardGpu, ListedMasks) {
    Dense dense;
    bool deterministic = false;
    const auto check_all = [&] {
        for (std::int64_t dim : dims()) {
            deterministic = !deterministic;
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 450,
                   .kv_len = 450,
                   .dim = dim,
                   .value_dim = dim},
                  dense, {.listed = true, .deterministic = deterministic});
        }
        check({.batch = 2,
               .heads = 6,
               .kv_heads = 2,
               .q_len = 200,
               .kv_len = 300,
               .dim = 64,
               .value_dim = 64},
              dense, {.listed = true, .deterministic = true});
    };
    dense.attends = [](auto q, auto kv) { return kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv <= q && q - kv <= 150; };
    check_all();
    dense.attends = [](auto q, auto kv) { return q / 130 == kv / 130 && kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv < 70 || q > 400; };
    check_all();
    dense.head_attends = [](auto h, auto q, auto kv) { return kv + 60 * h <= q; };
    check_all();
}

TEST_F(Sm90ProgrammableBackwardGpu, ListedMasksWithHoles) {
    std::mt19937 generator(9);
    for (double density : {0.02, 0.3, 0.9}) {
        std::vector<bool> alive(64 * 64), pairs(7919);
        for (std::size_t i = 0; i < alive.size(); ++i)
            alive[i] = generator() % 1000 < density * 1000;
        for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = generator() % 2 == 0;
        Dense dense;
        dense.attends = [&](auto q, auto kv) {
            const bool block = alive[static_cast<std::size_t>(q / 64 * 64 + kv / 64)];
            const auto pair = static_cast<std::size_t>((q * 4001 + kv) % 7919);
            return block && (q / 64 % 3 == 1 || pairs[pair]);
        };
        for (std::int64_t dim : {std::int64_t{64}, std::int64_t{128}, std::int64_t{256}}) {
            for (bool deterministic : {false, true}) {
                check({.heads = 2,
                       .kv_heads = 1,
                       .q_len = 1500,
                       .kv_len = 400,
                       .dim = dim,
                       .value_dim = dim},
                      dense, {.listed = true, .deterministic = deterministic});
            }
        }
    }
}

// Ids in any order; sorted ones leave out whole blocks.
TEST_F(Sm90ProgrammableBackwardGpu, Segments) {
    constexpr std::int64_t kLength = 420;
    bool deterministic = false;
    for (std::int64_t width : {1, 37, 130, 1000}) {
        for (bool sorted : {true, false}) {
            std::vector<std::int32_t> ids(2 * kLength);
            for (std::int64_t i = 0; i < 2 * kLength; ++i) {
                const std::int64_t at = i % kLength;
                ids[static_cast<std::size_t>(i)] =
                    static_cast<std::int32_t>(sorted ? at / width : at * 7919 % kLength / width);
            }
            Dense dense;
            dense.attends = [&](auto q, auto kv) {
                return ids[static_cast<std::size_t>(q)] == ids[static_cast<std::size_t>(kv)];
            };
            // A segment of one pair has nothing but rounding in dQ and dK.
            if (width == 1)
                dense.attends = [](auto, auto) { return true; }, ids.assign(ids.size(), 3);
            for (std::int64_t dim : dims()) {
                deterministic = !deterministic;
                check({.batch = 2,
                       .heads = 2,
                       .kv_heads = 2,
                       .q_len = kLength,
                       .kv_len = kLength,
                       .dim = dim,
                       .value_dim = dim,
                       .causal = width != 37},
                      dense, {.segments = ids, .deterministic = deterministic});
            }
        }
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, Sinks) {
    Dense dense;
    dense.sinks = {-100.0, 0.5, 3.0, 10.0};
    for (std::int64_t dim : dims()) {
        const Problem p{.batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 200,
                        .kv_len = 300,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        check(p, dense, {.deterministic = true});
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, DropoutDropsThePairsOfTheForward) {
    constexpr double kRate = 0.25;
    Dense dense;
    dense.keep = [](auto b, auto h, auto q, auto kv) { return kept_by_bits(kRate, b, h, q, kv); };
    for (std::int64_t dim : dims()) {
        check({.batch = 2,
               .heads = 2,
               .kv_heads = 1,
               .q_len = 200,
               .kv_len = 300,
               .dim = dim,
               .value_dim = dim,
               .causal = true},
              dense, {.dropout = kRate, .deterministic = dim == 64});
    }
}

/// Packed sequences; one has no rows, one no keys.
struct PackedRows {
    std::vector<std::int32_t> q_starts{0, 50, 50, 190, 191, 360};
    std::vector<std::int32_t> kv_starts{0, 70, 110, 110, 250, 400};
    Buffer starts{0, 4096};

    PackedRows() {
        starts.upload(q_starts.data(), 4 * q_starts.size());
        starts.upload(kv_starts.data(), 4 * kv_starts.size(), 2048);
    }
    static std::size_t sequence(const std::vector<std::int32_t>& starts, std::int64_t at) {
        std::size_t n = 0;
        while (starts[n + 1] <= at) ++n;
        return n;
    }
    std::size_t of_query(std::int64_t q) const { return sequence(q_starts, q); }
    std::int64_t query(std::int64_t q) const { return q - q_starts[of_query(q)]; }
    std::int64_t key(std::int64_t kv) const { return kv - kv_starts[sequence(kv_starts, kv)]; }
    bool together(std::int64_t q, std::int64_t kv) const {
        return of_query(q) == sequence(kv_starts, kv);
    }

    Problem problem(std::int64_t dim) const {
        return {.heads = 4,
                .kv_heads = 2,
                .q_len = q_starts.back(),
                .kv_len = kv_starts.back(),
                .dim = dim,
                .value_dim = dim};
    }
    void apply(Programmed& problem) const {
        problem.device.inputs.q_starts = starts.address();
        problem.device.inputs.kv_starts = starts.address() + 2048;
        problem.device.inputs.sequences = static_cast<std::int64_t>(q_starts.size()) - 1;
        problem.take_workspace();
    }
};

// They give what each gives alone.
TEST_F(Sm90ProgrammableBackwardGpu, PackedSequences) {
    const PackedRows rows;
    for (std::int64_t dim : dims()) {
        for (bool deterministic : {false, true}) {
            SCOPED_TRACE(fmt::format("D{}{}", dim, deterministic ? " ordered" : ""));
            Problem p = rows.problem(dim);
            p.causal = true;
            const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
            const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
            const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
            const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
            Dense dense;
            Run run(p, dense, {.deterministic = deterministic}, q, k, v, dout,
                    [&](Programmed& problem) { rows.apply(problem); });
            run.launch();
            dense.attends = [&](auto row, auto kv) {
                return rows.together(row, kv) && rows.key(kv) <= rows.query(row);
            };
            p.causal = false;
            run.compare(p, dense_gradients(p, dense, q, k, v, dout), kTolerance);
        }
    }
}

// A number per sequence and head, a bias per head and key, and a factor per query; the batch of a
// mod is the sequence.
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
        // A derivative that has no bound where the probability is 0.
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
            dense.score = [&](double s, auto, auto, auto q, auto kv) {
                return s + at(std::clamp<std::int64_t>(q - kv + 300, 0, 399));
            };
            const Capture distances = capture_of({400});
            run(
                Mod([=](auto s, auto, auto, auto q, auto kv) {
                    return s + distances[q - kv + 300];
                }),
                400,
                [](auto, auto q, auto kv) {
                    return std::clamp<std::int64_t>(q - kv + 300, 0, 399);
                },
                one);
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
