// The backward pass of the Pallas form: a delta preprocess, then two scans, one for dK and dV over
// the queries and one for dQ over the keys.
#include "pallas_attention.h"

int main() {
    using namespace examples;
    constexpr std::int64_t kBatch = 1, kLength = 75, kHeads = 2, kDim = 16;
    const tw::Tensor q = random_tensor({kBatch, kLength, kHeads, kDim}, 1);
    const tw::Tensor k = random_tensor({kBatch, kLength, kHeads, kDim}, 2);
    const tw::Tensor v = random_tensor({kBatch, kLength, kHeads, kDim}, 3);
    const tw::Tensor dout = random_tensor({kBatch, kLength, kHeads, kDim}, 4);
    int status = 0;
    const auto run = [&](const char* name, const tw::Tensor& segment_ids, const MhaOptions& o) {
        std::printf("%s\n", name);
        const auto [out, lse] = mha_forward(q, k, v, segment_ids, o);
        const auto [dq, dk, dv] = mha_backward(q, k, v, segment_ids, out, lse, dout, o);

        // The same from the dense probabilities: dV = P^T dO; dS = P (dO V^T - sum(dO O)).
        const DenseMha dense(q, k, v, segment_ids, o);
        std::vector<double> dq_dense(dense.out.size()), dk_dense = dq_dense, dv_dense = dq_dense;
        const auto at = [&](std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) {
            return static_cast<std::size_t>(((b * kLength + i) * kHeads + h) * kDim + d);
        };
        std::size_t index = 0;
        for (std::int64_t b = 0; b < kBatch; ++b)
            for (std::int64_t h = 0; h < kHeads; ++h)
                for (std::int64_t i = 0; i < kLength; ++i)
                    for (std::int64_t j = 0; j < kLength; ++j) {
                        const double p = dense.p[index++];
                        double dp = 0;
                        for (std::int64_t d = 0; d < kDim; ++d) {
                            const double g = dout.get({b, i, h, d});
                            dp += g * (v.get({b, j, h, d}) - dense.out[at(b, i, h, d)]);
                            dv_dense[at(b, j, h, d)] += p * g;
                        }
                        for (std::int64_t d = 0; d < kDim; ++d) {
                            dq_dense[at(b, i, h, d)] += o.sm_scale * p * dp * k.get({b, j, h, d});
                            dk_dense[at(b, j, h, d)] += o.sm_scale * p * dp * q.get({b, i, h, d});
                        }
                    }
        const auto compare = [&](const char* part, const tw::Tensor& ours,
                                 const std::vector<double>& expected) {
            status |= check(part, ours, 5e-6,
                            [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
        };
        compare("  dq", dq, dq_dense);
        compare("  dk", dk, dk_dense);
        compare("  dv", dv, dv_dense);
    };
    run("attention", {}, {.block_q = 32, .block_k = 16});
    run("causal", {}, {.causal = true, .block_q = 16, .block_k = 32});
    run("segments", mha_segments(kBatch, kLength),
        {.sm_scale = 0.25, .block_q = 32, .block_k = 32});
    return status;
}
