// `tilewright bench flex`: the cases of the FlexAttention notebook, checked, drawn and timed.
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "attention/reference.h"
#include "cli/bench/baseline.h"
#include "cli/bench/cases.h"
#include "cli/bench/flex_cases.h"
#include "cli/builtin.h"
#include "cpu/machine.h"
#include "mask/block_mask.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "support/check.h"
#include "tilewright/attention.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::cli {
namespace {

AttentionInputs inputs_of(const FlexCase& c, const FlexSizes& sizes, DType dtype) {
    const auto random = [&](const Tensor::Dims& shape, std::uint32_t seed) {
        return random_values(dtype, shape, seed);
    };
    return attention_inputs(random, c, sizes);
}

struct Errors {
    double forward = 0, backward = 0;
    bool forward_ok = true, backward_ok = true;
};

using MakeCase = std::function<FlexCase(const FlexSizes&)>;

/// Checks two heads of the case, at a size small enough for the dense reference.
Errors check_case(const MakeCase& make, FlexSizes sizes, DType dtype) {
    constexpr std::int64_t kLong = 1024;
    const std::int64_t longest = make(sizes).check_length;
    sizes.batch = 1;
    sizes.kv_heads = sizes.heads == sizes.kv_heads ? 2 : 1;
    sizes.heads = 2;
    sizes.length = std::min(sizes.length, longest);
    sizes.kv_length = std::min(sizes.kv_length, longest);
    if (sizes.length > kLong) sizes.head_dim = std::min<std::int64_t>(sizes.head_dim, 16);
    const bool packed = make(sizes).options.cu_seqlens.defined();
    if (packed) sizes.length = std::min<std::int64_t>(sizes.length, 24);
    const FlexCase c = make(sizes);
    const AttentionInputs in = inputs_of(c, sizes, dtype);
    const AttentionOutput ours = attention(in.q, in.k, in.v, c.options);
    const AttentionGradients grads = attention_backward(in.q, in.k, in.v, ours, in.dout, c.options);
    attn::ReferenceOptions exact;
    exact.causal = c.options.causal;
    exact.mask = c.options.mask;
    exact.score_mod = c.options.score_mod;
    attn::ReferenceOptions plain = exact;
    plain.arithmetic = dtype;
    plain.from_stored = true;
    Errors errors;
    const auto note = [&](const Tensor& mine, const Array& truth, const Array& rounded,
                          const Array& terms, double& error, bool& ok) {
        const double difference = largest_error(to_array(mine), truth);
        if (!(difference <= error)) error = difference;
        ok = ok && difference <= allowed_error(rounded, truth, coarser(mine.dtype(), dtype), terms);
    };
    const auto compare = [&](std::int64_t first, std::int64_t count) {
        const bool bhsd = c.options.layout == Layout::bhsd;
        const auto part = [&](const Tensor& x) {
            if (bhsd) return x;
            return x.slice(1, first, count).transpose({0, 2, 1, 3});
        };
        const auto dense = [&](const Tensor& x) { return to_array(part(x)); };
        const Array q = dense(in.q), k = dense(in.k), v = dense(in.v), dout = dense(in.dout);
        const auto terms = attn::reference_sizes(q, k, v, dout, plain);
        note(part(ours.out), attn::reference_forward(q, k, v, exact).out,
             attn::reference_forward(q, k, v, plain).out, terms.out, errors.forward,
             errors.forward_ok);
        const auto truth = attn::reference_backward(q, k, v, dout, {}, exact);
        const auto rounded = attn::reference_backward(q, k, v, dout, {}, plain);
        const auto gradient = [&](const Tensor& mine, const auto& of) {
            note(mine, of(truth), of(rounded), of(terms.gradients), errors.backward,
                 errors.backward_ok);
        };
        gradient(part(grads.query), [](const auto& g) { return g.query; });
        gradient(part(grads.key), [](const auto& g) { return g.key; });
        gradient(part(grads.value), [](const auto& g) { return g.value; });
        for (std::size_t i = 0; i < grads.captured.size(); ++i)
            gradient(grads.captured[i], [i](const auto& g) { return g.captured[i]; });
    };
    if (!packed) {
        compare(0, c.q_len);
        return errors;
    }
    for (std::int64_t n = 0; n + 1 < c.options.cu_seqlens.dim(0); ++n) {
        const std::int64_t first = c.options.cu_seqlens.get_int({n});
        compare(first, c.options.cu_seqlens.get_int({n + 1}) - first);
    }
    return errors;
}

/// A row of a case's table.
struct Subject {
    std::string impl;
    AttentionOptions options;
    Density density;
};

/// The mask as an additive table that every pair reads: dense attention.
Mod dense_bias(const Mod& mask, std::int64_t q_len, std::int64_t kv_len) {
    const Tensor attends = create_mask(mask, 1, 1, q_len, kv_len);
    Tensor table = Tensor::empty(f32, {q_len, kv_len});
    const auto* from = attends.data<bool>();
    for (std::int64_t i = 0; i < table.size(); ++i) {
        table.data<float>()[i] = from[i] ? 0.0F : -INFINITY;
    }
    return scores::bias(capture(table, "mask", false));
}

std::string rate(double flops, double ms) {
    return fmt::format("{:>10.3f} {:>10.1f}", ms, flops / ms * 1e-6);
}

constexpr const char* kThroughTorch = "through torch";

nlohmann::json job_of(const FlexCase& c, const FlexSizes& sizes, const BenchOptions& options,
                      bool backward) {
    nlohmann::json job = {{"operation", "flex"},
                          {"direction", backward ? "backward" : "forward"},
                          {"dtype", name(options.dtype)},
                          {"device", "cpu"},
                          {"threads", cpu::num_threads()}};
    describe_case(c, sizes, job);
    return job;
}

/// The case through tilewright.torch.
Variant through_torch(const FlexCase& c, const FlexSizes& sizes, const BenchOptions& options,
                      bool backward) {
    nlohmann::json job = job_of(c, sizes, options, backward);
    job["front_end"] = "tilewright.torch";
    return python_baseline(job, kThroughTorch);
}

/// torch's flex_attention on the case. If it cannot run and was not asked for by name: nullopt,
/// with a line in the output and no further attempts.
std::optional<Variant> torch_flex(const FlexCase& c, const FlexSizes& sizes,
                                  BenchOptions& options) {
    if (options.baseline.empty()) return {};
    const bool by_itself = options.baseline == "auto";
    const nlohmann::json job = job_of(c, sizes, options, false);
    if (!by_itself) return python_baseline(job, "torch-flex");
    Baseline torch = try_python_baseline(job, "torch-flex");
    if (torch.variant) return torch.variant;
    *options.out << "no rows of torch-flex: " << torch.refusal << "\n\n";
    options.baseline.clear();
    return {};
}

void bench_case(const MakeCase& make, FlexSizes sizes, BenchOptions& options, Report& report) {
    std::ostream& out = *options.out;
    const bool packed = make(sizes).options.cu_seqlens.defined();
    if (packed) sizes.batch = 1;
    const FlexCase c = make(sizes);
    const AttentionInputs in = inputs_of(c, sizes, options.dtype);
    out << fmt::format("== {} ==\n", c.name);
    const BlockMask mask = create_block_mask(mask_of(c.options), 1, 1, c.q_len, c.kv_len);
    if (options.picture) out << mask.to_string() << '\n';
    const Density mine = packed ? packed_density(c.options.cu_seqlens) : density(mask);
    const Density causal = density(create_block_mask(masks::causal(), 1, 1, c.q_len, c.kv_len));
    const double all = static_cast<double>(c.q_len) * static_cast<double>(c.kv_len);
    AttentionOptions plain, with_table;
    plain.layout = with_table.layout = c.options.layout;
    plain.causal = true;
    with_table.score_mod = dense_bias(mask_of(c.options), c.q_len, c.kv_len);
    std::vector<Subject> subjects = {{"tilewright", c.options, mine},
                                     {"causal", plain, causal},
                                     {"dense", with_table, {all, all}}};
    const Errors errors = options.check ? check_case(make, sizes, options.dtype) : Errors();

    std::vector<AttentionOutput> outputs;
    std::vector<Variant> forward, backward;
    for (std::size_t i = 0; i < subjects.size(); ++i) {
        outputs.push_back(attention(in.q, in.k, in.v, subjects[i].options));
        forward.push_back(
            timed(subjects[i].impl, [&, i] { attention(in.q, in.k, in.v, subjects[i].options); }));
    }
    for (std::size_t i = 0; i < subjects.size(); ++i) {
        backward.push_back(timed(subjects[i].impl, [&, i] {
            attention_backward(in.q, in.k, in.v, outputs[i], in.dout, subjects[i].options);
        }));
    }
    if (!options.front_end.empty()) {
        subjects.push_back({kThroughTorch, {}, mine});
        forward.push_back(through_torch(c, sizes, options, false));
        backward.push_back(through_torch(c, sizes, options, true));
    }
    const std::optional<Variant> torch = torch_flex(c, sizes, options);
    if (torch) {
        subjects.push_back({torch->name, {}, mine});
        forward.push_back(*torch);
    }
    const Budget budget{3, 50, options.seconds};
    const std::vector<double> times[] = {interleave(forward, budget), interleave(backward, budget)};
    const auto units = static_cast<double>(sizes.batch * sizes.heads * sizes.head_dim);
    out << fmt::format("{:<13} {:>10} {:>10} {:>10} {:>10}   {}\n", "operation", "forward ms",
                       "GFLOP/s", "back ms", "GFLOP/s", "GFLOP/s by blocks (fwd, back)");
    for (std::size_t i = 0; i < subjects.size(); ++i) {
        const double pairs = subjects[i].density.pairs * units;
        const double blocks = subjects[i].density.blocks * units;
        std::string line = fmt::format("{:<13}", subjects[i].impl), by_blocks;
        for (const int direction : {0, 1}) {
            if (i >= times[direction].size()) {  // torch has no backward on the CPU
                line += fmt::format(" {:>10} {:>10}", "-", "-");
                continue;
            }
            Row row;
            row.case_name = c.name;
            row.operation = direction == 0 ? "forward" : "backward";
            row.impl = subjects[i].impl;
            row.ms = times[direction][i] * 1e3;
            const double work = direction == 0 ? 4 : 10;
            row.tflops = work * pairs / row.ms * 1e-9;
            row.tflops_blocks = work * blocks / row.ms * 1e-9;
            line += ' ' + rate(work * pairs, row.ms);
            by_blocks +=
                fmt::format("{}{:.1f}", direction == 0 ? "" : ", ", work * blocks / row.ms * 1e-6);
            if (i == 0) {
                const std::size_t other = torch && direction == 0 ? subjects.size() - 1 : 1;
                if (other < subjects.size()) {
                    row.baseline = subjects[other].impl;
                    row.ratio = times[direction][other] / times[direction][0];
                }
                if (options.check) {
                    row.error = direction == 0 ? errors.forward : errors.backward;
                    row.ok = direction == 0 ? errors.forward_ok : errors.backward_ok;
                }
            }
            if (row.impl == kThroughTorch) {
                row.baseline = subjects[0].impl;
                row.ratio = times[direction][0] / times[direction][i];
                by_blocks += fmt::format("{}{:.1f}%", direction == 0 ? "; of the C++ rate " : ", ",
                                         *row.ratio * 100);
            }
            report.add(std::move(row));
        }
        out << line << "   " << by_blocks << '\n';
    }
    out << fmt::format("sparsity {:.1f}% of pairs, {:.1f}% of blocks", 100 * (1 - mine.pairs / all),
                       100 * (1 - std::min(1.0, mine.blocks / all)));
    if (options.check) {
        out << fmt::format("; correct: forward {} ({:.1e}), backward {} ({:.1e})",
                           errors.forward_ok ? "yes" : "NO", errors.forward,
                           errors.backward_ok ? "yes" : "NO", errors.backward);
    }
    out << "\n\n" << std::flush;
    report.print();
}

}  // namespace

