// Shared by the tests of programmable Hopper backward kernels: gradients by a dense computation in
// f64, the fixture that compares with them, and packed sequences.
#pragma once

#include <gtest/gtest.h>

#include <array>

#include "attention/sm90/backward.h"
#include "tests/attention/sm90_programmable.h"

namespace tilewright::attn::sm90 {

// P, dS and the result are each rounded to 8 bits, and so is the out that delta is computed from.
constexpr double kTolerance = 1.0 / 128;

struct DenseGradients {
    Array query, key, value;
    std::vector<double> sinks;
};

/// Adds dL/d(new score) of a pair, whose old score is given, to gradients of captured arrays.
using Capturing = std::function<void(double grad, double score, std::int64_t b, std::int64_t h,
                                     std::int64_t q, std::int64_t kv)>;

inline DenseGradients dense_gradients(const Problem& p, const Dense& dense, const Array& q,
                                      const Array& k, const Array& v, const Array& dout,
                                      const Capturing& captured = {}) {
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

    /// A problem whose forward pass has run, ready for the backward pass.
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
                expect_near(what, got, expected.data, tolerance,
                            largest_allowed({}, expected.data, p.dtype));
            };
            near("dQ", grad_query, inputs.grad_query, truth.query);
            near("dK", grad_key, inputs.grad_key, truth.key);
            near("dV", grad_value, inputs.grad_value, truth.value);
            if (truth.sinks.empty()) return;
            std::vector<float> sinks(truth.sinks.size());
            grad_sinks.buffer.download(sinks.data(), sinks.size() * 4, kGuard);
            // Rows of opposite signs cancel, but their rounding errors do not.
            expect_near("sinks", std::vector<double>(sinks.begin(), sinks.end()), truth.sinks,
                        4 * tolerance, sum_allowed(truth.sinks, 4 * tolerance));
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

    /// The same with gradients of the captures. `expected`: that of the first capture. `change`:
    /// applied to the problem before it runs.
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
        // Pairs of opposite signs cancel, but the error of a row's delta, from a rounded out, does
        // not.
        expect_near("capture", std::vector<double>(got.begin(), got.end()), expected,
                    2 * kTolerance, sum_allowed(expected, 2 * kTolerance));
        run.launch();
        run.grad_captures[0].buffer.download(again.data(), again.size() * 4, kGuard);
        if (options.deterministic) {
            EXPECT_EQ(got, again);
        }
    }

    static std::vector<std::int64_t> dims() { return {64, 96, 128, 192, 256}; }
};

/// Packed sequences, one without rows and one without keys.
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

}  // namespace tilewright::attn::sm90
