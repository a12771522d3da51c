// Attention backward on tensors.
#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "attention/engine.h"
#include "attention/problem.h"
#include "attention/sm90/serve.h"
#include "attention/tiles/backward.h"
#include "attention/tiles/forward.h"
#include "attention/tune.h"
#include "run/overlap.h"
#include "run/recorder.h"
#include "support/check.h"

namespace tilewright {
namespace attn {
namespace {

/// Gradients of captured arrays may take this many elements besides the arrays themselves; beyond
/// it batches and heads that would need copies of their own run one after the other.
constexpr std::int64_t kMostCopied = std::int64_t{1} << 24;

/// What backward reads and writes of one problem, as BHSD views.
struct Gradients {
    Tensor out, dout, lse, dlse;  ///< dlse may be undefined
    Tensor query, key, value;     ///< undefined where they are not wanted
};

std::int64_t size_of_dims(const Tensor::Dims& dims) {
    std::int64_t size = 1;
    for (std::int64_t dim : dims) size *= dim;
    return size;
}

/// The gradients of sinks and captures of all parts of a call, summed up in their order.
class Shared {
  public:
    explicit Shared(const Problem& p) : dtype_(tiles::accumulator(p.query.dtype())) {
        if (p.sinks.defined()) sinks_ = run::cleared(dtype_, p.sinks.shape(), p.device);
        if (!p.score) return;
        for (const Capture& capture : p.score->captures) {
            captured_.push_back(capture.differentiable()
                                    ? run::cleared(dtype_, capture.tensor().shape(), p.device)
                                    : Tensor());
        }
    }

    /// True when no part of the call adds anything.
    bool is_empty() const {
        return !sinks_.defined() && std::none_of(captured_.begin(), captured_.end(),
                                                 [](const Tensor& x) { return x.defined(); });
    }

    /// Adds to the gradient of the sinks of all heads.
    void add_sinks(const Problem& p, const Tensor& part) {
        sinks_ = has_sinks_ ? added(p, sinks_, part) : part.reshape(sinks_.shape());
        has_sinks_ = true;
    }

    /// Adds the copies of one buffer, (copies, dimensions of the array...).
    void add_copies(const Problem& p, std::size_t capture, const Tensor& copies) {
        Tensor& total = captured_[capture];
        const std::int64_t size = total.size();
        if (size == 0) return;
        const Tensor part = sum(p, copies.reshape({copies.dim(0), size}));
        if (used_.size() <= capture) used_.resize(capture + 1);
        total = used_[capture] ? added(p, total, part) : part.reshape(total.shape());
        used_[capture] = true;
    }

    void finish(const Problem& p, AttentionGradients& result) const {
        if (sinks_.defined()) result.sinks = run::converted(sinks_, p.sinks.dtype());
        for (std::size_t i = 0; i < captured_.size(); ++i) {
            if (!captured_[i].defined()) continue;
            result.captured.push_back(
                run::converted(captured_[i], p.score->captures[i].tensor().dtype()));
        }
    }

  private:
    /// Over the first dimension, in order.
    Tensor sum(const Problem& p, const Tensor& parts) const {
        const Call call = cached(std::tuple(p.options, dtype_),
                                 [&] { return tiles::sum_copies(p.options, dtype_); });
        return call(parts);
    }
    Tensor added(const Problem& p, const Tensor& total, const Tensor& part) const {
        const Tensor pair = Tensor::empty(dtype_, {2, total.size()}, p.device);
        pair.select(0, 0).copy_from(total.reshape({total.size()}));
        pair.select(0, 1).copy_from(part.reshape({total.size()}));
        return sum(p, pair).reshape(total.shape());
    }

