// Attention on tensors, forward and backward: check and prepare the arguments, choose an engine,
// allocate the results, run the engine.
#include "tilewright/attention.h"

#include <utility>
#include <vector>

#include "attention/engine.h"
#include "attention/prepare.h"
#include "attention/tensors.h"
#include "attention/tiles/engine.h"
#include "attention/tiles/hidden_keys.h"
#include "attention/tiles/options.h"
#include "run/overlap.h"
#include "run/recorder.h"
#include "run/scratch.h"
#include "support/check.h"

namespace tilewright {
namespace attn {
namespace {

/// A call without keys has nothing to choose between: the tile programs handle it.
const Engine& engine_of(const AttentionSpec& spec) {
    return spec.has_work() ? choose_engine(spec) : tiles::engine();
}

/// Writes the results that `call.buffers` holds.
void run_forward(AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    if (spec.empty()) return;
    const AttentionOutput& result = call.buffers.result;
    spec.max_scores = result.max_scores.defined();
    spec.joined_rows = tiles::has_joined_rows(spec, call.buffers);
    const Engine& engine = engine_of(spec);
    if (engine.isolates_hidden_keys(spec)) return run_on(engine, spec, std::move(call.buffers));
    const std::function<void()> repair = tiles::repair(spec, call.buffers);
    run_on(engine, spec, std::move(call.buffers));
    repair();
}

/// Rows that kernels write and nobody reads.
Tensor unwanted_rows(DType dtype, const Tensor::Dims& shape, Device device) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    const Tensor memory = run::scratch(size * size_of(dtype), device);
    if (!memory.defined()) return Tensor::empty(dtype, shape, device);
    return Tensor::from_data(memory.raw(), dtype, shape, {}, memory.owner(), device);
}

/// Checks the forward's results and the gradients with respect to them.
void check_backward_inputs(AttentionCall& call, const AttentionOutput& forward, const Tensor& dout,
                           const Tensor& dlse, Layout layout) {
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    b.result.out = check_input("forward.out", forward.out, spec.dtype, layout, spec.device);
    b.dout = check_input("dout", dout, spec.dtype, layout, spec.device);
    const Tensor::Dims rows{spec.batch, spec.query_heads, spec.query_length};
    const Tensor::Dims full{spec.batch, spec.query_heads, spec.query_length, spec.value_dim};
    expect_shape("forward.out", b.result.out, full);
    expect_shape("dout", b.dout, full);
    expect_shape("forward.lse", forward.lse, rows);
    expect_device("forward.lse", forward.lse, spec.device);
    expect_floats("forward.lse", forward.lse);
    b.result.lse = forward.lse;
    if (dlse.defined()) {
        expect_shape("dlse", dlse, rows);
        expect_floats("dlse", dlse);
    }
    expect_device("dlse", dlse, spec.device);
    b.dlse = dlse;
    spec.dlse = dlse.defined();
}

/// The captures of the score mod that have gradients.
std::vector<const CaptureSpec*> differentiable(const AttentionSpec& spec) {
    std::vector<const CaptureSpec*> result;
    for (const CaptureSpec& capture : spec.score.captures)
        if (capture.differentiable) result.push_back(&capture);
    return result;
}

/// Checks the caller's tensors for the gradients of sinks and captures; undefined ones are made.
void check_sums(const AttentionCall& call, const AttentionGradients& given) {
    const AttentionSpec& spec = call.spec;
    if (given.sinks.defined())
        check_rows("gradients.sinks", given.sinks, call.buffers.sinks.dtype(),
                   call.buffers.sinks.shape(), spec.device);
    const auto captures = differentiable(spec);
    if (given.captured.size() > captures.size())
        user_error("attention", "expected at most {} tensors in gradients.captured but got {}",
                   captures.size(), given.captured.size());
    for (std::size_t n = 0; n < given.captured.size(); ++n)
        if (given.captured[n].defined())
            check_rows("gradients.captured", given.captured[n], captures[n]->dtype,
                       captures[n]->shape, spec.device);
}

/// Places the accumulators for the gradients of sinks and captures: in the caller's tensors where
/// these have the dtype of sums.
void place_sums(AttentionCall& call, const AttentionGradients& given) {
    const DType sums = tiles::accumulator(call.spec.dtype);
    AttentionBuffers& b = call.buffers;
    const auto place = [&](const Tensor& target, const Tensor::Dims& shape) {
        const bool fits = target.defined() && target.dtype() == sums;
        return fits ? target : Tensor::empty(sums, shape, call.spec.device);
    };
    if (b.sinks.defined()) b.sinks_gradient = place(given.sinks, b.sinks.shape());
    std::size_t next = 0;
    for (const CaptureSpec& capture : call.spec.score.captures) {
        if (!capture.differentiable) {
            b.captured_gradients.emplace_back();
            continue;
        }
        const std::size_t n = next++;
        b.captured_gradients.push_back(
            place(n < given.captured.size() ? given.captured[n] : Tensor(), capture.shape));
    }
}

/// Moves a sum to where its gradient belongs: to the caller's tensor, or to a new one.
void finish_sum(const Tensor& sum, DType dtype, Tensor& target) {
    if (!target.defined())
        target = run::converted(sum, dtype);
    else if (target.raw() != sum.raw())
        run::convert(sum, target);
}

void run_backward(AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    const Engine& engine = engine_of(spec);
    if (engine.isolates_hidden_keys(spec)) return run_on(engine, spec, call.buffers);
    // A query that attends to an infinity or NaN already has it in lse or out, and so in its
    // gradients.
    AttentionBuffers finite = call.buffers;
    finite.key = tiles::finite_keys(spec, finite.key);
    finite.value = tiles::finite_keys(spec, finite.value);
    run_on(engine, spec, std::move(finite));
}

/// With `fills`, undefined tensors of `gradients` are allocated; without it, they are not computed.
/// All are views in the caller's layout.
void backward(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
              const Tensor& value, const AttentionOutput& forward, const Tensor& dout,
              const AttentionOptions& options, const Tensor& dlse, bool fills) {
    AttentionCall call = prepare(query, key, value, options);
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    spec.pass = Pass::backward;
    check_backward_inputs(call, forward, dout, dlse, options.layout);
    const auto place = [&](const char* argument, const Tensor& given, const Tensor& like,
                           std::int64_t length) {
        if (!fills && !given.defined()) return given;
        Tensor::Dims shape = like.shape();
        shape[2] = length;
        return given.defined()
                   ? check_output(argument, given, spec.dtype, shape, options.layout, spec.device)
                   : empty_like(spec.dtype, shape, options.layout, spec.device);
    };
    const Tensor made[] = {
        place("gradients.query", gradients.query, b.query, spec.query_length),
        place("gradients.key", gradients.key, b.key, call.given_kv_length),
        place("gradients.value", gradients.value, b.value, call.given_kv_length)};
    check_sums(call, gradients);
    std::vector<run::Named> targets = {{"gradients.query", gradients.query},
                                       {"gradients.key", gradients.key},
                                       {"gradients.value", gradients.value},
                                       {"gradients.sinks", gradients.sinks}};
    for (const Tensor& captured : gradients.captured)
        targets.push_back({"gradients.captured", captured});
    const run::Named sources[] = {{"query", query},
                                  {"key", key},
                                  {"value", value},
                                  {"forward.out", forward.out},
                                  {"forward.lse", forward.lse},
                                  {"dout", dout},
                                  {"dlse", dlse}};
    run::check_targets("attention", targets, sources);
    b.query_gradient = made[0];
    b.key_gradient = attended_part(made[1], spec.kv_length);
    b.value_gradient = attended_part(made[2], spec.kv_length);
    spec.query_gradient = made[0].defined();
    spec.key_gradient = made[1].defined();
    spec.value_gradient = made[2].defined();
    place_sums(call, gradients);
    run_backward(call);

    Tensor* const results[] = {&gradients.query, &gradients.key, &gradients.value};
    for (std::size_t i = 0; i < std::size(results); ++i) {
        if (made[i].defined()) *results[i] = to_bhsd(made[i], options.layout);
    }
    if (b.sinks.defined()) finish_sum(b.sinks_gradient, b.sinks.dtype(), gradients.sinks);
    gradients.captured.resize(differentiable(spec).size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < b.captured_gradients.size(); ++i) {
        if (!b.captured_gradients[i].defined()) continue;
        finish_sum(b.captured_gradients[i], spec.score.captures[i].dtype,
                   gradients.captured[next++]);
    }
}

}  // namespace
}  // namespace attn

