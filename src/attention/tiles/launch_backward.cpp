// The backward pass by tile programs: which programs run, their scratch, and shared sums.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "attention/tensors.h"
#include "attention/tiles/backward.h"
#include "attention/tiles/forward.h"
#include "attention/tiles/hidden_keys.h"
#include "attention/tiles/launch.h"
#include "run/clear.h"
#include "run/recorder.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

/// The gradients of sinks and captures, added over all parts of a call in order.
class SharedSums {
  public:
    SharedSums(const AttentionSpec& spec, const AttentionBuffers& buffers)
        : dtype_(accumulator(spec.dtype)), sinks_{buffers.sinks_gradient} {
        for (const Tensor& total : buffers.captured_gradients) captured_.push_back({total});
    }

    /// True if no part of the call adds anything.
    bool is_empty() const {
        return !sinks_.total.defined() &&
               std::none_of(captured_.begin(), captured_.end(),
                            [](const Sum& sum) { return sum.total.defined(); });
    }

    /// Where a part writes the gradient of the sinks of all heads, which `add_sinks` then adds.
    Tensor sinks_part() const {
        const Tensor& total = sinks_.total;
        return sinks_.used ? Tensor::empty(dtype_, total.shape(), total.device()) : total;
    }
    void add_sinks(const Options& options, const Tensor& part) {
        if (std::exchange(sinks_.used, true)) add(options, sinks_.total, part);
    }

    /// Adds the copies of one buffer, (copies, dimensions of the array...).
    void add_copies(const Options& options, std::size_t capture, const Tensor& copies) {
        Sum& sum = captured_[capture];
        const std::int64_t size = sum.total.size();
        if (size == 0) return;
        const Tensor rows = copies.reshape({copies.dim(0), size});
        if (std::exchange(sum.used, true)) {
            const Tensor part = Tensor::empty(dtype_, {size}, rows.device());
            sum_rows(options, rows, part);
            add(options, sum.total, part);
        } else {
            sum_rows(options, rows, sum.total.reshape({size}));
        }
    }

    /// Clears the sums to which nothing was added.
    void finish() const {
        if (sinks_.total.defined() && !sinks_.used) run::clear(sinks_.total);
        for (const Sum& sum : captured_) {
            if (sum.total.defined() && !sum.used) run::clear(sum.total);
        }
    }

  private:
    struct Sum {
        Tensor total;
        bool used = false;
    };

    /// Sums over the first dimension, in order.
    void sum_rows(const Options& options, const Tensor& rows, const Tensor& sum) const {
        const Call call =
            cached(std::tuple(options, dtype_), [&] { return sum_copies(options, dtype_); });
        call.into({sum}, {rows});
    }
    /// Uses only kernels, even for copies, so that it can be recorded.
    void add(const Options& options, const Tensor& total, const Tensor& part) const {
        const std::int64_t size = total.size();
        const Tensor pair = Tensor::empty(dtype_, {2, size}, total.device());
        sum_rows(options, total.reshape({1, size}), pair.select(0, 0));
        sum_rows(options, part.reshape({1, size}), pair.select(0, 1));
        sum_rows(options, pair, total.reshape({size}));
    }

    DType dtype_;
    Sum sinks_;
    std::vector<Sum> captured_;  ///< by capture; undefined if it has no gradient
};

/// The shape of dQ's f32 or f64 parts in a part of a call: in the order of accumulators, or row by
/// row.
Tensor::Dims parts_shape(const AttentionSpec& spec, const Options& options) {
    const std::int64_t splits = num_splits(options.gpu, spec.batch, spec.kv_heads, spec.kv_length);
    if (!options.fragments) {
        return {splits, spec.batch, spec.query_heads, spec.query_length, spec.head_dim};
    }
    const std::int64_t blocks = ceil_div(spec.query_length, options.block_q);
    return {options.unordered ? 1 : splits, spec.batch, spec.query_heads, blocks,
            options.block_q * spec.head_dim};
}

/// The shape of the copies of a captured array's gradient.
Tensor::Dims copies_shape(const AttentionSpec& spec, const Options& options,
                          const GradientBuffer& buffer) {
    const std::int64_t splits = num_splits(options.gpu, spec.batch, spec.kv_heads, spec.kv_length);
    Tensor::Dims shape = spec.score.captures[buffer.capture].shape;
    shape.insert(shape.begin(), buffer.copies(spec.batch, spec.kv_heads, splits));
    return shape;
}

/// What the main program reads for each row or block of rows; `shift` if `Features::shifted`,
/// `not_finite` if it looks for infinities.
struct Rows {
    Tensor log2_sum, delta, shift, not_finite;
};