    DType dtype_;
    Tensor sinks_;
    bool has_sinks_ = false;        ///< some part has added to them
    std::vector<Tensor> captured_;  ///< by capture; undefined where there is no gradient
    std::vector<bool> used_;
};

/// dq, dk, dv of one problem, and what it adds to the shared gradients. `preprocess` gives log2_sum
/// and delta their values; kernels of a GPU are compiled meanwhile.
void run(const Problem& p, const tiles::ScoreDerivative& derivative, const std::string& key,
         const Gradients& g, const Tensor& log2_sum, const Tensor& delta,
         const std::function<void()>& preprocess, Shared& shared) {
    const DType sums = tiles::accumulator(p.query.dtype());
    tiles::Options options = p.options;
    options.query_gradient = g.query.defined();
    options.key_gradient = g.key.defined();
    options.value_gradient = g.value.defined();
    options.fragments =
        options.query_gradient && p.on_gpu() && options.block_q % 8 == 0 && p.head_dim % 8 == 0;
    // Copies of gradients of captures are of programs that walk over keys in order. Without dQ no
    // two programs add to one place.
    options.unordered = p.on_gpu() && derivative.buffers.empty() &&
                        (!options.query_gradient || (options.fragments && !p.deterministic));
    const Call main = cached(std::tuple(options, p.features.key(), key),
                             [&] { return tiles::backward(options, p.features, derivative); });
    const std::int64_t splits = tiles::num_splits(options.gpu, p.batch, p.kv_heads, p.kv_length);
    Tensor parts;
    if (options.fragments) {
        const std::int64_t blocks = (p.query_length + options.block_q - 1) / options.block_q;
        parts = Tensor::zeros(sums,
                              {options.unordered ? 1 : splits, p.batch, p.query_heads, blocks,
                               options.block_q * p.head_dim},
                              p.device);
    } else if (options.query_gradient) {
        Tensor::Dims shape = p.query.shape();
        shape.insert(shape.begin(), splits);
        parts = Tensor::empty(sums, shape, p.device);
    }
    std::vector<Tensor> inputs{p.query,  p.key, p.value,       g.dout,
                               log2_sum, delta, p.segment_ids, p.kv_segment_ids};
    const std::vector<Tensor> extras = p.extras();
    inputs.insert(inputs.end(), extras.begin(), extras.end());
    std::vector<Tensor> outputs;
    for (const Tensor& wanted : {parts, g.key, g.value}) {
        if (wanted.defined()) outputs.push_back(wanted);
    }
    const std::size_t first_buffer = outputs.size();
    for (const tiles::GradientBuffer& buffer : derivative.buffers) {
        Tensor::Dims shape = p.score->captures[buffer.capture].tensor().shape();
        shape.insert(shape.begin(), buffer.copies(p.batch, p.kv_heads, splits));
        inputs.push_back(run::cleared(sums, shape, p.device));
        outputs.push_back(inputs.back());
    }
    if (options.fragments) inputs.push_back(parts);
    const std::int64_t queries = options.fragments ? p.query_length : 0;
    const Call sum = cached(std::tuple(options, p.query.dtype(), queries),
                            [&] { return tiles::sum_parts(options, p.query.dtype(), queries); });
    if (p.on_gpu() && !outputs.empty() && main.num_traces() == 0) {
        main.compile_ahead(outputs, inputs);
        if (g.query.defined()) sum.compile_ahead({g.query}, {parts});
    }
    preprocess();
    if (outputs.empty()) return;
    main.into(outputs, inputs);
    for (std::size_t i = 0; i < derivative.buffers.size(); ++i) {
        shared.add_copies(p, derivative.buffers[i].capture, outputs[first_buffer + i]);
    }
    if (g.query.defined()) sum.into({g.query}, {parts});
}

/// Without keys the sink is all of the softmax: only lse depends on it.
void backward_without_keys(const Problem& p, const Gradients& g, Shared& shared) {
    for (const Tensor& gradient : {g.query, g.key, g.value}) {
        if (gradient.defined()) gradient.fill(0);
    }
    if (p.empty() || !p.sinks.defined() || !g.dlse.defined()) return;
    const Tensor dlse = g.dlse.to(Device{});
    std::vector<double> sums(static_cast<std::size_t>(p.query_heads));
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (std::int64_t h = 0; h < p.query_heads; ++h)
            for (std::int64_t q = 0; q < p.query_length; ++q)
                sums[static_cast<std::size_t>(h)] += dlse.get({b, h, q});
    const DType dtype = tiles::accumulator(p.query.dtype());
    shared.add_sinks(p, Tensor::from_vector(sums, {p.query_heads}, dtype).to(p.device));
}

/// The gradient of the sinks from lse and delta.
void sinks_backward(const Problem& p, const Tensor& lse, const Tensor& delta, Shared& shared) {
    const bool shifted = p.features.shifted;
    const Call sinks = cached(std::tuple(p.options, shifted),
                              [&] { return tiles::sinks_backward(p.options, shifted); });
    shared.add_sinks(p, sinks.run({p.sinks, lse, delta, p.shift})[0]);
}

/// May a row have an lse that is too large for probabilities? A recording is repeated with others.
bool may_have_large_rows(const Problem& p, const Tensor& lse) {
    if (p.on_gpu()) return false;
    if (run::Recorder::current() != nullptr) return true;
    const DType sums = tiles::accumulator(p.query.dtype());
    const auto has = [](const auto* values, std::int64_t size) {
        return std::any_of(values, values + size, [](double l) {
            return std::abs(l) >= tiles::kInexactLse && !std::isinf(l);
        });
    };
    const Tensor all = lse.to(sums).contiguous();
    return sums == f64 ? has(all.data<double>(), all.size()) : has(all.data<float>(), all.size());
}

/// Gives rows with large scores the lse of scores minus their largest, which becomes their shift.
/// Returns it, with lse as it is for the others.
Tensor shift_large_rows(Problem& p, const Tensor& lse) {
    const bool long_queries = p.query_length >= 64;
    Problem scan = p;
    scan.make_plan(false);
    const Call call = cached(std::tuple(scan.options, scan.features.key(), long_queries), [&] {
        return tiles::row_sums(scan.options, scan.features, long_queries);
    });
    std::vector<Tensor> inputs{p.query, p.key, p.value, p.segment_ids, p.kv_segment_ids, p.sinks};
    const std::vector<Tensor> extras = scan.extras();
    inputs.insert(inputs.end(), extras.begin(), extras.end());
    inputs.push_back(lse);
    const std::vector<Tensor> results = call.run(inputs);
    p.shift = results[0];
    p.features.shifted = true;
    return results[1];
}

void backward(Problem p, const Gradients& given, Shared& shared) {
    Gradients g = given;
    if (p.empty() || p.kv_length == 0) return backward_without_keys(p, g, shared);
    p.use_backward_blocks();
    p.use_blocks(tuned_blocks(p, "backward", p.backward_blocks, [&](const AttentionBlocks& trial) {
        Problem tried = p;
        tried.backward_blocks = trial;
        Shared unused(p);
        backward(std::move(tried), g, unused);
    }));
    if (may_have_large_rows(p, g.lse)) g.lse = shift_large_rows(p, g.lse);
    p.make_plan(true);
    const bool has_dlse = g.dlse.defined();
    const Call preprocess = cached(std::tuple(p.options, has_dlse),
                                   [&] { return tiles::backward_preprocess(p.options, has_dlse); });
    const Tensor::Dims rows = {p.batch, p.query_heads, p.query_length};
    const DType sums = tiles::accumulator(p.query.dtype());
    const Tensor log2_sum = Tensor::empty(sums, rows, p.device),
                 delta = Tensor::empty(sums, rows, p.device);
    bool done = false;
    const auto preprocess_once = [&] {
        if (std::exchange(done, true)) return;
        preprocess.into({log2_sum, delta}, {g.out, g.dout, g.lse, g.dlse});
        if (p.sinks.defined()) sinks_backward(p, g.lse, delta, shared);
    };

    tiles::ScoreDerivative derivative;
    std::string key;
    if (p.score) {
        std::vector<Tensor::Dims> shapes;
        for (const Capture& capture : p.score->captures) shapes.push_back(capture.tensor().shape());
        derivative = tiles::differentiate_score(
            p.plain_score, p.differentiable(), shapes,
            {p.origin[0] + p.batch, p.origin[1] + p.query_heads, p.query_length, p.kv_length});
        key = derivative.key();
        for (const tiles::GradientBuffer& buffer : derivative.buffers) {
            // One more tells copies of it apart.
            const Tensor captured = p.score->captures[buffer.capture].tensor();
            if (captured.rank() < ir::kMaxRefRank) continue;
            user_error("attention",
                       "expected captures with a gradient of at most {} dimensions "
                       "but got {}",
                       ir::kMaxRefRank - 1, captured.type_name());
        }
    }
    const auto copied = [&](std::int64_t batch, std::int64_t heads) {
        std::int64_t most = 0;
        for (const tiles::GradientBuffer& buffer : derivative.buffers) {
            const std::int64_t size =
                size_of_dims(p.score->captures[buffer.capture].tensor().shape());
            const std::int64_t copies = buffer.copies(
                batch, heads, tiles::num_splits(p.options.gpu, batch, heads, p.kv_length));
            most += size * (copies - 1);
        }
        return most;
    };
    std::int64_t batches = p.batch, heads = p.kv_heads;
    if (copied(batches, heads) > kMostCopied) batches = 1;
    if (copied(batches, heads) > kMostCopied) heads = 1;
    const std::int64_t group = p.options.group;
    for (std::int64_t b = 0; b < p.batch; b += batches) {
        for (std::int64_t h = 0; h < p.kv_heads; h += heads) {
            const auto of_query = [&](const Tensor& x) {
                return x.defined() ? heads_of(batches_of(x, b, batches), h * group, heads * group)
                                   : x;
            };
            const auto of_key = [&](const Tensor& x) {
                return x.defined() ? heads_of(batches_of(x, b, batches), h, heads) : x;
            };
            const bool whole = batches == p.batch && heads == p.kv_heads;
            const Gradients part{of_query(g.out),   of_query(g.dout), of_query(g.lse), {},
                                 of_query(g.query), of_key(g.key),    of_key(g.value)};
            run(whole ? p : p.part(b, batches, h, heads), derivative, key, part, of_query(log2_sum),
                of_query(delta), preprocess_once, shared);
        }
    }
}

}  // namespace
}  // namespace attn

namespace attn {
namespace {

/// By tile programs.
void run_backward(const Problem& p, const Gradients& whole, Shared& shared) {
    if (!p.packed()) return backward(p, whole, shared);
    const auto one = [&](std::size_t n) {
        const Problem part = p.sequence(n);
        const auto of_query = [&](const Tensor& x) {
            return x.defined() ? rows_of(x, p.starts[n], part.query_length) : x;
        };
        const auto of_key = [&](const Tensor& x) {
            return x.defined()
                       ? part.attended_part(rows_of(x, p.kv_starts[n], part.given_kv_length))
                       : x;
        };
        backward(
            part,
            {of_query(whole.out), of_query(whole.dout), of_query(whole.lse), of_query(whole.dlse),
             of_query(whole.query), of_key(whole.key), of_key(whole.value)},
            shared);
    };
    p.for_each_sequence(one, shared.is_empty());
}

/// For the engine, which keeps keys apart that data hides, not those of a mask that it evaluates.
/// Queries that attend infinities and NaN have them in lse or out, and so in their gradients.
Problem with_finite_keys(Problem p) {
    if (!p.features.mask) return p;
    const Call copy = cached(std::tuple(p.options, p.key.dtype()),
                             [&] { return tiles::finite_copy(p.options, p.key.dtype()); });
    p.key = copy(p.key);
    p.value = copy(p.value);
    return p;
}

/// Other floats than those of lse are converted.
void expect_floats(const char* argument, const Tensor& tensor) {
    if (is_float(tensor.dtype())) return;
    user_error("attention", "expected {} of floats but got {}", argument, tensor.type_name());
}

/// `fills`: what is undefined of `gradients` becomes new tensors, else it is not wanted. All are
/// views as the caller sees them.
void run_backward(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
                  const Tensor& value, const AttentionOutput& forward, const Tensor& dout,
                  const AttentionOptions& options, const Tensor& dlse, bool fills) {
    const Problem p = check(query, key, value, options);
    const Tensor out =
        check_input("forward.out", forward.out, value.dtype(), options.layout, p.device);
    const Tensor gradient = check_input("dout", dout, value.dtype(), options.layout, p.device);
    const Tensor::Dims rows{p.batch, p.query_heads, p.query_length};
    const Tensor::Dims full{p.batch, p.query_heads, p.query_length, p.value_dim};
    expect_shape("forward.out", out, full);
    expect_shape("dout", gradient, full);
    expect_shape("forward.lse", forward.lse, rows);
    expect_device("forward.lse", forward.lse, p.device);
    expect_floats("forward.lse", forward.lse);
    if (dlse.defined()) {
        expect_shape("dlse", dlse, rows);
        expect_floats("dlse", dlse);
    }
    expect_device("dlse", dlse, p.device);
    const bool has_work = !p.empty() && (p.kv_length > 0 || p.packed());
    // The engine computes them all.
    const bool sm90 = has_work && uses_sm90(p, Pass::backward);
    const auto place = [&](const char* argument, const Tensor& given, DType dtype,
                           const Tensor::Dims& shape) {
        if (!fills && !sm90 && !given.defined()) return given;
        return given.defined()
                   ? check_output(argument, given, dtype, shape, options.layout, p.device)
                   : empty_like(dtype, shape, options.layout, p.device);
    };
    const auto as_given = [&](const Tensor& x) {
        Tensor::Dims shape = x.shape();
        shape[2] = p.given_kv_length;
        return shape;
    };
    const AttentionGradients all{
        place("gradients.query", gradients.query, p.query.dtype(), p.query.shape()),
        place("gradients.key", gradients.key, p.key.dtype(), as_given(p.key)),
        place("gradients.value", gradients.value, p.value.dtype(), as_given(p.value)),
        {},
        {}};
    const run::Named targets[] = {{"gradients.query", gradients.query},
                                  {"gradients.key", gradients.key},
                                  {"gradients.value", gradients.value}};
    const run::Named sources[] = {{"query", query},
                                  {"key", key},
                                  {"value", value},
                                  {"forward.out", forward.out},
                                  {"forward.lse", forward.lse},
                                  {"dout", dout},
                                  {"dlse", dlse}};
    run::check_targets("attention", targets, sources);
    const Gradients whole{out,
                          gradient,
                          forward.lse,
                          dlse,
                          all.query,
                          all.key.defined() ? p.attended_part(all.key) : Tensor(),
                          all.value.defined() ? p.attended_part(all.value) : Tensor()};
    if (sm90) {
        AttentionGradients results{whole.query, whole.key, whole.value, {}, {}};
        sm90::run_backward(with_finite_keys(p), {whole.out, whole.lse, {}}, gradient, dlse,
                           results);
        gradients.sinks = results.sinks;
        gradients.captured = std::move(results.captured);
    } else {
        Shared shared(p);
        run_backward(p, whole, shared);
        gradients.captured.clear();
        shared.finish(p, gradients);
    }
    const auto give = [&](Tensor& result_of, const Tensor& made) {
        if (fills || result_of.defined()) result_of = to_bhsd(made, options.layout);
    };
    give(gradients.query, all.query);
    give(gradients.key, all.key);
    give(gradients.value, all.value);
}

}  // namespace
}  // namespace attn

AttentionGradients attention_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOutput& forward, const Tensor& dout,
                                      const AttentionOptions& options, const Tensor& dlse) {
    AttentionGradients gradients;
    attn::run_backward(gradients, query, key, value, forward, dout, options, dlse, true);
    return gradients;
}

void attention_backward_into(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
                             const Tensor& value, const AttentionOutput& forward,
                             const Tensor& dout, const AttentionOptions& options,
                             const Tensor& dlse) {
    attn::run_backward(gradients, query, key, value, forward, dout, options, dlse, false);
}

}  // namespace tilewright
