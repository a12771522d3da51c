// Gradients of the Hopper kernels on a GPU against the f64 reference, for their tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "attention/reference.h"
#include "tests/attention/sm90_backward_support.h"

namespace tilewright::attn::sm90 {

/// Rows above a negative diagonal have no unmasked key: the reference only computes the others.
inline ReferenceGradients reference(const Problem& p, DType arithmetic, const Array& q,
                                    const Array& k, const Array& v, const Array& grad_out,
                                    const Array& grad_lse) {
    ReferenceOptions options;
    options.scale = p.scale != 0.0 ? p.scale : 1.0 / std::sqrt(static_cast<double>(p.dim));
    options.arithmetic = arithmetic;
    if (p.causal) options.window_right = std::max<std::int64_t>(p.diagonal, 0);
    options.window_left = p.window;
    const std::int64_t dead = p.causal ? std::clamp<std::int64_t>(-p.diagonal, 0, p.q_len) : 0;
    if (dead == 0) return reference_backward(q, k, v, grad_out, grad_lse, options);

    ReferenceGradients whole;
    whole.query = Array({p.batch, p.heads, p.q_len, p.dim}, 0.0);
    whole.key = Array({p.batch, p.kv_heads, p.kv_len, p.dim}, 0.0);
    whole.value = Array({p.batch, p.kv_heads, p.kv_len, p.value_dim}, 0.0);
    if (dead == p.q_len) return whole;
    const auto live_rows = [&](const Array& from, std::int64_t columns) {
        Array live(columns == 0
                       ? std::vector<std::int64_t>{p.batch, p.heads, p.q_len - dead}
                       : std::vector<std::int64_t>{p.batch, p.heads, p.q_len - dead, columns});
        const std::int64_t width = std::max<std::int64_t>(columns, 1);
        for (std::int64_t bh = 0; bh < p.batch * p.heads; ++bh) {
            std::copy_n(from.data.begin() + (bh * p.q_len + dead) * width, (p.q_len - dead) * width,
                        live.data.begin() + bh * (p.q_len - dead) * width);
        }
        return live;
    };
    ReferenceGradients part =
        reference_backward(live_rows(q, p.dim), k, v, live_rows(grad_out, p.value_dim),
                           grad_lse.data.empty() ? Array{} : live_rows(grad_lse, 0), options);
    for (std::int64_t bh = 0; bh < p.batch * p.heads; ++bh) {
        std::copy_n(part.query.data.begin() + bh * (p.q_len - dead) * p.dim,
                    (p.q_len - dead) * p.dim,
                    whole.query.data.begin() + (bh * p.q_len + dead) * p.dim);
    }
    whole.key = std::move(part.key);
    whole.value = std::move(part.value);
    return whole;
}

class Sm90BackwardGpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    /// Runs a problem and compares with the reference: each gradient at most twice the error of the
    /// plain computation in the same dtype.
    /// `change`: what is different from the configuration that would be chosen.
    static void check(const Problem& p, bool deterministic = false, bool with_grad_lse = false,
                      unsigned seed = 1, const std::function<void(BackwardConfig&)>& change = {}) {
        SCOPED_TRACE(fmt::format("{} B{} H{}/{} L{} S{} D{}x{} {} diagonal {} window {} scale {}{}",
                                 name(p.dtype), p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len,
                                 p.dim, p.value_dim, p.causal ? "causal" : "full", p.diagonal,
                                 p.window, p.scale, deterministic ? " ordered" : ""));
        const Array q = Sample(p, p.heads, p.q_len, p.dim, seed).exact;
        const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, seed + 1).exact;
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, seed + 2).exact;
        const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, seed + 3).exact;
        Array dlse;
        if (with_grad_lse) {
            dlse = Array({p.batch, p.heads, p.q_len});
            dlse.data = Sample(p, p.heads, p.q_len, 1, seed + 4).exact.data;
        }
        BackwardDevice device(p, q, k, v, dout, dlse, deterministic);
        const cuda::Stream stream(0);
        if (!change) {
            backward(device.inputs, stream.handle());
        } else {
            const BackwardDesc desc = check_backward(device.inputs);
            BackwardConfig config = choose_backward(desc);
            change(config);
            device.workspace = Buffer(0, backward_workspace_bytes(desc, config));
            device.workspace.fill(kPoison);
            device.inputs.workspace = device.workspace.address();
            launch_backward(device.inputs, desc, config, load_backward(desc, config, 0),
                            stream.handle());
        }
        stream.synchronize();
        EXPECT_TRUE(device.guards_intact());

        const ReferenceGradients truth = reference(p, DType::f64, q, k, v, dout, dlse);
        const ReferenceGradients plain = reference(p, p.dtype, q, k, v, dout, dlse);
        const auto compare = [&](const char* what, Guarded& from, const DeviceTensor& tensor,
                                 const Array& expected, const Array& rounded) {
            const std::vector<std::uint16_t> bits = device.bits(from, tensor);
            std::vector<double> got(bits.size());
            for_each(tensor, [&](std::size_t index, std::size_t at) {
                got[index] = from_bits(bits[at], p.dtype);
            });
            expect_near_as_plain(what, got, expected.data, rounded.data, p.dtype);
        };
        compare("dQ", device.grad_query, device.inputs.grad_query, truth.query, plain.query);
        compare("dK", device.grad_key, device.inputs.grad_key, truth.key, plain.key);
        compare("dV", device.grad_value, device.inputs.grad_value, truth.value, plain.value);
    }
};

}  // namespace tilewright::attn::sm90