/// The plans of the separate programs.
struct SeparatePlans {
    SeparatePlans(const AttentionSpec& spec, const BlockMask& mask, const Options& options) {
        Options sizes = options;
        sizes.block_q = options.step_q;
        of_keys = make_plan(spec, mask, sizes, true, true);
        sizes = options;
        sizes.block_k = options.step_k;
        of_queries = make_plan(spec, mask, sizes, false);
    }
    Plan of_keys, of_queries;
};

/// Calls for dK and dV: two where registers do not hold both sums.
std::vector<Options> calls_of_keys(const AttentionSpec& spec, const Options& options) {
    if (!options.key_gradient && !options.value_gradient) return {};
    if (!options.key_gradient || !options.value_gradient ||
        sums_fit(spec.head_dim, spec.value_dim)) {
        return {options};
    }
    std::vector<Options> calls{options, options};
    calls[0].value_gradient = calls[1].key_gradient = false;
    return calls;
}

/// dq, dk, dv of a part of a call by separate programs.
void run_separately(const AttentionSpec& spec, const AttentionBuffers& b, const Options& options,
                    const TilesConfig& config, const Features& features, const Rows& rows,
                    Scratch scratch, const std::function<void()>& preprocess) {
    struct Launch {
        Call call;
        std::vector<Tensor> outputs, inputs;
    };
    const SeparatePlans plans(spec, b.block_mask, options);
    Tensor k = b.key, v = b.value;
    const bool copies = features.hides_keys(options);
    if (copies) {
        k = scratch.take(spec.dtype, b.key.shape());
        v = scratch.take(spec.dtype, b.value.shape());
    }
    const auto inputs = [&](const Plan& plan) {
        std::vector<Tensor> all{
            b.query, k, v, b.dout, rows.log2_sum, rows.delta, b.segment_ids, b.kv_segment_ids};
        const std::vector<Tensor> last = extras(spec, b, features, plan, {});
        all.insert(all.end(), last.begin(), last.end());
        return all;
    };
    std::vector<Launch> launches;
    for (const Options& own : calls_of_keys(spec, options)) {
        const Call call = cached(std::tuple(own, features.key(), config.derivative_key), [&] {
            return backward_of_keys(own, features, config.derivative);
        });
        std::vector<Tensor> outputs;
        if (own.key_gradient) outputs.push_back(b.key_gradient);
        if (own.value_gradient) outputs.push_back(b.value_gradient);
        launches.push_back({call, std::move(outputs), inputs(plans.of_keys)});
    }
    if (options.query_gradient) {
        const Call call =
            cached(std::tuple(options, features.key(), config.derivative_key, true),
                   [&] { return backward_of_queries(options, features, config.derivative); });
        launches.push_back({call, {b.query_gradient}, inputs(plans.of_queries)});
    }
    for (const Launch& launch : launches) {
        if (launch.call.num_traces() == 0) launch.call.compile_ahead(launch.outputs, launch.inputs);
    }
    preprocess();
    if (copies) {
        const Call copy = cached(std::tuple(options, spec.dtype),
                                 [&] { return finite_copy(options, spec.dtype); });
        copy.into({k}, {b.key});
        copy.into({v}, {b.value});
    }
    for (const Launch& launch : launches) launch.call.into(launch.outputs, launch.inputs);
}

/// dq, dk, dv of a part of a call, and what it adds to the shared sums. `preprocess` gives log2_sum
/// and delta their values; kernels of a GPU are compiled meanwhile.
void run(const AttentionSpec& spec, const AttentionBuffers& b, const TilesConfig& config,
         const Features& features, const Plan& plan, const Rows& rows, Scratch scratch,
         const std::function<void()>& preprocess, SharedSums& shared) {
    const DType sums = accumulator(spec.dtype);
    const Options options = backward_options(spec, config);
    if (options.separate) {
        return run_separately(spec, b, options, config, features, rows, scratch, preprocess);
    }
    const ScoreDerivative& derivative = config.derivative;
    const Call main = cached(std::tuple(options, features.key(), config.derivative_key),
                             [&] { return tiles::backward(options, features, derivative); });
    Tensor parts;
    if (options.query_gradient) {
        parts = scratch.take(sums, parts_shape(spec, options));
        if (options.fragments) run::clear(parts);
    }
    std::vector<Tensor> inputs{b.query,       b.key,      b.value,       b.dout,
                               rows.log2_sum, rows.delta, b.segment_ids, b.kv_segment_ids};
    std::vector<Tensor> last = extras(spec, b, features, plan, rows.shift);
    last[Extra::not_finite] = rows.not_finite;
    inputs.insert(inputs.end(), last.begin(), last.end());
    std::vector<Tensor> outputs;
    for (const Tensor& wanted : {parts, b.key_gradient, b.value_gradient}) {
        if (wanted.defined()) outputs.push_back(wanted);
    }
    const std::size_t first_buffer = outputs.size();
    for (const GradientBuffer& buffer : derivative.buffers) {
        inputs.push_back(scratch.take(sums, copies_shape(spec, options, buffer)));
        run::clear(inputs.back());
        outputs.push_back(inputs.back());
    }
    if (options.fragments) inputs.push_back(parts);
    const std::int64_t queries = options.fragments ? spec.query_length : 0;
    const bool written = writes_first_products(options, features);
    const Call sum = cached(std::tuple(options, spec.dtype, written, queries),
                            [&] { return sum_parts(options, spec.dtype, written, queries); });
    if (spec.on_gpu() && !outputs.empty() && main.num_traces() == 0) {
        main.compile_ahead(outputs, inputs);
        if (options.query_gradient) sum.compile_ahead({b.query_gradient}, {parts});
    }
    preprocess();
    if (outputs.empty()) return;
    main.into(outputs, inputs);
    for (std::size_t i = 0; i < derivative.buffers.size(); ++i) {
        shared.add_copies(config.options, derivative.buffers[i].capture, outputs[first_buffer + i]);
    }
    if (options.query_gradient) sum.into({b.query_gradient}, {parts});
}

