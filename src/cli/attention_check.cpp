// Compares the results of an attention call with the dense reference.
#include "cli/attention_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>

#include "attention/reference.h"
#include "cli/progress.h"
#include "cpu/machine.h"
#include "run/to_array.h"
#include "support/accuracy.h"

namespace tilewright::cli {
namespace {

/// Heads [h, h + heads) and rows [first, first + rows) of batch b of a (B, H, L, ...) array.
Array part_of(const Array& x, std::int64_t b, std::int64_t h, std::int64_t heads,
              std::int64_t first, std::int64_t rows) {
    Array result;
    if (!x.given()) return result;
    result.shape = x.shape;
    result.shape[0] = 1;
    result.shape[1] = heads;
    result.shape[2] = rows;
    std::int64_t row = 1;
    for (std::size_t axis = 3; axis < x.shape.size(); ++axis) row *= x.shape[axis];
    for (std::int64_t head = h; head < h + heads; ++head) {
        const auto from = x.data.begin() + ((b * x.shape[1] + head) * x.shape[2] + first) * row;
        result.data.insert(result.data.end(), from, from + rows * row);
    }
    return result;
}

/// A sequence as the reference sees it: a batch, or one of those packed in the only batch.
struct Sequence {
    std::int64_t batch = 0;                    ///< batch that contains it
    std::int64_t number = 0;                   ///< its batch as mods and dropout see it
    std::int64_t q_first = 0, q_length = 0;    ///< its queries
    std::int64_t kv_first = 0, kv_length = 0;  ///< its keys
};

std::vector<Sequence> sequences_of(const AttentionOptions& options, std::int64_t batch,
                                   std::int64_t q_length, std::int64_t kv_length) {
    std::vector<Sequence> result;
    if (!options.cu_seqlens.defined()) {
        for (std::int64_t b = 0; b < batch; ++b)
            result.push_back({b, b, 0, q_length, 0, kv_length});
        return result;
    }
    const auto starts = options.cu_seqlens.to_vector<std::int64_t>();
    const auto kv_starts =
        options.kv_cu_seqlens.defined() ? options.kv_cu_seqlens.to_vector<std::int64_t>() : starts;
    for (std::size_t n = 0; n + 1 < starts.size(); ++n)
        result.push_back({0, static_cast<std::int64_t>(n), starts[n], starts[n + 1] - starts[n],
                          kv_starts[n], kv_starts[n + 1] - kv_starts[n]});
    return result;
}

/// The part of a block mask that belongs to a sequence, as a mod.
Mod mask_mod_of(const BlockMask& mask, const Sequence& s) {
    const auto [batches, heads, q_len, kv_len] = mask.shape();
    const BlockMask mine = (batches == 1 ? mask : mask.at(s.batch))
                               .shifted(s.q_first, s.kv_first, s.q_length, s.kv_length);
    const Capture pairs = capture(mine.elements(), "block_mask");
    const bool one_head = heads == 1;
    return Mod([pairs, one_head](auto, auto h, auto q, auto kv) {
        return one_head ? pairs(0, 0, q, kv) : pairs(0, h, q, kv);
    });
}

/// Compares with the dense reference, one (batch, kv head) at a time, on all cores.
class Checker {
  public:
    explicit Checker(const AttentionRun& run)
        : query_(bhsd(run.query, run.options)),
          key_(bhsd(run.key, run.options)),
          value_(bhsd(run.value, run.options)),
          dtype_(run.query.dtype()),
          products_(run.on_gpu ? rounding_by_f32(run.options.precision) : 1),
          layout_(run.options.layout),
          block_mask_(run.options.block_mask),
          sequences_(sequences_of(run.options, query_.dim(0), query_.dim(2), key_.dim(2))) {
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

    /// Prints a line for each result and returns whether all are within the allowed error.
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
        // Gradients shared by all heads are summed first, then compared.
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
        const std::int64_t parts = std::ssize(sequences_) * kv_heads;
        std::optional<Elapsed> elapsed(std::in_place, "check");
        std::int64_t done = 0;
        cpu::parallel_for(parts, [&](std::int64_t i) {
            const Sequence& s = sequences_[i / kv_heads];
            const std::int64_t kv = i % kv_heads;
            const std::vector<Array> exact = reference(s, kv, group, gradient, Kind::exact);
            const std::vector<Array> plain = reference(s, kv, group, gradient, Kind::plain);
            const std::vector<Array> sizes = reference(s, kv, group, gradient, Kind::sizes);
            const std::lock_guard lock(mutex);
            elapsed->update(static_cast<double>(++done) / static_cast<double>(parts));
            for (std::size_t n = 0; n < shared.size(); ++n) {
                const bool is_sinks = n == 0 && sinks_.given();
                const std::int64_t first = is_sinks ? kv * group : 0;
                add(exact[results.size() + n], first, shared[n].exact);
                add(plain[results.size() + n], first, shared[n].plain);
                add(sizes[results.size() + n], first, shared[n].sizes);
            }
            for (std::size_t r = 0; r < results.size(); ++r) {
                const bool of_query = r < 3;
                const Array ours = of_query ? of_queries(results[r].ours, s, kv * group, group)
                                            : of_keys(results[r].ours, s, kv);
                const double error = largest_error(ours, exact[r]);
                const double allowed =
                    products_ * allowed_error(plain[r], exact[r], results[r].dtype, sizes[r]);
                results[r].error = std::max(results[r].error, error);
                results[r].allowed = std::max(results[r].allowed, allowed);
                results[r].ok = results[r].ok && error <= allowed;
            }
        });
        elapsed.reset();  // erased before results are printed
        for (Shared& sum : shared) {
            Compared& compared = sum.compared;
            compared.error = largest_error(compared.ours, sum.exact);
            compared.allowed =
                products_ *
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
            sum.data[first + i] += part.data[i];
        }
    }

