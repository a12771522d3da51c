// Fused attention in the form of JAX's Pallas `attention` module: a running maximum and sum over
// blocks of keys, so that no row of scores is ever stored.
#include <exception>

#include "pallas_attention.h"

int main() try {
    using namespace examples;
    constexpr std::int64_t kBatch = 2, kLength = 75, kHeads = 2, kDim = 16;  // 75 = 2 x 32 + 11
    const tw::Tensor q = random_tensor({kBatch, kLength, kHeads, kDim}, 1);
    const tw::Tensor k = random_tensor({kBatch, kLength, kHeads, kDim}, 2);
    const tw::Tensor v = random_tensor({kBatch, kLength, kHeads, kDim}, 3);
    int status = 0;
    const auto run = [&](const char* name, const tw::Tensor& segment_ids, const MhaOptions& o) {
        const auto [out, lse] = mha_forward(q, k, v, segment_ids, o);
        const DenseMha dense(q, k, v, segment_ids, o);
        status |= check(name, out, 1e-6,
                        [&](std::int64_t i) { return dense.out[static_cast<std::size_t>(i)]; });
    };
    run("attention", {}, {.block_q = 32, .block_k = 16});
    run("causal", {}, {.causal = true, .block_q = 32, .block_k = 16});
    run("blocks longer than the sequence", {}, {.sm_scale = 0.25, .causal = true});
    run("segments", mha_segments(kBatch, kLength), {.causal = true, .block_q = 16, .block_k = 32});
    // The same arrays stored as (batch, heads, sequence, dim), with gaps between the rows: views.
    const auto strided = [](const tw::Tensor& x) {
        const tw::Tensor wide =
            tw::Tensor::zeros(x.dtype(), {x.dim(0), x.dim(2), x.dim(1), x.dim(3) + 3});
        const tw::Tensor view = wide.slice(3, 0, x.dim(3)).transpose({0, 2, 1, 3});
        view.copy_from(x);
        return view;
    };
    const auto [dense_out, dense_lse] = mha_forward(q, k, v, {}, {.causal = true, .block_q = 32});
    const auto [out, lse] =
        mha_forward(strided(q), strided(k), strided(v), {}, {.causal = true, .block_q = 32});
    const std::vector<double> expected = dense_out.to_vector<double>();
    status |= check("strided (batch, heads, sequence, dim)", out, 0,
                    [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
    run("checked mode", {}, {.causal = true, .block_q = 32, .block_k = 32, .interpret = true});
    return status;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