void bench_flex(const BenchOptions& given, Report& report) {
    BenchOptions options = given;
    FlexSizes sizes;
    sizes.batch = options.batch.value_or(1);
    sizes.heads = options.heads.value_or(4);
    sizes.kv_heads = options.kv_heads.value_or(sizes.heads);
    sizes.length = options.seq_len.value_or(1024);
    sizes.kv_length = options.kv_len.value_or(sizes.length);
    sizes.head_dim = options.head_dim.value_or(64);
    if (!options.baseline.empty() && options.baseline != "auto" && options.baseline != "torch-flex")
        user_error("bench", "expected --baseline torch-flex or none for flex but got {}",
                   options.baseline);
    if (!options.mask.empty() || !options.score.empty()) {
        if (options.baseline == "torch-flex")
            user_error("bench",
                       "expected --baseline torch-flex with the cases, not with --mask or "
                       "--score: torch cannot read their texts");
        options.baseline.clear();
        if (!options.only.empty())
            user_error("bench", "expected --case or --mask and --score but got both");
        bench_case([&](const FlexSizes& s) { return text_case(options.mask, options.score, s); },
                   sizes, options, report);
        return;
    }
    if (options.kv_len)
        user_error("bench",
                   "expected --kv-len with --mask or --score: the cases have lengths of "
                   "their own");
    std::vector<std::string> names = flex_case_names();
    if (!options.only.empty()) names = {options.only};
    for (const std::string& name : names)
        bench_case([&](const FlexSizes& s) { return flex_case(name, s); }, sizes, options, report);
}

}  // namespace tilewright::cli