AttentionOutput attention(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options) {
    using namespace attn;
    AttentionCall call = prepare(query, key, value, options);
    const AttentionSpec& spec = call.spec;
    const Tensor::Dims rows{spec.batch, spec.query_heads, spec.query_length};
    const DType sums = tiles::accumulator(spec.dtype);
    const AttentionOutput result{
        empty_like(spec.dtype, {spec.batch, spec.query_heads, spec.query_length, spec.value_dim},
                   options.layout, spec.device),
        Tensor::empty(sums, rows, spec.device),
        spec.on_gpu() && !spec.max_scores ? Tensor() : Tensor::empty(sums, rows, spec.device)};
    call.buffers.result = result;
    run_forward(call);
    return {to_bhsd(result.out, options.layout), result.lse, result.max_scores};
}

void attention_into(const AttentionOutput& out, const Tensor& query, const Tensor& key,
                    const Tensor& value, const AttentionOptions& options) {
    using namespace attn;
    AttentionCall call = prepare(query, key, value, options);
    const AttentionSpec& spec = call.spec;
    const Tensor::Dims rows{spec.batch, spec.query_heads, spec.query_length};
    const DType sums = tiles::accumulator(spec.dtype);
    const Tensor result =
        check_output("out.out", out.out, spec.dtype,
                     {spec.batch, spec.query_heads, spec.query_length, spec.value_dim},
                     options.layout, spec.device);
    if (out.lse.defined()) check_rows("out.lse", out.lse, sums, rows, spec.device);
    if (out.max_scores.defined())
        check_rows("out.max_scores", out.max_scores, sums, rows, spec.device);
    const run::Named targets[] = {
        {"out.out", result}, {"out.lse", out.lse}, {"out.max_scores", out.max_scores}};
    const run::Named sources[] = {{"query", query}, {"key", key}, {"value", value}};
    run::check_targets("attention", targets, sources);
    const Tensor lse = out.lse.defined() ? out.lse : unwanted_rows(sums, rows, spec.device);
    call.buffers.result = {result, lse, out.max_scores};
    run_forward(call);
}

AttentionGradients attention_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOutput& forward, const Tensor& dout,
                                      const AttentionOptions& options, const Tensor& dlse) {
    AttentionGradients gradients;
    attn::backward(gradients, query, key, value, forward, dout, options, dlse, true);
    return gradients;
}

void attention_backward_into(AttentionGradients& gradients, const Tensor& query, const Tensor& key,
                             const Tensor& value, const AttentionOutput& forward,
                             const Tensor& dout, const AttentionOptions& options,
                             const Tensor& dlse) {
    attn::backward(gradients, query, key, value, forward, dout, options, dlse, false);
}

}  // namespace tilewright
