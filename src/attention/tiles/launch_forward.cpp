// The forward pass by tile programs: which programs run, and their scratch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "attention/tensors.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/engine.h"
#include "attention/tiles/forward.h"
#include "attention/tiles/hidden_keys.h"
#include "attention/tiles/launch.h"
#include "support/debug_log.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void append(std::vector<Tensor>& list, const std::vector<Tensor>& tail) {
    list.insert(list.end(), tail.begin(), tail.end());
}

/// The results of decode's chunks, or those of a forward pass that splits its keys.
PartShapes parts_of(const AttentionSpec& spec, const TilesConfig& config) {
    if (config.decode) {
        return part_shapes({spec.batch, spec.kv_heads, spec.group() * spec.query_length},
                           spec.kv_length, kDecodeChunk, spec.value_dim);
    }
    return part_shapes({spec.batch, spec.query_heads, spec.query_length}, spec.kv_length,
                       config.options.split_k, spec.value_dim);
}

std::int64_t bytes_of(const PartShapes& shapes, DType sums) {
    return Scratch::bytes(sums, shapes.out) + 3 * Scratch::bytes(sums, shapes.rows);
}

std::vector<Tensor> take_parts(const PartShapes& shapes, DType sums, Scratch& scratch) {
    std::vector<Tensor> parts{scratch.take(sums, shapes.out)};
    for (int i = 0; i < 3; ++i) parts.push_back(scratch.take(sums, shapes.rows));
    return parts;
}

void decode(const AttentionSpec& spec, const TilesConfig& config, const AttentionBuffers& buffers,
            const AttentionOutput& result, Scratch& scratch) {
    Options options = config.options;
    options.group *= spec.query_length;
    const Features& features = config.features;
    const Call scan = cached(std::tuple(options, features.key()),
                             [&] { return tiles::decode(options, features); });
    const bool has_score{features.score}, has_sinks = buffers.sinks.defined();
    const Call combine = cached(std::tuple(options, has_score, has_sinks, spec.dtype), [&] {
        return decode_combine(options, has_score, has_sinks, spec.dtype);
    });
    // The queries of a group's heads become the rows of one block.
    const auto grouped = [&](const Tensor& x) {  // (B, Hq, L[, n]) -> (B, Hkv, group * L[, n])
        Tensor::Dims shape{spec.batch, spec.kv_heads, options.group};
        Tensor::Dims strides{x.strides()[0], x.strides()[1] * spec.group(),
                             x.strides()[spec.query_length == 1 ? 1 : 2]};
        if (x.rank() == 4) {
            shape.push_back(x.dim(3));
            strides.push_back(x.strides()[3]);
        }
        return Tensor::from_data(x.raw(), x.dtype(), shape, strides, x.owner(), x.device());
    };
    std::vector<Tensor> inputs{grouped(buffers.query), buffers.key, buffers.value};
    append(inputs, extras(spec, buffers, features, {}));
    std::vector<Tensor> parts =
        take_parts(parts_of(spec, config), accumulator(spec.dtype), scratch);
    scan.into(parts, inputs);
    parts.push_back(has_sinks ? buffers.sinks.contiguous().reshape({spec.kv_heads, spec.group()})
                              : Tensor());
    combine.into({grouped(result.out), grouped(result.lse), grouped(result.max_scores)}, parts);
}

/// The forward program with its keys split over programs (split-KV), then the one that combines
/// their results.
void split(const AttentionSpec& spec, const TilesConfig& config, const Options& options,
           const AttentionBuffers& buffers, const AttentionOutput& result, const Plan& plan,
           Scratch& scratch) {
    constexpr std::int64_t kRows = 16;
    debug_log("attention", "tile programs: split-KV by {}, {} keys each",
              ceil_div(spec.kv_length, options.split_k), options.split_k);
    const Features& features = config.features;
    const bool long_queries = has_long_queries(spec), has_score{features.score},
               has_sinks = buffers.sinks.defined();
    Features without_sinks = features;  // they belong to the sum of all parts
    without_sinks.sinks = false;
    const Call scan = cached(std::tuple(options, without_sinks.key(), long_queries),
                             [&] { return forward(options, without_sinks, long_queries); });
    const Call combine =
        cached(std::tuple(options, has_score, has_sinks, spec.dtype, kRows, long_queries), [&] {
            return decode_combine(options, has_score, has_sinks, spec.dtype, kRows, long_queries);
        });
    AttentionBuffers inputs = buffers;
    inputs.sinks = Tensor();
    std::vector<Tensor> parts =
        take_parts(parts_of(spec, config), accumulator(spec.dtype), scratch);
    scan.into(parts, forward_inputs(spec, inputs, without_sinks, plan));
    parts.push_back(has_sinks ? buffers.sinks.contiguous().reshape({spec.query_heads, 1})
                              : Tensor());
    combine.into({result.out, result.lse, result.max_scores}, parts);
}

/// Sets `additive`, `bounded` and `mark` for the score mod. True if sums may overflow, so that the
/// results need the repair pass.
bool use_bounds(Options& options, const AttentionSpec& spec, const Features& features) {
    constexpr double kUsual = 80, kMost = 145;  // of exponents; those of a soft cap of 50 fit
    // Exponents are differences of products that are rounded: off by up to 3.5e-4 up to here.
    constexpr double kLargest = 4096;
    if (!features.score) return false;
    options.additive =
        scales_in_exponent(options, false) && is_additive(features.score, options.scale);
    const std::optional<ScoreRange> range = score_range(features.score);
    if (!range || spec.dtype != bf16 || spec.max_scores) return false;
    const double exponents = (range->high - range->low) * kLog2E;
    const double largest = std::max(std::abs(range->low), std::abs(range->high));
    if (exponents > kMost || largest > kLargest) return false;
    options.bounded = true;
    options.mark = range->high - std::max(exponents - kUsual, 0.0) / kLog2E;
    return exponents > kUsual;
}