    static Array bhsd(const Tensor& x, const AttentionOptions& options) {
        return to_array(options.layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3}));
    }
    Tensor view(const Tensor& x) const {
        return layout_ == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
    }

    static Array of_queries(const Array& x, const Sequence& s, std::int64_t h, std::int64_t heads) {
        return part_of(x, s.batch, h, heads, s.q_first, s.q_length);
    }
    static Array of_keys(const Array& x, const Sequence& s, std::int64_t h) {
        return part_of(x, s.batch, h, 1, s.kv_first, s.kv_length);
    }

    std::vector<Array> reference(const Sequence& s, std::int64_t kv, std::int64_t group,
                                 const Array& dout, Kind kind) const {
        attn::ReferenceOptions options = options_;
        options.arithmetic = kind == Kind::exact ? f64 : dtype_;
        options.from_stored = kind == Kind::plain;
        const auto ids = [&](const Array& all, std::int64_t first, std::int64_t length) {
            Array row;
            if (!all.given()) return row;
            row = Array({1, length});
            std::copy_n(all.data.begin() + s.batch * all.dim(1) + first, length, row.data.begin());
            return row;
        };
        options.segment_ids = ids(segment_ids_, s.q_first, s.q_length);
        options.kv_segment_ids =
            ids(kv_segment_ids_.given() ? kv_segment_ids_ : segment_ids_, s.kv_first, s.kv_length);
        if (kv_lengths_.given()) options.kv_lengths = Array({1}, kv_lengths_(s.number));
        options.first_batch = s.number;
        options.first_head = kv * group;
        if (sinks_.given()) {
            options.sinks = Array({group});
            std::copy_n(sinks_.data.begin() + kv * group, group, options.sinks.data.begin());
        }
        if (block_mask_.defined()) {
            const Mod pairs = mask_mod_of(block_mask_, s);
            options.mask = options.mask.defined() ? options.mask & pairs : pairs;
        }
        const Array q = of_queries(query_, s, kv * group, group), k = of_keys(key_, s, kv),
                    v = of_keys(value_, s, kv);
        const Array gradient = of_queries(dout, s, kv * group, group);
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
    double products_;
    Layout layout_;
    BlockMask block_mask_;
    std::vector<Sequence> sequences_;
};

}  // namespace

// The rounding of operands relative to f32's: tf32 has 10 bits of mantissa; the two parts of a
// bf16x3 operand hold 16, and each of three products adds an error.
double rounding_by_f32(const std::string& precision) {
    if (precision == "tf32") return 0x1p-10 / 0x1p-23;
    return precision == "bf16x3" ? 3 * 0x1p-16 / 0x1p-23 : 1;
}

bool check_attention(const AttentionRun& run, std::ostream& out) {
    return Checker(run).check(run.output, run.gradients, run.dout, out);
}

}  // namespace tilewright::cli
