// The benchmarks' cases.
#include "cli/bench/cases.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attention/reference.h"
#include "attention/tiles/backward.h"
#include "attention/tiles/forward.h"
#include "cli/bench/baseline.h"
#include "cli/bench/compile_kernels.h"
#include "cli/bench/flex_cases.h"
#include "cli/bench/rows.h"
#include "cli/builtin.h"
#include "cli/softmax.h"
#include "cpu/machine.h"
#include "norm/reference.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "support/check.h"
#include "tilewright/attention.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"
#include "tilewright/norm.h"

namespace tilewright::cli {
namespace {

struct AttentionCase {
    std::int64_t batch, heads, kv_heads, length, kv_length, head_dim;
    bool causal;
    std::string mask = {}, score = {};  ///< texts of mods

    std::string name(DType dtype) const {
        return fmt::format("B{} H{}{} S{}{} D{}{} {}", batch, heads,
                           kv_heads == heads ? "" : fmt::format("/{}", kv_heads), length,
                           kv_length == length ? "" : fmt::format("x{}", kv_length), head_dim,
                           causal ? " causal" : "", tilewright::name(dtype)) +
               (mods().name.empty() ? "" : " " + mods().name);
    }
    FlexCase mods() const {
        FlexSizes sizes;
        sizes.length = length;
        sizes.kv_length = kv_length;
        return text_case(mask, score, sizes);
    }
    AttentionOptions options() const {
        AttentionOptions result = mods().options;
        result.causal = causal;
        return result;
    }
    /// Query-key pairs that attend.
    double pairs() const {
        if (!mask.empty() || !score.empty()) {
            const BlockMask data =
                create_block_mask(mask_of(mods().options), 1, heads, length, kv_length);
            return density(causal
                               ? data & create_block_mask(masks::causal(), 1, 1, length, kv_length)
                               : data)
                       .pairs *
                   static_cast<double>(batch * heads);
        }
        double result = 0;
        for (std::int64_t q = 0; q < length; ++q)
            result += static_cast<double>(causal ? std::min(q + 1, kv_length) : kv_length);
        return result * static_cast<double>(batch * heads);
    }
};

AttentionInputs inputs_of(const AttentionCase& c, DType dtype) {
    const auto random = [&](const Tensor::Dims& shape, std::uint32_t seed) {
        return random_values(dtype, shape, seed);
    };
    return attention_inputs(random,
                            {c.batch, c.heads, c.kv_heads, c.length, c.kv_length, c.head_dim});
}

/// Checks the same programs on one head, short enough for the dense reference.
void check_attention(AttentionCase c, DType dtype, bool backward, Row& row) {
    c.batch = c.kv_heads = 1;
    c.heads = 1;
    c.length = std::min<std::int64_t>(c.length, 320);
    c.kv_length = std::min<std::int64_t>(c.kv_length, 320);
    const AttentionInputs in = inputs_of(c, dtype);
    const AttentionOptions options = c.options();
    attn::ReferenceOptions exact;
    exact.causal = c.causal;
    exact.mask = options.mask;
    exact.score_mod = options.score_mod;
    attn::ReferenceOptions plain = exact;
    plain.arithmetic = dtype;
    plain.from_stored = true;
    const Array q = to_array(in.q), k = to_array(in.k), v = to_array(in.v);
    const AttentionOutput ours = attention(in.q, in.k, in.v, options);
    const Array dout = to_array(in.dout);
    const attn::ReferenceSizes sizes = attn::reference_sizes(q, k, v, dout, plain);
    if (!backward) {
        set_error(row, ours.out, attn::reference_forward(q, k, v, exact).out,
                  attn::reference_forward(q, k, v, plain).out, dtype, sizes.out);
        return;
    }
    set_error(row, attention_backward(in.q, in.k, in.v, ours, in.dout, options).query,
              attn::reference_backward(q, k, v, dout, {}, exact).query,
              attn::reference_backward(q, k, v, dout, {}, plain).query, dtype,
              sizes.gradients.query);
}

std::optional<Variant> attention_baseline(const BenchOptions& options, const AttentionCase& c,
                                          bool backward) {
    if (options.baseline.empty()) return {};
    if (options.baseline != "torch-sdpa" && options.baseline != "xla")
        user_error("bench", "expected --baseline torch-sdpa or xla for attention but got {}",
                   options.baseline);
    if (!c.mask.empty() || !c.score.empty())
        user_error("bench", "expected --baseline {} without --mask and --score: it has no mods",
                   options.baseline);
    return python_baseline({{"operation", "attention"},
                            {"direction", backward ? "backward" : "forward"},
                            {"dtype", name(options.dtype)},
                            {"threads", cpu::num_threads()},
                            {"batch", c.batch},
                            {"heads", c.heads},
                            {"kv_heads", c.kv_heads},
                            {"seq_len", c.length},
                            {"kv_len", c.kv_length},
                            {"head_dim", c.head_dim},
                            {"causal", c.causal}},
                           options.baseline);
}

}  // namespace

void bench_attention(const BenchOptions& options, Report& report) {
    std::vector<std::int64_t> dims = {64, 128};
    if (options.head_dim) dims = {*options.head_dim};
    std::vector<bool> masks = {false, true};
    const bool mods = !options.mask.empty() || !options.score.empty();
    if (mods) masks = {false};
    if (options.causal) masks = {*options.causal};
    for (const std::int64_t head_dim : dims)
        for (const bool causal : masks) {
            AttentionCase c{options.batch.value_or(1),
                            options.heads.value_or(8),
                            0,
                            options.seq_len.value_or(4096),
                            0,
                            head_dim,
                            causal,
                            options.mask,
                            options.score};
            c.kv_heads = options.kv_heads.value_or(c.heads);
            c.kv_length = options.kv_len.value_or(c.length);
            const AttentionInputs in = inputs_of(c, options.dtype);
            AttentionOptions attention_options = c.options();
            attention_options.autotune = options.autotune;
            const double work = c.pairs() * static_cast<double>(head_dim);
            Measured forward{c.name(options.dtype),
                             "forward",
                             [&] { attention(in.q, in.k, in.v, attention_options); },
                             4 * work,
                             false,
                             compute_roof(options.dtype),
                             attention_baseline(options, c, false)};
            Row& row = add_rows(forward, options, report);
            if (options.check) check_attention(c, options.dtype, false, row);
            if (!options.backward) continue;
            const AttentionOutput out = attention(in.q, in.k, in.v, attention_options);
            Measured backward{
                c.name(options.dtype),
                "backward",
                [&] { attention_backward(in.q, in.k, in.v, out, in.dout, attention_options); },
                10 * work,
                false,
                compute_roof(options.dtype),
                attention_baseline(options, c, true)};
            Row& backward_row = add_rows(backward, options, report);
            if (options.check) check_attention(c, options.dtype, true, backward_row);
        }
}

void bench_decode(const BenchOptions& options, Report& report) {
    AttentionCase c{options.batch.value_or(1),
                    options.heads.value_or(8),
                    0,
                    options.seq_len.value_or(1),
                    options.kv_len.value_or(32768),
                    options.head_dim.value_or(128),
                    false};
    c.kv_heads = options.kv_heads.value_or(c.heads);
    const AttentionInputs in = inputs_of(c, options.dtype);
    const auto bytes = static_cast<double>(in.k.nbytes() + in.v.nbytes());
    Row& row = add_rows({c.name(options.dtype), "forward", [&] { attention(in.q, in.k, in.v); },
                         bytes, true, read_bandwidth(), attention_baseline(options, c, false)},
                        options, report);
    if (options.check) check_attention(c, options.dtype, false, row);
}

void bench_matmul(const BenchOptions& options, Report& report) {
    const std::int64_t n = options.seq_len.value_or(2048);
    const Tensor x = random_values(options.dtype, {n, n}, 1),
                 y = random_values(options.dtype, {n, n}, 2);
    const Call product = matmul(n, n, n);
    const Tensor z = product(x, y);
    std::optional<Variant> baseline;
    if (options.baseline == "onednn") {
        if (options.dtype != f32 && options.dtype != i8)
            user_error("bench", "expected --dtype f32 or i8 with --baseline onednn but got {}",
                       name(options.dtype));
        baseline = options.dtype == i8 ? onednn_matmul_s8(n, n, n) : onednn_matmul(n, n, n);
    } else {
        baseline = python_variant(
            options,
            {{"operation", "matmul"}, {"direction", "forward"}, {"m", n}, {"n", n}, {"k", n}});
    }
    Row& row = add_rows(
        {fmt::format("matmul {0} x {0} x {0} {1}", n, name(options.dtype)), "forward",
         [&] {
             product.into({z}, {x, y});
         },
         2 * std::pow(static_cast<double>(n), 3), false, compute_roof(options.dtype), baseline},
        options, report);
    if (options.check) {  // one element of most rows
        double error = 0;
        for (std::int64_t i = 0; i < n * n; i += n + 97) {
            double sum = 0;
            for (std::int64_t k = 0; k < n; ++k) sum += x.get({i / n, k}) * y.get({k, i % n});
            if (z.dtype() == i16) sum = static_cast<std::int16_t>(static_cast<std::int64_t>(sum));
            const double difference = std::abs(sum - z.get({i / n, i % n}));
            if (!(difference <= error)) error = difference;
        }
        row.error = error;
        const double rounding = is_float(z.dtype()) ? epsilon(z.dtype()) : 0;
        row.ok = error <= 4 * rounding * static_cast<double>(n);
    }
}

void bench_norm(const BenchOptions& options, Report& report) {
    const std::int64_t count = options.seq_len.value_or(16384), n = options.head_dim.value_or(4096);
    const DType dtype = options.dtype;
    const Tensor x = random_values(dtype, {count, n}, 1), dy = random_values(dtype, {count, n}, 2);
    const Tensor weight = random_values(dtype, {n}, 3), bias = random_values(dtype, {n}, 4);
    const Call soft = softmax(n, false);
    const Tensor y = Tensor::empty(dtype, {count, n});
    const NormOutput rms = rms_norm(x, weight), layer = layer_norm(x, weight, bias);
    const Roof roof = copy_bandwidth();
    if (const std::optional<Roof> copy = streaming_copy()) {
        add_rows({"copy of 256 MiB, stored past the caches",
                  "copy",
                  copy->work,
                  copy->amount,
                  true,
                  roof,
                  {},
                  "streaming"},
                 options, report);
    }
    const auto bytes = static_cast<double>(x.nbytes());
    const auto measure = [&](const char* program, const char* direction, double arrays,
                             std::function<void()> work) -> Row& {
        return add_rows(
            {fmt::format("{} {} x {} {}", program, count, n, name(dtype)), direction,
             std::move(work), arrays * bytes, true, roof,
             python_variant(
                 options,
                 {{"operation", program}, {"direction", direction}, {"rows", count}, {"n", n}})},
            options, report);
    };
    // Results on a few rows against the reference.
    const std::int64_t few = std::min<std::int64_t>(count, 4);
    const Array sample = to_array(x.slice(0, 0, few));
    norm::ReferenceInput exact;
    exact.x = sample;
    exact.weight = to_array(weight);
    norm::ReferenceInput plain = exact;
    plain.arithmetic = dtype;
    const auto check = [&](Row& row, const Tensor& ours, auto reference) {
        if (options.check)
            set_error(row, ours.slice(0, 0, few), reference(exact), reference(plain), dtype);
    };
    const auto y_of = [](auto run) {
        return [run](const norm::ReferenceInput& input) { return run(input).y; };
    };
    const auto dx_of = [&](auto run) {
        return [run, gradient = to_array(dy.slice(0, 0, few))](const norm::ReferenceInput& input) {
            return run(input, gradient, Array()).x;
        };
    };
    // Into existing tensors: allocating memory costs more than the work.
    const NormGradients rms_grad = rms_norm_backward(rms, weight, dy),
                        layer_grad = layer_norm_backward(layer, weight, bias, dy);
    check(measure("rms_norm", "forward", 2, [&] { rms_norm_into(rms, x, weight); }), rms.y,
          y_of(norm::reference_rms_norm));
    check(measure("rms_norm", "backward", 3,
                  [&] { rms_norm_backward_into(rms_grad, rms, weight, dy); }),
          rms_grad.x, dx_of(norm::reference_rms_norm_backward));
    exact.bias = plain.bias = to_array(bias);
    check(measure("layer_norm", "forward", 2, [&] { layer_norm_into(layer, x, weight, bias); }),
          layer.y, y_of(norm::reference_layer_norm));
    check(measure("layer_norm", "backward", 3,
                  [&] { layer_norm_backward_into(layer_grad, layer, weight, bias, dy); }),
          layer_grad.x, dx_of(norm::reference_layer_norm_backward));
    measure("softmax", "forward", 2, [&] { soft.into({y}, {x}); });
}

void bench_compile(const BenchOptions& options, Report& report) {
    if (!options.arch.empty()) return bench_compile_kernels(options, report);
    // The kernels for long sequences, on the smallest inputs that they accept.
    const std::int64_t head_dim = options.head_dim.value_or(64);
    const Tensor x = random_values(options.dtype, {1, 1, 64, head_dim}, 1);
    const attn::tiles::Options tiles{.scale = 0.125, .causal = true};
    const AttentionOutput out = attention(x, x, x, {.causal = true});
    const Tensor row = Tensor::zeros(out.lse.dtype(), {1, 1, 64});
    const std::string name_of_case = fmt::format("D{} causal {}", head_dim, name(options.dtype));
    const std::vector<Variant> variants = {
        timed("forward",
              [&] {
                  const Call call = attn::tiles::forward(tiles, {}, true);
                  std::vector<Tensor> inputs{x, x, x};
                  inputs.resize(call.options().in.size());
                  call.run(inputs);
              }),
        timed("backward",
              [&] {
                  Builtin backward{attn::tiles::backward(tiles, {}, {}), {x, x, x, x, row, row}};
                  backward.inputs.resize(backward.call.options().in.size());
                  add_blocks(backward, tiles, {});
                  backward.call.run(backward.inputs);
              }),
        timed("warm", [&] { attention(x, x, x, {.causal = true}); }),
        timed("mod", [&, number = 0.0]() mutable {
            // A mod that no earlier call had.
            number += 1;
            attention(x, x, x, {.score_mod = [number](auto s, auto, auto, auto q, auto kv) {
                          return where(q >= kv, s * number + (q - kv), s - abs(q - kv) * number);
                      }});
        })};
    const std::vector<double> seconds = interleave(variants, {5, 20, options.seconds, "compile"});
    const char* names[] = {"attention, trace + compile + run 64 x 64",
                           "attention_backward, trace + compile + run 64 x 64",
                           "attention, warm call 64 x 64",
                           "attention, first call of a new score mod 64 x 64"};
    for (std::size_t i = 0; i < variants.size(); ++i) {
        Row result;
        result.case_name = fmt::format("{}, {}", names[i], name_of_case);
        result.operation = i == 2 ? "forward" : "compile";
        result.impl = "tilewright";
        result.ms = seconds[i] * 1e3;
        report.add(std::move(result));
    }
}

}  // namespace tilewright::cli
