// The results of one attention, compared with the dense reference.
#include "cli/attention_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "attention/reference.h"
#include "cli/progress.h"
#include "cpu/machine.h"
#include "run/to_array.h"
#include "support/accuracy.h"

namespace tilewright::cli {
namespace {

/// Rows [b, b + 1) x [h, h + heads) of a (B, H, ...) array.
Array part_of(const Array& x, std::int64_t b, std::int64_t h, std::int64_t heads) {
    Array result;
    if (!x.given()) return result;
    result.shape = x.shape;
    result.shape[0] = 1;
    std::int64_t row = 1;
    for (std::size_t axis = 2; axis < x.shape.size(); ++axis) row *= x.shape[axis];
    result.shape[1] = heads;
    const auto first = x.data.begin() + (b * x.shape[1] + h) * row;
    result.data.assign(first, first + heads * row);
    return result;
}

/// Compares with the dense reference, one (batch, kv head) at a time on all cores.
class Checker {
  public:
    explicit Checker(const AttentionRun& run)
        : query_(bhsd(run.query, run.options)),
          key_(bhsd(run.key, run.options)),
          value_(bhsd(run.value, run.options)),
          dtype_(run.query.dtype()),
          layout_(run.options.layout) {
        const AttentionOptions& options = run.options;
        options_.scale = options.scale;
        options_.causal = options.causal;
        options_.window_left = options.window.left;
        options_.window_right = options.window.right;
        options_.mask = options.mask;
        options_.score_mod = options.score_mod;
        options_.dropout = options.dropout;
        options_.seed = options.seed;
        sinks_ = to_array(options.sinks);
        sinks_dtype_ = options.sinks.defined() ? options.sinks.dtype() : f32;
        segment_ids_ = to_array(options.segment_ids);
        kv_segment_ids_ = to_array(options.kv_segment_ids);
        kv_lengths_ = to_array(options.kv_lengths);
    }

    /// Prints a line per result and returns whether all are within the allowed error.
    bool check(const AttentionOutput& output, const AttentionGradients& gradients,
               const Tensor& dout, std::ostream& out) const {
        const DType statistics = dtype_ == f64 ? f64 : f32;
        std::vector<Compared> results = {{"out", to_array(view(output.out)), dtype_},
                                         {"lse", to_array(output.lse), statistics}};
        if (dout.defined()) {
            results.push_back({"grad query", to_array(view(gradients.query)), dtype_});
            results.push_back({"grad key", to_array(view(gradients.key)), dtype_});
            results.push_back({"grad value", to_array(view(gradients.value)), dtype_});
        }
        const Array gradient = dout.defined() ? to_array(view(dout)) : Array();
        // Gradients that all heads share are summed up, then compared.
        std::vector<Shared> shared;
        if (dout.defined() && sinks_.given()) {
            shared.push_back({{"grad sinks", to_array(gradients.sinks), sinks_dtype_}});
        }
        std::size_t place = 0;
        if (!gradients.captured.empty()) {
            for (const Capture& capture : options_.score_mod.captures()) {
                if (!capture.differentiable()) continue;
                const Tensor& captured = gradients.captured[place++];
                shared.push_back(
                    {{"grad " + capture.name(), to_array(captured), captured.dtype()}});
            }
        }
        for (Shared& sum : shared) {
            sum.exact = sum.plain = sum.sizes = Array(sum.compared.ours.shape);
        }
        const std::int64_t kv_heads = key_.dim(1);
        const std::int64_t group = kv_heads == 0 ? 1 : query_.dim(1) / kv_heads;
        std::mutex mutex;
        Progress progress("check");
        const std::int64_t parts = query_.dim(0) * kv_heads;
        std::int64_t done = 0;
        cpu::parallel_for(parts, [&](std::int64_t i) {
            const std::int64_t b = i / kv_heads, kv = i % kv_heads;
            const std::vector<Array> exact = reference(b, kv, group, gradient, Kind::exact);
            const std::vector<Array> plain = reference(b, kv, group, gradient, Kind::plain);
            const std::vector<Array> sizes = reference(b, kv, group, gradient, Kind::sizes);
            const std::lock_guard lock(mutex);
            progress.update(static_cast<double>(++done) / static_cast<double>(parts));
            for (std::size_t s = 0; s < shared.size(); ++s) {
                const bool is_sinks = s == 0 && sinks_.given();
                const std::int64_t first = is_sinks ? kv * group : 0;
                add(exact[results.size() + s], first, shared[s].exact);
                add(plain[results.size() + s], first, shared[s].plain);
                add(sizes[results.size() + s], first, shared[s].sizes);
            }
            for (std::size_t r = 0; r < results.size(); ++r) {
                const bool of_query = r < 3;
                const Array ours =
                    part_of(results[r].ours, b, of_query ? kv * group : kv, of_query ? group : 1);
                const double error = largest_error(ours, exact[r]);
                const double allowed =
                    allowed_error(plain[r], exact[r], results[r].dtype, sizes[r]);
                results[r].error = std::max(results[r].error, error);
                results[r].allowed = std::max(results[r].allowed, allowed);
                results[r].ok = results[r].ok && error <= allowed;
            }
        });
        for (Shared& sum : shared) {
            Compared& compared = sum.compared;
            compared.error = largest_error(compared.ours, sum.exact);
            compared.allowed =
                allowed_error(sum.plain, sum.exact, coarser(compared.dtype, dtype_), sum.sizes);
            compared.ok = compared.error <= compared.allowed;
            results.push_back(compared);
        }
        bool ok = true;
        for (const Compared& r : results) {
            out << fmt::format("check {:<10}  largest error {:.2e}, allowed {:.2e}: {}\n", r.name,
                               r.error, r.allowed, r.ok ? "ok" : "WRONG");
            ok = ok && r.ok;
        }
        return ok;
    }

