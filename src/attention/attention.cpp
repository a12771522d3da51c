// Attention forward on tensors: chooses a program, runs it.
#include "tilewright/attention.h"

#include <limits>
#include <tuple>

#include "attention/problem.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"

namespace tilewright {
namespace attn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void append(std::vector<Tensor>& list, const std::vector<Tensor>& tail) {
    list.insert(list.end(), tail.begin(), tail.end());
}

void decode(const Problem& p, const AttentionOutput& result) {
    const Call scan = cached(std::tuple(p.options, p.features.key()),
                             [&] { return tiles::decode(p.options, p.features); });
    const bool has_sinks = p.sinks.defined();
    const Call combine = cached(std::tuple(p.options, has_sinks, p.value.dtype()), [&] {
        return tiles::decode_combine(p.options, has_sinks, p.value.dtype());
    });
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
    std::vector<Tensor> inputs{grouped(p.query), p.key, p.value};
    append(inputs, p.extras());
    const std::vector<Tensor> parts = scan.run(inputs);
    const Tensor sinks =
        has_sinks ? p.sinks.contiguous().reshape({p.kv_heads, p.options.group}) : Tensor();
    combine.into({grouped(result.out), grouped(result.lse), grouped(result.max_scores)},
                 {parts[0], parts[1], parts[2], sinks});
}

void forward(Problem p, const AttentionOutput& result) {
    if (p.empty()) return;
    if (p.kv_length == 0) {
        // Rows that see no key: 0, or the sink alone.
        Tensor out = result.out, lse = result.lse, max_scores = result.max_scores;
        out.fill(0);
        max_scores.fill(-kInfinity);
        lse.fill(-kInfinity);
        if (p.sinks.defined()) {
            lse.copy_from(p.sinks.to(lse.dtype())
                              .contiguous()
                              .reshape({1, p.query_heads, 1})
                              .broadcast_to(lse.shape()));
        }
        return;
    }
    p.make_plan(false);
    const bool plain_masks = p.options.right() < 0 && !p.features.segments;
    const bool by_blocks = !p.features.score.loads.empty() || !p.features.mask.loads.empty();
    if (p.query_length == 1 && plain_masks && !p.features.plan && !by_blocks &&
        p.features.dropout == 0) {
        return decode(p, result);
    }
    const bool long_queries = p.query_length >= 64;
    const Call call = cached(std::tuple(p.options, p.features.key(), long_queries),
                             [&] { return tiles::forward(p.options, p.features, long_queries); });
    std::vector<Tensor> inputs{p.query, p.key, p.value, p.segment_ids, p.kv_segment_ids, p.sinks};
    append(inputs, p.extras());
    call.into({result.out, result.lse, result.max_scores}, inputs);
}

}  // namespace
}  // namespace attn

AttentionOutput attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options) {
    using namespace attn;
    const Problem p = check(query, key, value, options);
    const Tensor::Dims rows{p.batch, p.query_heads, p.query_length};
    const DType sums = tiles::accumulator(query.dtype());
    const AttentionOutput result{
        empty_like(value.dtype(), {p.batch, p.query_heads, p.query_length, p.value_dim},
                   options.layout),
        Tensor::empty(sums, rows), Tensor::empty(sums, rows)};
    if (p.packed()) {
        for (std::size_t n = 0; n + 1 < p.starts.size(); ++n) {
            const Problem part = p.sequence(n);
            const auto own = [&](const Tensor& x) {
                return rows_of(x, p.starts[n], part.query_length);
            };
            forward(part, {own(result.out), own(result.lse), own(result.max_scores)});
        }
    } else {
        forward(p, result);
    }
    return {to_bhsd(result.out, options.layout), result.lse, result.max_scores};
}

}  // namespace tilewright