/// Rows without a key: 0, or only the sink.
void forward_without_keys(const AttentionSpec& spec, const AttentionBuffers& buffers) {
    const AttentionOutput& result = buffers.result;
    result.out.fill(0);
    if (result.max_scores.defined()) result.max_scores.fill(-kInfinity);
    result.lse.fill(-kInfinity);
    if (!buffers.sinks.defined()) return;
    Tensor lse = result.lse;
    lse.copy_from(buffers.sinks.to(lse.dtype())
                      .contiguous()
                      .reshape({1, spec.query_heads, 1})
                      .broadcast_to(lse.shape()));
}

}  // namespace

std::vector<Tensor> forward_inputs(const AttentionSpec& spec, const AttentionBuffers& buffers,
                                   const Features& features, const Plan& plan) {
    std::vector<Tensor> inputs{buffers.query,          buffers.key,
                               buffers.value,          buffers.segment_ids,
                               buffers.kv_segment_ids, buffers.sinks};
    append(inputs, extras(spec, buffers, features, plan));
    return inputs;
}

bool has_joined_rows(const AttentionSpec& spec, const AttentionBuffers& buffers) {
    const auto one_stride = [&](const Tensor& x) {
        return !x.defined() || spec.group() == 1 ||
               x.strides()[1] == x.strides()[2] * spec.query_length;
    };
    return one_stride(buffers.query) && one_stride(buffers.result.out) &&
           one_stride(buffers.result.lse) && one_stride(buffers.result.max_scores);
}

std::int64_t forward_workspace(const AttentionSpec& spec, const TilesConfig& config) {
    if (!spec.has_work()) return 0;
    const DType sums = accumulator(spec.dtype);
    std::int64_t bytes = 0;
    if (!spec.max_scores) {
        bytes += Scratch::bytes(sums, {spec.batch, spec.query_heads, spec.query_length});
    }
    if (!config.decode && config.options.split_k == 0) return bytes;
    return bytes + bytes_of(parts_of(spec, config), sums);
}

void launch_forward(const AttentionSpec& spec, const TilesConfig& config,
                    const AttentionBuffers& buffers) {
    if (spec.empty()) return;
    if (spec.kv_length == 0) return forward_without_keys(spec, buffers);
    Scratch scratch(buffers.workspace);
    AttentionOutput result = buffers.result;
    if (!result.max_scores.defined()) {
        result.max_scores = scratch.take(result.lse.dtype(), result.lse.shape());
    }
    if (config.decode) return decode(spec, config, buffers, result, scratch);
    const Features& features = config.features;
    Options options = config.options;
    if (config.warpgroups && is_mostly_whole(spec, buffers.block_mask, *config.warpgroups)) {
        options = *config.warpgroups;
    } else if (config.most_queries > 0) {
        options.block_q = planned_queries(spec, buffers.block_mask, config);
    }
    const Plan plan = make_plan(spec, buffers.block_mask, options, false);
    if (options.split_k > 0) return split(spec, config, options, buffers, result, plan, scratch);
    // Programs for warpgroups have only one form of their loop.
    std::function<void()> finish;
    if (options.guarded) {
        options.isolation = Isolation::none;
        const bool may_overflow = use_bounds(options, spec, features);
        if (features.hides_keys(options) || may_overflow) {
            AttentionBuffers repaired = buffers;
            repaired.result = result;
            finish = repair(spec, repaired, features);
        }
    }
    const bool long_queries = has_long_queries(spec);
    const Call call = cached(std::tuple(options, features.key(), long_queries),
                             [&] { return forward(options, features, long_queries); });
    call.into({result.out, result.lse, result.max_scores},
              forward_inputs(spec, buffers, features, plan));
    if (finish) finish();
}

std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers,
                             const Features& features) {
    const Options options = repair_options(spec, features);
    const Plan plan = make_plan(spec, buffers.block_mask, options, false);
    AttentionOutput result = buffers.result;
    if (!result.max_scores.defined()) {
        result.max_scores = Tensor::empty(result.lse.dtype(), result.lse.shape(), spec.device);
    }
    const bool long_queries = has_long_queries(spec);
    const Call call = cached(std::tuple(options, features.key(), long_queries),
                             [&] { return forward(options, features, long_queries); });
    std::vector<Tensor> inputs = forward_inputs(spec, buffers, features, plan);
    const std::vector<Tensor> outputs{result.out, result.lse, result.max_scores};
    append(inputs, outputs);
    if (call.num_traces() == 0) call.compile_ahead(outputs, inputs);
    return [=] { call.into(outputs, inputs); };
}

std::function<void()> repair(const AttentionSpec& spec, const AttentionBuffers& buffers) {
    const Features features = features_of(spec);
    if (!spec.packed()) return repair(spec, buffers, features);
    std::vector<std::function<void()>> repairs;
    for_each_sequence(
        spec,
        [&](std::size_t n) {
            const Work part = sequence(spec, buffers, n);
            if (part.spec.has_work()) repairs.push_back(repair(part.spec, part.buffers, features));
        },
        false);
    return [repairs = std::move(repairs)] {
        for (const auto& run : repairs) run();
    };
}

}  // namespace tilewright::attn::tiles
