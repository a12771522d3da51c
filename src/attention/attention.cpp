// Attention on tensors: checks the arguments, chooses a program, runs it.
#include "tilewright/attention.h"

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "attention/tiles/backward.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"
#include "support/check.h"

namespace tilewright {
namespace attn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Checked arguments, as BHSD views with unit stride in the last dimension.
struct Problem {
    Tensor query, key, value;
    Tensor segment_ids, kv_segment_ids;  ///< both given or both not, of one dtype
    std::int64_t batch, query_heads, kv_heads, query_length, kv_length, head_dim, value_dim;
    tiles::Options options;

    bool segments() const { return segment_ids.defined(); }
    bool empty() const { return batch * query_heads * query_length == 0; }
};

Tensor to_bhsd(const Tensor& x, Layout layout) {
    return layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
}

/// A new tensor of BHSD shape `shape` whose memory is in `layout`, as a BHSD view.
Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout) {
    if (layout == Layout::bhsd) return Tensor::empty(dtype, shape);
    return Tensor::empty(dtype, {shape[0], shape[2], shape[1], shape[3]}).transpose({0, 2, 1, 3});
}

Tensor with_unit_stride(const Tensor& x) {
    return x.size() == 0 || x.dim(-1) == 1 || x.strides().back() == 1 ? x : x.contiguous();
}

void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected) {
    if (tensor.shape() == expected) return;
    user_error("attention", "expected {} of shape ({}) but got {}", argument,
               fmt::join(expected, ", "), tensor.type_name());
}

Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout) {
    if (!tensor.defined()) user_error("attention", "expected {} but it was left out", argument);
    if (tensor.rank() != 4)
        user_error("attention", "expected {} of rank 4 but got {}", argument, tensor.type_name());
    if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::f16 && dtype != DType::bf16)
        user_error("attention", "expected {} of f32, f64, f16 or bf16 but got {}", argument,
                   tensor.type_name());
    if (tensor.dtype() != dtype)
        user_error("attention", "expected {} of dtype {}, that of the query, but got {}", argument,
                   name(dtype), tensor.type_name());
    return with_unit_stride(to_bhsd(tensor, layout));
}

void check_segments(const AttentionOptions& options, Problem& p) {
    if (!options.segment_ids.defined()) {
        if (options.kv_segment_ids.defined())
            user_error("attention", "expected segment_ids with kv_segment_ids but got none");
        return;
    }
    const auto check = [&](const char* argument, const Tensor& ids, std::int64_t length) {
        expect_shape(argument, ids, {p.batch, length});
        if (!is_integer(ids.dtype()))
            user_error("attention", "expected {} of an integer dtype but got {}", argument,
                       ids.type_name());
        return ids.to(DType::i64).contiguous();
    };
    p.segment_ids = check("segment_ids", options.segment_ids, p.query_length);
    p.kv_segment_ids =
        options.kv_segment_ids.defined()
            ? check("kv_segment_ids", options.kv_segment_ids, p.kv_length)
            : check("segment_ids (as kv_segment_ids)", options.segment_ids, p.kv_length);
}

