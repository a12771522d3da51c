// Attention against its definition: the dense reference in f64.
#pragma once

#include <string>

#include "attention/reference.h"
#include "tests/attention/reference_options.h"
#include "tests/support/accuracy.h"
#include "tilewright/attention.h"

namespace tilewright::attn {

/// A table of small values, so that scores stay in the range that the tolerance of lse allows for.
inline Capture table(Tensor::Dims shape, unsigned seed) {
    Tensor values = testing::random_tensor(f64, shape, seed);
    for (std::int64_t i = 0; i < values.size(); ++i) values.data<double>()[i] *= 0.1;
    return capture(values.to(f32));
}

struct Case {
    std::string name = {};
    AttentionOptions options = {};
    Mod mask = {};  ///< the mod that a block mask in `options` was made from
    DType dtype = f32;
    std::int64_t batch = 2, heads = 2, kv_heads = 2, length = 70, kv_length = 85;
    std::int64_t head_dim = 16, value_dim = 16;
    bool backward = true;
    bool poisoned = false;  ///< keys and values that no query may attend to hold NaN
    /// Factor on the bounds of docs/explanation/numerics.md: with the same roundings, one sample's
    /// error is sometimes more than twice another's.
    double bounds = 1;
};

/// Checks results and gradients against the dense computation in f64.
inline void check(const Case& c) {
    SCOPED_TRACE(c.name + " " + std::string(name(c.dtype)));
    // (B, H, L, E) for the reference, `given` for the call.
    const auto given = [&](const Tensor& x) {
        return c.options.layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3}).contiguous();
    };
    const auto plain_view = [&](const Tensor& x) {
        return c.options.layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
    };
    const auto input = [&](std::int64_t heads, std::int64_t length, std::int64_t depth,
                           unsigned seed) {
        return testing::random_tensor(c.dtype, {c.batch, heads, length, depth}, seed);
    };
    const Tensor q = input(c.heads, c.length, c.head_dim, 1),
                 k = input(c.kv_heads, c.kv_length, c.head_dim, 2),
                 v = input(c.kv_heads, c.kv_length, c.value_dim, 3),
                 dout = input(c.heads, c.length, c.value_dim, 4);
    const Tensor dlse = testing::random_tensor(f32, {c.batch, c.heads, c.length}, 5);
    ReferenceOptions exact_options = reference_options(c.options);
    if (c.mask.defined()) exact_options.mask = c.mask;
    ReferenceOptions plain_options = exact_options;
    plain_options.arithmetic = c.dtype;
    if (c.poisoned)
        poison_unattended(reference_attended_keys(to_array(q), to_array(k), exact_options), k, v);
    const Array qa = to_array(q), ka = to_array(k), va = to_array(v);
    const auto exact = reference_forward(qa, ka, va, exact_options);
    const auto plain = reference_forward(qa, ka, va, plain_options);
    const DType statistics = c.dtype == f64 ? f64 : f32;

    const auto expect = [&](const std::string& what, const Tensor& have, const Array& want,
                            const Array& rounded, DType dtype) {
        testing::expect_accurate(what, have, want, rounded, dtype, c.bounds);
    };
    const Tensor gq = given(q), gk = given(k), gv = given(v);
    const AttentionOutput ours = attention(gq, gk, gv, c.options);
    EXPECT_EQ(ours.out.dtype(), c.dtype);
    EXPECT_EQ(ours.lse.dtype(), statistics);
    expect("out", plain_view(ours.out), exact.out, plain.out, c.dtype);
    expect("lse", ours.lse, exact.lse, plain.lse, statistics);
    expect("max", ours.max_scores, exact.max_scores, plain.max_scores, statistics);
    if (!c.backward) return;

    const Array da = to_array(dout), la = to_array(dlse);
    const auto exact_grads = reference_backward(qa, ka, va, da, la, exact_options);
    const auto plain_grads = reference_backward(qa, ka, va, da, la, plain_options);
    const AttentionGradients grads =
        attention_backward(gq, gk, gv, ours, given(dout), c.options, dlse);
    expect("dq", plain_view(grads.query), exact_grads.query, plain_grads.query, c.dtype);
    expect("dk", plain_view(grads.key), exact_grads.key, plain_grads.key, c.dtype);
    expect("dv", plain_view(grads.value), exact_grads.value, plain_grads.value, c.dtype);
    if (c.options.sinks.defined()) {
        expect("dsinks", grads.sinks, exact_grads.sinks, plain_grads.sinks,
               c.options.sinks.dtype());
    }
    ASSERT_EQ(grads.captured.size(), exact_grads.captured.size());
    for (std::size_t i = 0; i < grads.captured.size(); ++i) {
        // Sums over many pairs: the plain computation rounds each term as the inputs are.
        const DType dtype = size_of(c.dtype) < size_of(grads.captured[i].dtype())
                                ? c.dtype
                                : grads.captured[i].dtype();
        expect("captured " + std::to_string(i), grads.captured[i], exact_grads.captured[i],
               plain_grads.captured[i], dtype);
    }
}

}  // namespace tilewright::attn