/// Without keys the softmax consists of the sink alone, and only lse depends on it.
void backward_without_keys(const AttentionSpec& spec, const AttentionBuffers& b,
                           const Options& options, SharedSums& shared) {
    for (const Tensor& gradient : {b.query_gradient, b.key_gradient, b.value_gradient}) {
        if (gradient.defined()) gradient.fill(0);
    }
    if (spec.empty() || !b.sinks.defined() || !b.dlse.defined()) return;
    const Tensor dlse = b.dlse.to(Device{});
    std::vector<double> sums(spec.query_heads);
    for (std::int64_t n = 0; n < spec.batch; ++n)
        for (std::int64_t h = 0; h < spec.query_heads; ++h)
            for (std::int64_t q = 0; q < spec.query_length; ++q) sums[h] += dlse.get({n, h, q});
    const Tensor part = shared.sinks_part();
    part.copy_from(Tensor::from_vector(sums, {spec.query_heads}, part.dtype()).to(spec.device));
    shared.add_sinks(options, part);
}

Tensor::Dims rows_shape(const AttentionSpec& spec) {
    return {spec.batch, spec.query_heads, spec.query_length};
}

Tensor::Dims blocks_shape(const AttentionSpec& spec, const Options& options) {
    return {spec.batch, spec.query_heads, ceil_div(spec.query_length, options.block_q)};
}

/// May a row's lse be too large to compute probabilities from? A recording is replayed with other
/// values.
bool may_have_large_rows(const AttentionSpec& spec, const Tensor& lse) {
    if (spec.on_gpu()) return false;
    if (run::Recorder::current() != nullptr) return true;
    const DType sums = accumulator(spec.dtype);
    const auto has = [](const auto* values, std::int64_t size) {
        return std::any_of(values, values + size,
                           [](double l) { return std::abs(l) >= kInexactLse && !std::isinf(l); });
    };
    const Tensor all = lse.to(sums).contiguous();
    return sums == f64 ? has(all.data<double>(), all.size()) : has(all.data<float>(), all.size());
}

/// The lse of scores minus a shift for each row: the largest score if scores are large, else 0.
struct ShiftedLse {
    Tensor shift, lse;
};
ShiftedLse shift_large_rows(const AttentionSpec& spec, const TilesConfig& config,
                            const AttentionBuffers& b) {
    const Options& options = config.options;
    const Features& features = config.features;
    const bool long_queries = has_long_queries(spec);
    const Plan plan = make_plan(spec, b.block_mask, options, false);
    const Call call = cached(std::tuple(options, features.key(), long_queries),
                             [&] { return row_sums(options, features, long_queries); });
    std::vector<Tensor> inputs = forward_inputs(spec, b, features, plan);
    inputs.push_back(b.result.lse);
    const std::vector<Tensor> results = call.run(inputs);
    return {results[0], results[1]};
}