Problem check(const Tensor& query, const Tensor& key, const Tensor& value,
              const AttentionOptions& options) {
    Problem p;
    p.query = check_input("query", query, query.dtype(), options.layout);
    p.key = check_input("key", key, query.dtype(), options.layout);
    p.value = check_input("value", value, query.dtype(), options.layout);
    p.batch = p.query.dim(0);
    p.query_heads = p.query.dim(1);
    p.query_length = p.query.dim(2);
    p.head_dim = p.query.dim(3);
    p.kv_heads = p.key.dim(1);
    p.kv_length = p.key.dim(2);
    p.value_dim = p.value.dim(3);
    if (p.head_dim < 1 || p.value_dim < 1)
        user_error("attention", "expected head dimensions of at least 1 but got {} and {}",
                   query.type_name(), value.type_name());
    if (p.key.dim(0) != p.batch || p.key.dim(3) != p.head_dim)
        user_error("attention",
                   "expected key with the query's batch and head dimension, {} and {}, "
                   "but got {}",
                   p.batch, p.head_dim, key.type_name());
    if (p.value.dim(0) != p.batch || p.value.dim(1) != p.kv_heads || p.value.dim(2) != p.kv_length)
        user_error("attention",
                   "expected value with the key's batch, heads and length, {}, {} and "
                   "{}, but got {}",
                   p.batch, p.kv_heads, p.kv_length, value.type_name());
    if (p.kv_heads == 0 ? p.query_heads != 0 : p.query_heads % p.kv_heads != 0)
        user_error("attention",
                   "expected query heads to be a multiple of kv heads but got {} and {}",
                   p.query_heads, p.kv_heads);
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // positions are i32 in the programs
    if (p.query_length > kLongest || p.kv_length > kLongest)
        user_error("attention", "expected lengths up to {} but got {} and {}", kLongest,
                   p.query_length, p.kv_length);
    if (options.window.left < -1 || options.window.right < -1)
        user_error("attention", "expected window bounds of at least -1 but got ({}, {})",
                   options.window.left, options.window.right);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
    if (!std::isfinite(scale)) user_error("attention", "expected a finite scale but got {}", scale);
    check_segments(options, p);

    p.options.scale = scale;
    p.options.causal = options.causal;
    // A window as wide as the sequence bounds nothing.
    const auto bound = [](std::int64_t window, std::int64_t length) {
        return window >= length ? -1 : window;
    };
    p.options.window_left = bound(options.window.left, p.query_length);
    p.options.window_right = bound(options.window.right, p.kv_length);
    p.options.group = p.kv_heads == 0 ? 1 : p.query_heads / p.kv_heads;
    p.options.block_q = std::clamp<std::int64_t>(p.query_length, 1, 64);
    p.options.block_k = 16;
    while (p.options.block_k < 128 && p.options.block_k < p.kv_length) p.options.block_k *= 2;
    p.options.interpret = options.checked;
    return p;
}

/// The call made by `make` for this key, kept for the next time with its compiled programs. Every
/// lambda has a type, hence a store, of its own.
template <typename Key, typename Make>
Call cached(const Key& key, Make make) {
    static std::mutex mutex;
    static std::map<Key, Call> calls;
    const std::lock_guard lock(mutex);
    const auto found = calls.find(key);
    return found != calls.end() ? found->second : calls.emplace(key, make()).first->second;
}

AttentionOutput decode(const Problem& p, AttentionOutput result) {
    const Call scan = cached(p.options, [&] { return tiles::decode(p.options); });
    const Call combine = cached(std::tuple(p.options, p.value.dtype()),
                                [&] { return tiles::decode_combine(p.options, p.value.dtype()); });
    // The heads of a group become the rows of one block of queries.
    const auto grouped = [&](const Tensor& x) {  // (B, Hq, 1[, n]) -> (B, Hkv, group[, n])
        Tensor::Dims shape{p.batch, p.kv_heads, p.options.group};
        Tensor::Dims strides{x.strides()[0], x.strides()[1] * p.options.group, x.strides()[1]};
        if (x.rank() == 4) {
            shape.push_back(x.dim(3));
            strides.push_back(x.strides()[3]);
        }
        return Tensor::from_data(x.raw(), x.dtype(), shape, strides);
    };
    const auto [parts, maxima, sums] = scan.outputs<3>(grouped(p.query), p.key, p.value);
    combine.into({grouped(result.out), grouped(result.lse), grouped(result.max_scores)},
                 {parts, maxima, sums});
    return result;
}

}  // namespace
}  // namespace attn