  private:
    struct Compared {
        std::string name;
        Array ours;
        DType dtype;
        double error = 0, allowed = 0;
        bool ok = true;
    };

    struct Shared {
        Compared compared;
        Array exact = {}, plain = {}, sizes = {};
    };

    enum class Kind { exact, plain, sizes };

    static void add(const Array& part, std::int64_t first, Array& sum) {
        for (std::size_t i = 0; i < part.data.size(); ++i) {
            sum.data[static_cast<std::size_t>(first) + i] += part.data[i];
        }
    }

    static Array bhsd(const Tensor& x, const AttentionOptions& options) {
        return to_array(options.layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3}));
    }
    Tensor view(const Tensor& x) const {
        return layout_ == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
    }

    std::vector<Array> reference(std::int64_t b, std::int64_t kv, std::int64_t group,
                                 const Array& dout, Kind kind) const {
        attn::ReferenceOptions options = options_;
        options.arithmetic = kind == Kind::exact ? f64 : dtype_;
        options.from_stored = kind == Kind::plain;
        const auto ids = [&](const Array& all) {
            Array row;
            if (!all.given()) return row;
            row = Array({1, all.dim(1)});
            std::copy_n(all.data.begin() + b * all.dim(1), all.dim(1), row.data.begin());
            return row;
        };
        options.segment_ids = ids(segment_ids_);
        options.kv_segment_ids = ids(kv_segment_ids_);
        if (kv_lengths_.given()) {
            options.kv_lengths = Array({1});
            options.kv_lengths.data[0] = kv_lengths_(b);
        }
        options.first_batch = b;
        options.first_head = kv * group;
        if (sinks_.given()) {
            options.sinks = Array({group});
            std::copy_n(sinks_.data.begin() + kv * group, group, options.sinks.data.begin());
        }
        const Array q = part_of(query_, b, kv * group, group), k = part_of(key_, b, kv, 1),
                    v = part_of(value_, b, kv, 1);
        const Array gradient = part_of(dout, b, kv * group, group);
        std::vector<Array> results;
        attn::ReferenceGradients g;
        if (kind == Kind::sizes) {
            attn::ReferenceSizes sizes = attn::reference_sizes(q, k, v, gradient, options);
            results = {std::move(sizes.out), std::move(sizes.lse)};
            g = std::move(sizes.gradients);
        } else {
            attn::ReferenceOutput forward = attn::reference_forward(q, k, v, options);
            results = {std::move(forward.out), std::move(forward.lse)};
            if (dout.given()) g = attn::reference_backward(q, k, v, gradient, {}, options);
        }
        if (dout.given()) {
            results.push_back(std::move(g.query));
            results.push_back(std::move(g.key));
            results.push_back(std::move(g.value));
            if (sinks_.given()) results.push_back(std::move(g.sinks));
            for (Array& captured : g.captured) results.push_back(std::move(captured));
        }
        return results;
    }

    Array query_, key_, value_, segment_ids_, kv_segment_ids_, kv_lengths_, sinks_;
    DType sinks_dtype_;
    attn::ReferenceOptions options_;
    DType dtype_;
    Layout layout_;
};

}  // namespace

bool check_attention(const AttentionRun& run, std::ostream& out) {
    return Checker(run).check(run.output, run.gradients, run.dout, out);
}

}  // namespace tilewright::cli