/// Runs a call, or one of its packed sequences.
void launch_sequence(const AttentionSpec& spec, const TilesConfig& config,
                     const AttentionBuffers& b, SharedSums& shared) {
    const Options& options = config.options;
    if (!spec.has_work()) return backward_without_keys(spec, b, options, shared);
    Scratch scratch(b.workspace);
    ShiftedLse rows{{}, b.result.lse};
    std::optional<Features> of_shifted;
    if (may_have_large_rows(spec, rows.lse)) {
        rows = shift_large_rows(spec, config, b);
        of_shifted.emplace(config.features).shifted = true;
    }
    const bool shifted = of_shifted.has_value();
    const Features& features = shifted ? *of_shifted : config.features;
    const Plan plan = options.separate ? Plan() : make_plan(spec, b.block_mask, options, true);
    const bool has_dlse = b.dlse.defined(), looks = looks_for_infinities(options, features);
    const Call preprocess = cached(std::tuple(options, has_dlse, looks),
                                   [&] { return backward_preprocess(options, has_dlse, looks); });
    const DType sums = accumulator(spec.dtype);
    const Tensor log2_sum = scratch.take(sums, rows_shape(spec)),
                 delta = scratch.take(sums, rows_shape(spec)),
                 not_finite = looks ? scratch.take(boolean, blocks_shape(spec, options)) : Tensor();
    bool done = false;
    const auto preprocess_once = [&] {
        if (std::exchange(done, true)) return;
        std::vector<Tensor> in{b.result.out, b.dout, rows.lse, b.dlse}, out{log2_sum, delta};
        if (looks) {
            in.push_back(b.query);
            out.push_back(not_finite);
        }
        preprocess.into(out, in);
        if (!b.sinks.defined()) return;
        const Call sinks =
            cached(std::tuple(options, shifted), [&] { return sinks_backward(options, shifted); });
        const Tensor sinks_part = shared.sinks_part();
        sinks.into({sinks_part}, {b.sinks, rows.lse, delta, rows.shift});
        shared.add_sinks(options, sinks_part);
    };
    const std::int64_t batches = config.batches_at_once, heads = config.heads_at_once;
    if (batches == spec.batch && heads == spec.kv_heads) {
        return run(spec, b, config, features, plan, {log2_sum, delta, rows.shift, not_finite},
                   scratch, preprocess_once, shared);
    }
    for (std::int64_t n = 0; n < spec.batch; n += batches) {
        for (std::int64_t h = 0; h < spec.kv_heads; h += heads) {
            const Work work = part(spec, b, n, batches, h, heads);
            const auto of_part = [&](const Tensor& x) {
                return heads_of(batches_of(x, n, batches), h * spec.group(), heads * spec.group());
            };
            run(work.spec, work.buffers, config, features, plan,
                {of_part(log2_sum), of_part(delta), of_part(rows.shift), of_part(not_finite)},
                scratch, preprocess_once, shared);
        }
    }
}

}  // namespace

std::int64_t backward_workspace(const AttentionSpec& spec, const TilesConfig& config) {
    if (!spec.has_work()) return 0;
    const DType sums = accumulator(spec.dtype);
    const Options options = backward_options(spec, config);
    AttentionSpec part = spec;
    part.batch = config.batches_at_once;
    part.kv_heads = config.heads_at_once;
    part.query_heads = part.kv_heads * spec.group();
    std::int64_t bytes = 2 * Scratch::bytes(sums, rows_shape(spec));
    if (looks_for_infinities(options, config.features)) {
        bytes += Scratch::bytes(boolean, blocks_shape(spec, options));
    }
    if (options.separate) {
        if (!config.features.hides_keys(options)) return bytes;
        for (const std::int64_t dim : {spec.head_dim, spec.value_dim}) {
            bytes += Scratch::bytes(spec.dtype, {part.batch, part.kv_heads, part.kv_length, dim});
        }
        return bytes;
    }
    if (options.query_gradient) bytes += Scratch::bytes(sums, parts_shape(part, options));
    for (const GradientBuffer& buffer : config.derivative.buffers) {
        bytes += Scratch::bytes(sums, copies_shape(part, options, buffer));
    }
    return bytes;
}

void launch_backward(const AttentionSpec& spec, const TilesConfig& config,
                     const AttentionBuffers& buffers) {
    SharedSums shared(spec, buffers);
    if (spec.packed()) {
        const auto one = [&](std::size_t n) {
            Work work = sequence(spec, buffers, n);
            work.spec.backward_blocks = *config.each_sequence;
            const auto own = choose(work.spec, config.features);
            const std::int64_t bytes = backward_workspace(work.spec, *own);
            if (bytes > 0) work.buffers.workspace = Tensor::empty(u8, {bytes}, spec.device);
            launch_sequence(work.spec, *own, work.buffers, shared);
        };
        for_each_sequence(spec, one, shared.is_empty());
    } else {
        launch_sequence(spec, config, buffers, shared);
    }
    shared.finish();
}

Tensor finite_keys(const AttentionSpec& spec, const Tensor& keys) {
    Options options;
    options.interpret = spec.checked;
    const Call copy = cached(std::tuple(options, keys.dtype()),
                             [&] { return finite_copy(options, keys.dtype()); });
    return copy(keys);
}

}  // namespace tilewright::attn::tiles
