// The C interface gives the same bits as the C++ functions, for every option and result.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "tests/support/accuracy.h"
#include "tilewright/attention.h"
#include "tilewright/c_api.h"
#include "tilewright/masks.h"
#include "tilewright/norm.h"

namespace tilewright {
namespace {

using testing::random_tensor;

/// A tensor as the C interface takes it, or null.
class View {
  public:
    explicit View(const Tensor& tensor)
        : managed_(tensor.defined() ? tensor.to_dlpack() : nullptr) {}
    ~View() { tw_release(managed_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    operator const DLTensor*() const { return managed_ ? &managed_->dl_tensor : nullptr; }

  private:
    DLManagedTensor* managed_;
};

/// Memory for a result.
class Result {
  public:
    Result() = default;
    ~Result() { tw_release(managed_); }
    Result(const Result&) = delete;
    Result& operator=(const Result&) = delete;
    operator DLManagedTensor**() { return &managed_; }
    operator const DLTensor*() const { return managed_ ? &managed_->dl_tensor : nullptr; }

    void expect(const char* name, const Tensor& wanted) const {
        SCOPED_TRACE(name);
        ASSERT_EQ(managed_ != nullptr, wanted.defined());
        if (!managed_) return;
        const DLTensor& have = managed_->dl_tensor;
        ASSERT_EQ(Tensor::Dims(have.shape, have.shape + have.ndim), wanted.shape());
        // Strides of a row-major array may be omitted.
        const Tensor dense = wanted.contiguous();
        std::int64_t stride = 1;
        for (int d = have.ndim; d-- > 0; stride *= have.shape[d])
            ASSERT_TRUE(!have.strides || have.shape[d] == 1 || have.strides[d] == stride);
        const auto* data = static_cast<const std::byte*>(have.data) + have.byte_offset;
        EXPECT_EQ(std::memcmp(data, dense.raw(),
                              static_cast<std::size_t>(dense.size() * size_of(dense.dtype()))),
                  0);
    }

  private:
    DLManagedTensor* managed_ = nullptr;
};

/// An attention call described twice: for C++ and for C.
struct Case {
    const char* name;
    std::function<void(AttentionOptions&)> cpp;
    std::function<void(tw_attention_options&)> c;
};

void expect_same(const Case& each, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& dout, const Tensor& dlse) {
    SCOPED_TRACE(each.name);
    AttentionOptions options;
    each.cpp(options);
    tw_attention_options given;
    tw_attention_options_init(&given);
    each.c(given);
    const AttentionOutput wanted = attention(q, k, v, options);
    const View cq(q), ck(k), cv(v), cdout(dout), cdlse(dlse);
    Result out, lse, max_scores;
    ASSERT_EQ(tw_attention(cq, ck, cv, &given, out, lse, max_scores), TW_OK) << tw_error();
    out.expect("out", wanted.out);
    lse.expect("lse", wanted.lse);
    max_scores.expect("max_scores", wanted.max_scores);

    const AttentionGradients g = attention_backward(q, k, v, wanted, dout, options, dlse);
    Result dq, dk, dv, dsinks;
    ASSERT_EQ(tw_attention_backward(cq, ck, cv, out, lse, cdout, cdlse, &given, dq, dk, dv, dsinks,
                                    nullptr, 0),
              TW_OK)
        << tw_error();
    dq.expect("dq", g.query);
    dk.expect("dk", g.key);
    dv.expect("dv", g.value);
    dsinks.expect("dsinks", g.sinks);
}

TEST(CApi, AttentionTakesEveryOption) {
    const Tensor q = random_tensor(f32, {1, 4, 20, 8}, 1), k = random_tensor(f32, {1, 2, 20, 8}, 2),
                 v = random_tensor(f32, {1, 2, 20, 6}, 3),
                 dout = random_tensor(f32, {1, 4, 20, 6}, 4),
                 dlse = random_tensor(f32, {1, 4, 20}, 5);
    std::vector<std::int64_t> ids(20), kv_ids(20);
    for (std::size_t i = 0; i < 20; ++i) {
        ids[i] = static_cast<std::int64_t>(i / 6);
        kv_ids[i] = static_cast<std::int64_t>(i / 8);
    }
    const Tensor segment_ids = Tensor::from_vector(ids, {1, 20}, i32),
                 kv_segment_ids = Tensor::from_vector(kv_ids, {1, 20}, i32),
                 starts = Tensor::from_vector(std::vector<std::int64_t>{0, 7, 20}, {3}, i32),
                 kv_starts = Tensor::from_vector(std::vector<std::int64_t>{0, 11, 20}, {3}, i32),
                 lengths = Tensor::from_vector(std::vector<std::int64_t>{13}, {1}, i32),
                 sinks = random_tensor(f32, {4}, 6);
    const View c_ids(segment_ids), c_kv_ids(kv_segment_ids), c_starts(starts),
        c_kv_starts(kv_starts), c_lengths(lengths), c_sinks(sinks);
    const std::vector<Case> cases = {
        {"defaults", [](auto&) {}, [](auto&) {}},
        {"scale", [](auto& o) { o.scale = 0.3; }, [](auto& o) { o.scale = 0.3; }},
        {"causal", [](auto& o) { o.causal = true; }, [](auto& o) { o.causal = 1; }},
        {"left", [](auto& o) { o.window.left = 3; }, [](auto& o) { o.window_left = 3; }},
        {"right", [](auto& o) { o.window.right = 3; }, [](auto& o) { o.window_right = 3; }},
        {"segments", [&](auto& o) { o.segment_ids = segment_ids; },
         [&](auto& o) { o.segment_ids = c_ids; }},
        {"segments of the keys",
         [&](auto& o) {
             o.segment_ids = segment_ids;
             o.kv_segment_ids = kv_segment_ids;
         },
         [&](auto& o) {
             o.segment_ids = c_ids;
             o.kv_segment_ids = c_kv_ids;
         }},
        {"packed", [&](auto& o) { o.cu_seqlens = starts; },
         [&](auto& o) { o.cu_seqlens = c_starts; }},
        {"packed, other keys",
         [&](auto& o) {
             o.cu_seqlens = starts;
             o.kv_cu_seqlens = kv_starts;
         },
         [&](auto& o) {
             o.cu_seqlens = c_starts;
             o.kv_cu_seqlens = c_kv_starts;
         }},
        {"lengths of the keys", [&](auto& o) { o.kv_lengths = lengths; },
         [&](auto& o) { o.kv_lengths = c_lengths; }},
        {"sinks", [&](auto& o) { o.sinks = sinks; }, [&](auto& o) { o.sinks = c_sinks; }},
        {"dropout",
         [](auto& o) {
             o.dropout = 0.25;
             o.seed = 7;
         },
         [](auto& o) {
             o.dropout = 0.25;
             o.seed = 7;
         }},
        {"checked", [](auto& o) { o.checked = true; }, [](auto& o) { o.checked = 1; }},
    };
    for (const Case& each : cases) expect_same(each, q, k, v, dout, dlse);

    const Tensor tq = random_tensor(f32, {1, 20, 4, 8}, 1),
                 tk = random_tensor(f32, {1, 20, 2, 8}, 2),
                 tv = random_tensor(f32, {1, 20, 2, 6}, 3),
                 tdout = random_tensor(f32, {1, 20, 4, 6}, 4);
    expect_same({"bshd", [](auto& o) { o.layout = Layout::bshd; }, [](auto& o) { o.bshd = 1; }}, tq,
                tk, tv, tdout, dlse);
}

TEST(CApi, CheckedAttentionReportsWhatLeavesAnArray) {
    const Tensor x = random_tensor(f32, {1, 1, 8, 4}, 1), table = random_tensor(f32, {8}, 2);
    const View cx(x), ctable(table);
    const char* names[] = {"table"};
    const DLTensor* arrays[] = {ctable};
    tw_mod* score = nullptr;
    ASSERT_EQ(tw_parse_mod("score + table[q + 1]", TW_MOD_SCORE, names, arrays, 1, &score), TW_OK);
    tw_attention_options options;
    tw_attention_options_init(&options);
    options.score_mod = score;
    EXPECT_EQ(tw_attention(cx, cx, cx, &options, nullptr, nullptr, nullptr), TW_OK);
    options.checked = 1;
    EXPECT_EQ(tw_attention(cx, cx, cx, &options, nullptr, nullptr, nullptr), TW_BAD_INPUT);
    options.checked = 0;
    EXPECT_EQ(tw_set_checked(1), TW_OK);
    EXPECT_EQ(tw_attention(cx, cx, cx, &options, nullptr, nullptr, nullptr), TW_BAD_INPUT);
    EXPECT_EQ(tw_set_checked(0), TW_OK);
    tw_mod_release(score);
}

TEST(CApi, GradientsOfCapturesComeInOrder) {
    const Tensor x = random_tensor(f32, {1, 2, 8, 4}, 1), table = random_tensor(f32, {8}, 2),
                 slopes = random_tensor(f32, {2}, 3);
    const char* text = "score * slopes[h] + table[kv]";
    AttentionOptions options;
    options.score_mod = parse_mod(text, {{"table", table}, {"slopes", slopes}}, Mod::Kind::score);
    const AttentionOutput forward = attention(x, x, x, options);
    const AttentionGradients g = attention_backward(x, x, x, forward, x, options);
    const View cx(x), ctable(table), cslopes(slopes), out(forward.out), lse(forward.lse);
    const char* names[] = {"table", "slopes"};
    const DLTensor* arrays[] = {ctable, cslopes};
    tw_mod* score = nullptr;
    ASSERT_EQ(tw_parse_mod(text, TW_MOD_SCORE, names, arrays, 2, &score), TW_OK);
    tw_attention_options given;
    tw_attention_options_init(&given);
    given.score_mod = score;
    DLManagedTensor* captured[2] = {nullptr, nullptr};
    ASSERT_EQ(tw_attention_backward(cx, cx, cx, out, lse, cx, nullptr, &given, nullptr, nullptr,
                                    nullptr, nullptr, captured, 2),
              TW_OK);
    for (int i = 0; i < 2; ++i) {
        Result result;
        *static_cast<DLManagedTensor**>(result) = captured[i];
        result.expect("captured", g.captured[static_cast<std::size_t>(i)]);
    }
    tw_mod_release(score);
}

TEST(CApi, NormsTakeAndGiveEverything) {
    const Tensor x = random_tensor(f32, {5, 12}, 1), residual = random_tensor(f32, {5, 12}, 2),
                 weight = random_tensor(f32, {12}, 3), bias = random_tensor(f32, {12}, 4),
                 dy = random_tensor(f32, {5, 12}, 5), dsum = random_tensor(f32, {5, 12}, 6);
    const View cx(x), cresidual(residual), cweight(weight), cbias(bias), cdy(dy), cdsum(dsum);
    const NormOptions options{.eps = 0.1, .residual = residual};
    {
        SCOPED_TRACE("rms_norm");
        const NormOutput wanted = rms_norm(x, weight, options);
        Result y, sum, deviation, dx, dweight;
        ASSERT_EQ(tw_rms_norm(cx, cweight, 0.1, cresidual, y, sum, deviation), TW_OK);
        y.expect("y", wanted.y);
        sum.expect("sum", wanted.sum);
        deviation.expect("inverse deviation", wanted.inverse_deviation);
        const NormGradients g = rms_norm_backward(wanted, weight, dy, dsum, {.eps = 0.1});
        ASSERT_EQ(tw_rms_norm_backward(sum, deviation, cweight, 0.1, cdy, cdsum, dx, dweight),
                  TW_OK);
        dx.expect("dx", g.x);
        dweight.expect("dweight", g.weight);
    }
    {
        SCOPED_TRACE("layer_norm");
        const NormOutput wanted = layer_norm(x, weight, bias, options);
        Result y, sum, mean, deviation, dx, dweight, dbias;
        ASSERT_EQ(tw_layer_norm(cx, cweight, cbias, 0.1, cresidual, y, sum, mean, deviation),
                  TW_OK);
        y.expect("y", wanted.y);
        sum.expect("sum", wanted.sum);
        mean.expect("mean", wanted.mean);
        deviation.expect("inverse deviation", wanted.inverse_deviation);
        const NormGradients g = layer_norm_backward(wanted, weight, bias, dy, dsum, {.eps = 0.1});
        ASSERT_EQ(tw_layer_norm_backward(sum, mean, deviation, cweight, cbias, 0.1, cdy, cdsum, dx,
                                         dweight, dbias),
                  TW_OK);
        dx.expect("dx", g.x);
        dweight.expect("dweight", g.weight);
        dbias.expect("dbias", g.bias);
    }
}

TEST(CApi, MasksHaveTheirBlocks) {
    tw_mod* causal = nullptr;
    tw_mask* mask = nullptr;
    ASSERT_EQ(tw_parse_mod("causal", TW_MOD_MASK, nullptr, nullptr, 0, &causal), TW_OK);
    ASSERT_EQ(tw_create_block_mask(causal, 2, 3, 100, 300, 32, 64, &mask), TW_OK);
    const BlockMask wanted = create_block_mask(masks::causal(), 2, 3, 100, 300, {32, 64});
    double sparsity = 0;
    std::int64_t nbytes = 0;
    EXPECT_EQ(tw_mask_describe(mask, &sparsity, &nbytes), TW_OK);
    EXPECT_EQ(sparsity, wanted.sparsity());
    EXPECT_EQ(nbytes, wanted.nbytes());
    tw_mask_release(mask);
    tw_mod_release(causal);
}

}  // namespace
}  // namespace tilewright