AttentionOutput attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options) {
    using namespace attn;
    Problem p = check(query, key, value, options);
    const Tensor::Dims rows{p.batch, p.query_heads, p.query_length};
    const DType sums = tiles::accumulator(query.dtype());
    AttentionOutput result{
        empty_like(value.dtype(), {p.batch, p.query_heads, p.query_length, p.value_dim},
                   options.layout),
        Tensor::empty(sums, rows), Tensor::empty(sums, rows)};
    const AttentionOutput returned{to_bhsd(result.out, options.layout), result.lse,
                                   result.max_scores};
    if (p.empty()) return returned;
    if (p.kv_length == 0) {
        result.out.fill(0);
        result.lse.fill(-kInfinity);
        result.max_scores.fill(-kInfinity);
        return returned;
    }
    if (p.query_length == 1 && p.options.right() < 0 && !p.segments()) {
        decode(p, result);
        return returned;
    }
    const bool long_queries = p.query_length >= 64;
    const Call call = cached(std::tuple(p.options, p.segments(), long_queries),
                             [&] { return tiles::forward(p.options, p.segments(), long_queries); });
    call.into({result.out, result.lse, result.max_scores},
              {p.query, p.key, p.value, p.segment_ids, p.kv_segment_ids});
    return returned;
}

AttentionGradients attention_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOutput& forward, const Tensor& dout,
                                      const AttentionOptions& options, const Tensor& dlse) {
    using namespace attn;
    Problem p = check(query, key, value, options);
    const Tensor out = check_input("forward.out", forward.out, value.dtype(), options.layout);
    const Tensor gradient = check_input("dout", dout, value.dtype(), options.layout);
    const Tensor::Dims rows{p.batch, p.query_heads, p.query_length};
    const Tensor::Dims full{p.batch, p.query_heads, p.query_length, p.value_dim};
    expect_shape("forward.out", out, full);
    expect_shape("dout", gradient, full);
    expect_shape("forward.lse", forward.lse, rows);
    if (dlse.defined()) expect_shape("dlse", dlse, rows);
    AttentionGradients result{empty_like(query.dtype(), p.query.shape(), options.layout),
                              empty_like(key.dtype(), p.key.shape(), options.layout),
                              empty_like(value.dtype(), p.value.shape(), options.layout)};
    const AttentionGradients returned{to_bhsd(result.query, options.layout),
                                      to_bhsd(result.key, options.layout),
                                      to_bhsd(result.value, options.layout)};
    if (p.empty() || p.kv_length == 0) {
        for (const Tensor& gradients : {result.query, result.key, result.value}) gradients.fill(0);
        return returned;
    }
    // Enough programs for many cores when there are few heads; a matter of shapes alone, so that
    // the result does not depend on the machine.
    constexpr std::int64_t kPrograms = 16, kLeastKeys = 512;
    const std::int64_t splits = std::clamp<std::int64_t>(
        kPrograms / (p.batch * p.kv_heads), 1, (p.kv_length + kLeastKeys - 1) / kLeastKeys);
    const Call preprocess = cached(std::tuple(p.options, dlse.defined()), [&] {
        return tiles::backward_preprocess(p.options, dlse.defined());
    });
    const Call main = cached(std::tuple(p.options, p.segments(), splits),
                             [&] { return tiles::backward(p.options, p.segments(), splits); });
    const Call sum = cached(std::tuple(p.options, query.dtype()),
                            [&] { return tiles::sum_parts(p.options, query.dtype()); });
    const auto [log2_sum, delta] = preprocess.outputs<2>(out, gradient, forward.lse, dlse);
    Tensor::Dims parts_shape = p.query.shape();
    parts_shape.insert(parts_shape.begin(), splits);
    const Tensor parts = Tensor::empty(tiles::accumulator(query.dtype()), parts_shape);
    main.into({parts, result.key, result.value}, {p.query, p.key, p.value, gradient, log2_sum,
                                                  delta, p.segment_ids, p.kv_segment_ids});
    sum.into({result.query}, {parts});
    return returned;
}

}  // namespace tilewright
