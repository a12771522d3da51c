// Compares what a benchmark computes on a GPU with f64 on the CPU.
#include "cli/bench/gpu_checks.h"

#include <algorithm>
#include <vector>

#include "attention/reference.h"
#include "cli/attention_check.h"
#include "run/to_array.h"
#include "support/accuracy.h"

namespace tilewright::cli {
namespace {

Tensor on_host(const Tensor& x) {
    return x.contiguous().to(Device{});
}

/// What the check compares: out, or the gradients of query, key, value and captures.
std::vector<Tensor> results_of(const AttentionInputs& in, const AttentionOptions& options,
                               bool backward) {
    const AttentionOutput out = attention(in.q, in.k, in.v, options);
    if (!backward) return {out.out};
    const AttentionGradients gradients =
        attention_backward(in.q, in.k, in.v, out, in.dout, options);
    std::vector<Tensor> results{gradients.query, gradients.key, gradients.value};
    results.insert(results.end(), gradients.captured.begin(), gradients.captured.end());
    return results;
}

/// The magnitudes of the terms of captures' gradients, in which terms cancel.
std::vector<Array> capture_sizes(const AttentionInputs& in, const AttentionOptions& options) {
    attn::ReferenceOptions reference;
    reference.causal = options.causal;
    reference.mask = options.mask;
    reference.score_mod = options.score_mod;
    reference.arithmetic = in.q.dtype();
    reference.from_stored = true;
    return attn::reference_sizes(to_array(in.q), to_array(in.k), to_array(in.v), to_array(in.dout),
                                 reference)
        .gradients.captured;
}

void compare(const Array& ours, const Array& exact, const Array& plain, DType dtype,
             double products, const Array& sizes, Row& row) {
    const double error = largest_error(ours, exact);
    const bool ok = error <= products * allowed_error(plain, exact, dtype, sizes);
    if (!row.error || !(error <= *row.error)) row.error = error;
    row.ok = row.ok && ok;
}

}  // namespace

Check check_first_head(const AttentionInputs& in, const AttentionOptions& on_gpu,
                       const AttentionOptions& given) {
    constexpr std::int64_t kLong = 4096, kRows = 64;
    return [=](bool backward, Row& row) {
        AttentionOptions host = given;
        const bool bhsd = host.layout == Layout::bhsd;
        const std::int64_t length = in.q.dim(bhsd ? 2 : 1);
        const bool plain = bhsd && !host.mask.defined() && !host.score_mod.defined();
        const std::int64_t rows = plain && length > kLong ? kRows : length, first = length - rows;
        if (first > 0 && host.causal) {
            host.causal = false;
            host.mask = [first](auto, auto, auto q, auto kv) { return kv <= q + first; };
        }
        const int heads = bhsd ? 1 : 2;
        const auto head = [&](const Tensor& x) { return x.slice(0, 0, 1).slice(heads, 0, 1); };
        const auto last = [&](const Tensor& x) {
            return on_host(head(x).slice(bhsd ? 2 : 1, first, rows));
        };
        const AttentionInputs part{last(in.q), on_host(head(in.k)), on_host(head(in.v)),
                                   last(in.dout)};
        const auto at = [&](DType type) {
            const AttentionInputs typed{part.q.to(type), part.k.to(type), part.v.to(type),
                                        part.dout.to(type)};
            return to_array(results_of(typed, host, backward).front());
        };
        const DType dtype = in.q.dtype();
        compare(to_array(last(results_of(in, on_gpu, backward).front())), at(f64), at(dtype), dtype,
                rounding_by_f32(on_gpu.precision), {}, row);
    };
}

Check check_all(const AttentionInputs& in, const AttentionOptions& on_gpu,
                const AttentionOptions& host) {
    return [=](bool backward, Row& row) {
        constexpr std::size_t kInputs = 3;
        const AttentionInputs from{on_host(in.q), on_host(in.k), on_host(in.v), on_host(in.dout)};
        const auto at = [&](DType type) {
            return results_of(
                {from.q.to(type), from.k.to(type), from.v.to(type), from.dout.to(type)}, host,
                backward);
        };
        const DType dtype = in.q.dtype();
        const std::vector<Tensor> ours = results_of(in, on_gpu, backward), exact = at(f64),
                                  plain = at(dtype);
        std::vector<Array> sizes(ours.size());
        if (ours.size() > kInputs) {
            const std::vector<Array> captured = capture_sizes(from, host);
            std::copy(captured.begin(), captured.end(), sizes.begin() + kInputs);
        }
        for (std::size_t i = 0; i < ours.size(); ++i) {
            compare(to_array(on_host(ours[i])), to_array(exact[i]), to_array(plain[i]),
                    coarser(ours[i].dtype(), dtype), rounding_by_f32(on_gpu.precision), sizes[i],
                    row);
        }
    };
}

}  // namespace tilewright::cli
