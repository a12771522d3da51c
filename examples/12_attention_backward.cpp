// The backward pass in the Pallas form: delta is computed first, then two scans: one over the
// queries for dK and dV, one over the keys for dQ.
#include <exception>

#include "pallas_attention.h"

int main() try {
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

        const DenseMha dense(q, k, v, segment_ids, o);
        const DenseMhaGradients expected(dense, q, k, v, dout, o);
        const auto compare = [&](const char* part, const tw::Tensor& ours,
                                 const std::vector<double>& dense_part) {
            status |= check(part, ours, 5e-6, [&](std::int64_t i) {
                return dense_part[static_cast<std::size_t>(i)];
            });
        };
        compare("  dq", dq, expected.dq);
        compare("  dk", dk, expected.dk);
        compare("  dv", dv, expected.dv);
    };
    run("attention", {}, {.block_q = 32, .block_k = 16});
    run("causal", {}, {.causal = true, .block_q = 16, .block_k = 32});
    run("segments", mha_segments(kBatch, kLength),
        {.sm_scale = 0.25, .block_q = 32, .block_k = 32});
    return status;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
