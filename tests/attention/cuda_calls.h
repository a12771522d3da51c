// Shared by the tests of `attention` on GPU tensors: cases, and their check against the CPU.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "cuda/runtime/device.h"
#include "tests/attention/reference_options.h"
#include "tests/cuda/test_support.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"
#include "tilewright/run.h"

namespace tilewright::cuda_calls {

using testing::expect_accurate;
using testing::random_tensor;

inline const Device kGpu = Device::cuda();

inline bool is_stand_in() {
    return std::getenv("TW_FAKE_GPU") != nullptr;
}

inline bool has_sm90() {
    return cuda::device_info(0).major == 9 && cuda::device_info(0).minor == 0;
}

struct Case {
    std::string name;
    DType dtype = bf16;
    std::int64_t batch = 1, heads = 2, kv_heads = 1, length = 70, kv_length = 70, dim = 16;
    /// The options, given the device of their tensors.
    std::function<AttentionOptions(Device)> options = [](Device) { return AttentionOptions{}; };
    bool backward = true, max_scores = true;
    bool poisoned = false;  ///< keys that no query may attend hold NaN
    /// For packed sequences and block masks: further keys that hold NaN.
    std::function<bool(std::int64_t)> hidden = {};
};

inline Tensor ids(std::int64_t batch, std::int64_t length, std::int64_t every, Device device) {
    std::vector<std::int32_t> values;
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t i = 0; i < length; ++i)
            values.push_back(static_cast<std::int32_t>(i / every));
    return Tensor::from_vector(values, {batch, length}).to(device);
}

/// The line that TILEWRIGHT_DEBUG writes for what `work` does.
inline std::string logged(const std::function<void()>& work) {
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    ::testing::internal::CaptureStderr();
    work();
    ::unsetenv("TILEWRIGHT_DEBUG");
    return ::testing::internal::GetCapturedStderr();
}

/// Compares a GPU's results with those for f64 inputs on the CPU. The plain computation is the
/// dense one in the same dtype or, for packed sequences and block masks, the CPU's.
inline void check(const Case& c, const std::string& engine) {
    SCOPED_TRACE(c.name + " " + engine);
    const Tensor q = random_tensor(c.dtype, {c.batch, c.heads, c.length, c.dim}, 1);
    const Tensor k = random_tensor(c.dtype, {c.batch, c.kv_heads, c.kv_length, c.dim}, 2);
    const Tensor v = random_tensor(c.dtype, {c.batch, c.kv_heads, c.kv_length, c.dim}, 3);
    const Tensor dout = random_tensor(c.dtype, {c.batch, c.heads, c.length, c.dim}, 4);
    if (c.poisoned)
        attn::poison_unattended(
            attn::reference_attended_keys(to_array(q), to_array(k),
                                          attn::reference_options(c.options(Device{}))),
            k, v);
    for (std::int64_t j = 0; j < c.kv_length && c.hidden; ++j) {
        if (!c.hidden(j)) continue;
        for (const Tensor& x : {k, v}) x.slice(2, j, 1).fill(j % 2 == 0 ? std::nan("") : INFINITY);
    }
    const auto on_cpu = [&](DType dtype) {
        AttentionOptions options = c.options(Device{});
        const Tensor x = q.to(dtype), y = k.to(dtype), z = v.to(dtype);
        const AttentionOutput out = attention(x, y, z, options);
        return std::pair(out, c.backward ? attention_backward(x, y, z, out, dout.to(dtype), options)
                                         : AttentionGradients());
    };
    const auto [exact, exact_grads] = on_cpu(f64);
    const AttentionOptions given = c.options(Device{});
    attn::ReferenceOutput plain;
    attn::ReferenceGradients plain_grads;
    if (given.cu_seqlens.defined() || given.block_mask.defined()) {
        const auto [out, grads] = on_cpu(c.dtype);
        plain = {to_array(out.out), to_array(out.lse), to_array(out.max_scores)};
        plain_grads = {to_array(grads.query),
                       to_array(grads.key),
                       to_array(grads.value),
                       to_array(grads.sinks),
                       {}};
        for (const Tensor& captured : grads.captured)
            plain_grads.captured.push_back(to_array(captured));
    } else {
        attn::ReferenceOptions plainly = attn::reference_options(given);
        plainly.arithmetic = c.dtype;
        const Array x = to_array(q), y = to_array(k), z = to_array(v);
        plain = attn::reference_forward(x, y, z, plainly);
        if (c.backward)
            plain_grads = attn::reference_backward(x, y, z, to_array(dout), {}, plainly);
    }
    AttentionOptions options = c.options(kGpu);
    options.engine = engine;
    options.max_scores = c.max_scores;
    const Tensor gq = q.to(kGpu), gk = k.to(kGpu), gv = v.to(kGpu);
    const AttentionOutput ours = attention(gq, gk, gv, options);
    EXPECT_EQ(ours.out.device(), kGpu);
    const auto expect = [&](const char* what, const Tensor& a, const Tensor& e, const Array& p,
                            DType dtype) { expect_accurate(what, a, to_array(e), p, dtype); };
    expect("out", ours.out, exact.out, plain.out, c.dtype);
    expect("lse", ours.lse, exact.lse, plain.lse, f32);
    if (c.max_scores) expect("max", ours.max_scores, exact.max_scores, plain.max_scores, f32);
    if (!c.backward) return;
    const AttentionGradients grads = attention_backward(gq, gk, gv, ours, dout.to(kGpu), options);
    expect("dq", grads.query, exact_grads.query, plain_grads.query, c.dtype);
    expect("dk", grads.key, exact_grads.key, plain_grads.key, c.dtype);
    expect("dv", grads.value, exact_grads.value, plain_grads.value, c.dtype);
    if (options.sinks.defined())
        expect("dsinks", grads.sinks, exact_grads.sinks, plain_grads.sinks, c.dtype);
    ASSERT_EQ(grads.captured.size(), exact_grads.captured.size());
    for (std::size_t i = 0; i < grads.captured.size(); ++i) {
        expect("captured", grads.captured[i], exact_grads.captured[i], plain_grads.captured[i],
               c.dtype);
    }
}

/// Checks tile programs, and the engine that is chosen.
inline void check_engines(const Case& c) {
    check(c, "tiles");
    if (has_sm90()) check(c, "");
}

}  // namespace tilewright::cuda_calls
