// Attention forward on tensors: chooses a program, runs it.
#include "tilewright/attention.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "attention/engine.h"
#include "attention/problem.h"
#include "attention/sm90/serve.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"
#include "attention/tune.h"
#include "run/overlap.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright {
namespace attn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void append(std::vector<Tensor>& list, const std::vector<Tensor>& tail) {
    list.insert(list.end(), tail.begin(), tail.end());
}

/// True when a mod reads captured arrays in blocks of the program's pairs.
bool loads_blocks(const tiles::Features& features) {
    return !features.score.loads.empty() || !features.mask.loads.empty();
}

/// Queries of a program: as many as share each block of keys while they fit a core's cache and
/// programs stay many. A matter of shapes alone, so that the result does not depend on the machine.
std::int64_t forward_block(const Problem& p) {
    constexpr std::int64_t kMostElements = 16384, kPrograms = 128;
    std::int64_t block = p.options.block_q;
    const std::int64_t widest = std::max(p.head_dim, p.value_dim);
    if (p.on_gpu()) {
        // Tensor cores want 32 rows for each of four warps, where registers hold them.
        const bool fits = size_of(p.query.dtype()) == 2 && widest <= 128;
        const std::int64_t programs = p.batch * p.query_heads * (p.query_length / (2 * block));
        return fits && block == 64 && programs >= kPrograms ? 2 * block : block;
    }
    const auto fits = [&](std::int64_t rows) {
        return rows <= p.query_length && rows * widest <= kMostElements &&
               p.batch * p.query_heads * (p.query_length / rows) >= kPrograms;
    };
    while (block >= 64 && block < 256 && fits(2 * block)) block *= 2;
    return block;
}

/// Under diagonals, long sequences on a CPU have long blocks inside and shorter ones where a
/// diagonal cuts through them; with fewer queries at once, less of those lies outside.
void use_edges(const Problem& p, tiles::Options& options) {
    constexpr std::int64_t kEdge = 128, kMostQueries = 128;
    const bool diagonals = options.right() >= 0 || options.window_left >= 0;
    if (p.on_gpu() || p.features.plan || p.features.segments || !diagonals || !p.is_long()) return;
    options.edge_k = kEdge;
    options.block_k = 2 * kEdge;
    options.block_q = std::min(options.block_q, kMostQueries);
}

/// The queries of a program with a mask as data: those of others, unless larger tiles would cover
/// more pairs that do not attend.
std::int64_t plan_block(const Problem& p) {
    const std::int64_t least = p.options.block_q;
    // 128 columns and bits of a mask are more than registers hold for two tiles of 16 rows a warp.
    const bool is_wide = p.on_gpu() && std::max(p.head_dim, p.value_dim) > 64;
    if (loads_blocks(p.features) || is_wide) return least;
    const auto pairs = [&](std::int64_t block_q) {
        Problem q = p;
        q.options.block_q = block_q;
        q.device = Device{};  // no copy of a plan that is only counted
        q.make_plan(false);
        return static_cast<double>((q.plan->partial_tiles + q.plan->full_tiles) * block_q);
    };
    const double most_pairs = p.on_gpu() ? 1.2 : 1.05;  // what a pair costs less in larger tiles
    std::int64_t block = forward_block(p);
    while (block > least && pairs(block) > most_pairs * pairs(least)) block /= 2;
    return std::max(block, least);
}

/// True when few queries attend to every key: then the keys are split over programs, and all
/// queries of a group of heads, at one stride, are the rows of one block.
bool is_decode(const Problem& p, const AttentionOutput& result) {
    constexpr std::int64_t kFewQueries = 15, kMostRows = 64;
    if (p.options.right() >= 0 || p.features.segments || p.features.plan) return false;
    if (p.features.dropout != 0 || loads_blocks(p.features)) return false;
    if (p.query_length == 1) return true;
    const bool plain =
        p.options.window_left < 0 && !p.features.score && !p.features.mask && !p.sinks.defined();
    const auto one_stride = [&](const Tensor& x) {
        return p.options.group == 1 || x.strides()[1] == x.strides()[2] * p.query_length;
    };
    return plain && p.query_length <= kFewQueries &&
           p.options.group * p.query_length <= kMostRows && one_stride(p.query) &&
           one_stride(result.out) && one_stride(result.lse) && one_stride(result.max_scores);
}

void decode(const Problem& p, const AttentionOutput& result) {
    tiles::Options options = p.options;
    options.group *= p.query_length;
    const Call scan = cached(std::tuple(options, p.features.key()),
                             [&] { return tiles::decode(options, p.features); });
    const bool has_score{p.features.score}, has_sinks = p.sinks.defined();
    const Call combine = cached(std::tuple(options, has_score, has_sinks, p.value.dtype()), [&] {
        return tiles::decode_combine(options, has_score, has_sinks, p.value.dtype());
    });
    // The queries of a group's heads become the rows of one block.
    const auto grouped = [&](const Tensor& x) {  // (B, Hq, L[, n]) -> (B, Hkv, group * L[, n])
        Tensor::Dims shape{p.batch, p.kv_heads, options.group};
        Tensor::Dims strides{x.strides()[0], x.strides()[1] * p.options.group,
                             x.strides()[p.query_length == 1 ? 1 : 2]};
        if (x.rank() == 4) {
            shape.push_back(x.dim(3));
            strides.push_back(x.strides()[3]);
        }
        return Tensor::from_data(x.raw(), x.dtype(), shape, strides, x.owner(), x.device());
    };
    std::vector<Tensor> inputs{grouped(p.query), p.key, p.value};
    append(inputs, p.extras());
    const std::vector<Tensor> parts = scan.run(inputs);
    const Tensor sinks =
        has_sinks ? p.sinks.contiguous().reshape({p.kv_heads, p.options.group}) : Tensor();
    combine.into({grouped(result.out), grouped(result.lse), grouped(result.max_scores)},
                 {parts[0], parts[1], parts[2], parts[3], sinks});
}

/// Rows that see no key: 0, or the sink alone.
void forward_without_keys(const Problem& p, const AttentionOutput& result) {
    Tensor out = result.out, lse = result.lse, max_scores = result.max_scores;
    out.fill(0);
    if (max_scores.defined()) max_scores.fill(-kInfinity);
    lse.fill(-kInfinity);
    if (!p.sinks.defined()) return;
    lse.copy_from(p.sinks.to(lse.dtype())
                      .contiguous()
                      .reshape({1, p.query_heads, 1})
                      .broadcast_to(lse.shape()));
}

/// Computes blocks of queries again whose result is infinite or NaN, in programs that keep keys
/// apart that none of their queries attends. What this returns runs them, after their kernel has
/// been compiled in the background.
std::function<void()> repair(Problem p, AttentionOutput result) {
    p.use_warp_blocks();
    p.make_plan(false);
    if (!result.max_scores.defined()) {
        result.max_scores = Tensor::empty(result.lse.dtype(), result.lse.shape(), p.device);
    }
    tiles::Options options = p.options;
    options.isolation = tiles::Isolation::repair;
    const bool long_queries = p.query_length >= 64;
    const Call call = cached(std::tuple(options, p.features.key(), long_queries),
                             [&] { return tiles::forward(options, p.features, long_queries); });
    std::vector<Tensor> inputs{p.query, p.key, p.value, p.segment_ids, p.kv_segment_ids, p.sinks};
    append(inputs, p.extras());
    const std::vector<Tensor> outputs{result.out, result.lse, result.max_scores};
    append(inputs, outputs);
    if (call.num_traces() == 0) call.compile_ahead(outputs, inputs);
    return [=] { call.into(outputs, inputs); };
}

/// Tile programs on one sequence.
void forward(Problem p, const AttentionOutput& given) {
    if (p.empty()) return;
    if (p.kv_length == 0) return forward_without_keys(p, given);
    AttentionOutput result = given;
    if (!result.max_scores.defined()) {
        result.max_scores = Tensor::empty(result.lse.dtype(), result.lse.shape(), p.device);
    }
    const AttentionBlocks blocks =
        tuned_blocks(p, "forward", p.forward_blocks, [&](const AttentionBlocks& trial) {
            Problem tried = p;
            tried.forward_blocks = trial;
            forward(std::move(tried), result);
        });
    p.use_blocks(blocks);
    if (blocks.q == 0 && p.block_mask.defined()) p.options.block_q = plan_block(p);
    p.make_plan(false);
    if (is_decode(p, result)) return decode(p, result);
    const bool long_queries = p.query_length >= 64;
    tiles::Options options = p.options;
    if (blocks.q == 0 && !p.features.plan && !loads_blocks(p.features))
        options.block_q = forward_block(p);
    if (blocks.q == 0 && blocks.kv == 0 && !loads_blocks(p.features)) use_edges(p, options);
    // Programs of warpgroups have one form of their loop.
    std::function<void()> finish = [] {};
    if (options.guarded) {
        options.isolation = tiles::Isolation::none;
        if (p.features.hides_keys(options)) finish = repair(p, result);
    }
    const Call call = cached(std::tuple(options, p.features.key(), long_queries),
                             [&] { return tiles::forward(options, p.features, long_queries); });
    std::vector<Tensor> inputs{p.query, p.key, p.value, p.segment_ids, p.kv_segment_ids, p.sinks};
    append(inputs, p.extras());
    call.into({result.out, result.lse, result.max_scores}, inputs);
    finish();
}

}  // namespace
}  // namespace attn

namespace attn {
namespace {

void run_forward(const Problem& p, const AttentionOutput& result) {
    if (p.empty()) return;
    if (p.kv_length == 0 && !p.packed()) return forward_without_keys(p, result);
    const auto each_sequence = [&](const auto& run) {
        if (!p.packed()) return run(p, result);
        p.for_each_sequence([&](std::size_t n) {
            const Problem part = p.sequence(n);
            const auto own = [&](const Tensor& x) {
                return rows_of(x, p.starts[n], part.query_length);
            };
            run(part, {own(result.out), own(result.lse), own(result.max_scores)});
        });
    };
    if (!uses_sm90(p, Pass::forward)) return each_sequence(forward);
    // The engine keeps keys apart that data hides, not those of a mask that it evaluates.
    std::vector<std::function<void()>> repairs;
    if (p.features.mask) {
        each_sequence([&](const Problem& part, const AttentionOutput& own) {
            if (!part.empty() && part.kv_length > 0) repairs.push_back(repair(part, own));
        });
    }
    sm90::run_forward(p, result);
    for (const auto& run : repairs) run();
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
                   options.layout, p.device),
        Tensor::empty(sums, rows, p.device),
        p.on_gpu() && !p.max_scores ? Tensor() : Tensor::empty(sums, rows, p.device)};
    run_forward(p, result);
    return {to_bhsd(result.out, options.layout), result.lse, result.max_scores};
}

void attention_into(const AttentionOutput& out, const Tensor& query, const Tensor& key,
                    const Tensor& value, const AttentionOptions& options) {
    using namespace attn;
    Problem p = check(query, key, value, options);
    const Tensor::Dims rows{p.batch, p.query_heads, p.query_length};
    const DType sums = tiles::accumulator(query.dtype());
    const Tensor result = check_output("out.out", out.out, value.dtype(),
                                       {p.batch, p.query_heads, p.query_length, p.value_dim},
                                       options.layout, p.device);
    check_rows("out.lse", out.lse, sums, rows, p.device);
    if (out.max_scores.defined())
        check_rows("out.max_scores", out.max_scores, sums, rows, p.device);
    const run::Named targets[] = {
        {"out.out", result}, {"out.lse", out.lse}, {"out.max_scores", out.max_scores}};
    const run::Named sources[] = {{"query", query}, {"key", key}, {"value", value}};
    run::check_targets("attention", targets, sources);
    p.max_scores = out.max_scores.defined();
    run_forward(p, {result, out.lse, out.max_scores});
}

}  // namespace tilewright
