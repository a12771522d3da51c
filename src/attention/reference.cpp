// Dense attention in f64, or in plain arithmetic of a narrower type, one query row at a time.
#include "attention/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "ir/evaluate.h"
#include "ir/passes/differentiate.h"
#include "mod/evaluate.h"
#include "support/accuracy.h"

namespace tilewright::attn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
    std::int64_t batch, query_heads, kv_heads, query_length, kv_length, head_dim, value_dim;
};

void expect_shape(const char* argument, const Array& array, std::vector<std::int64_t> expected) {
    if (array.shape == expected) return;
    user_error("attention", "expected {} of shape ({}) but got ({})", argument,
               fmt::join(expected, ", "), fmt::join(array.shape, ", "));
}

Sizes check(const Array& query, const Array& key, const Array& value,
            const ReferenceOptions& options) {
    if (query.rank() != 4 || key.rank() != 4 || value.rank() != 4)
        user_error("attention", "expected query, key and value of rank 4 but got {}, {} and {}",
                   query.rank(), key.rank(), value.rank());
    Sizes s{query.dim(0), query.dim(1), key.dim(1),  query.dim(2),
            key.dim(2),   query.dim(3), value.dim(3)};
    expect_shape("key", key, {s.batch, s.kv_heads, s.kv_length, s.head_dim});
    expect_shape("value", value, {s.batch, s.kv_heads, s.kv_length, s.value_dim});
    if (s.kv_heads == 0 ? s.query_heads != 0 : s.query_heads % s.kv_heads != 0)
        user_error("attention",
                   "expected query heads to be a multiple of kv heads but got {} and {}",
                   s.query_heads, s.kv_heads);
    if (options.kv_lengths.given()) expect_shape("kv_lengths", options.kv_lengths, {s.batch});
    if (options.sinks.given()) expect_shape("sinks", options.sinks, {s.query_heads});
    if (options.segment_ids.given())
        expect_shape("segment_ids", options.segment_ids, {s.batch, s.query_length});
    if (options.kv_segment_ids.given())
        expect_shape("kv_segment_ids", options.kv_segment_ids, {s.batch, s.kv_length});
    else if (options.segment_ids.given())
        expect_shape("segment_ids (as kv_segment_ids)", options.segment_ids,
                     {s.batch, s.kv_length});
    return s;
}

double effective_scale(const ReferenceOptions& options, const Sizes& s) {
    const auto depth = static_cast<double>(std::max<std::int64_t>(s.head_dim, 1));
    return options.scale.value_or(1 / std::sqrt(depth));
}

bool attends(const ReferenceOptions& options, std::int64_t b, std::int64_t q, std::int64_t kv) {
    if (options.causal && kv > q) return false;
    if (options.window_left >= 0 && q - kv > options.window_left) return false;
    if (options.window_right >= 0 && kv - q > options.window_right) return false;
    if (options.kv_lengths.given() && static_cast<double>(kv) >= options.kv_lengths(b))
        return false;
    if (options.segment_ids.given()) {
        const Array& kv_ids =
            options.kv_segment_ids.given() ? options.kv_segment_ids : options.segment_ids;
        if (options.segment_ids(b, q) != kv_ids(b, kv)) return false;
    }
    return true;
}

/// The mods of one computation, evaluated pair by pair.
class Mods {
  public:
    /// With `sizes`, the gradients of captures are sizes (reference_sizes) instead of sums.
    explicit Mods(const ReferenceOptions& options, bool sizes = false)
        : options_(options), sizes_(sizes) {
        const DType dtype = options.arithmetic == DType::f64 ? DType::f64 : DType::f32;
        if (options.mask.defined()) mask_.emplace(mod::trace(options.mask));
        if (!options.score_mod.defined()) return;
        const mod::Traced& traced = mod::trace(options.score_mod, dtype);
        score_.emplace(traced);
        ir::DifferentiateOptions chosen{{true, false, false, false, false}, {}};
        std::vector<Tensor> tensors;
        for (const Capture& capture : traced.captures) {
            chosen.refs.push_back(capture.differentiable());
            tensors.push_back(capture.tensor());
        }
        derivative_ = *traced.function;
        report_ = ir::differentiate(derivative_, chosen);
        gradient_.emplace(derivative_, std::move(tensors));
        for (const Capture& capture : traced.captures) {
            place_.push_back(captured_.size());
            if (capture.differentiable()) captured_.emplace_back(capture.tensor().shape());
        }
    }

    bool attends(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
        return !mask_ || mask_->mask(options_.first_batch + b, options_.first_head + h, q, kv);
    }
    double score(double score, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
        if (!score_) return score;
        return score_->score(score, options_.first_batch + b, options_.first_head + h, q, kv);
    }
    /// Returns the gradient of the unmodified score, and adds to the gradients of captures.
    double score_gradient(double score, double cotangent, std::int64_t b, std::int64_t h,
                          std::int64_t q, std::int64_t kv) {
        if (!score_) return cotangent;
        const std::uint64_t arguments[] = {std::bit_cast<std::uint64_t>(score),
                                           static_cast<std::uint64_t>(options_.first_batch + b),
                                           static_cast<std::uint64_t>(options_.first_head + h),
                                           static_cast<std::uint64_t>(q),
                                           static_cast<std::uint64_t>(kv),
                                           std::bit_cast<std::uint64_t>(cotangent)};
        const auto results = gradient_->run(arguments);
        for (const ir::GatherGradient& gather : report_.gathers) {
            Array& target = captured_[place_[gather.ref]];
            std::size_t offset = 0;
            for (std::size_t d = 0; d < gather.indices.size(); ++d) {
                offset = offset * static_cast<std::size_t>(target.shape[d]) +
                         static_cast<std::size_t>(results[gather.indices[d]]);
            }
            if (offset >= target.data.size()) continue;
            double& sum = target.data[offset];
            const auto term = std::bit_cast<double>(results[gather.value]);
            sum = sizes_ ? std::hypot(sum, term) : sum + term;
            if (options_.arithmetic != DType::f64) sum = static_cast<float>(sum);
        }
        return std::bit_cast<double>(results[0]);
    }
    std::vector<Array> captured() { return std::move(captured_); }

  private:
    const ReferenceOptions& options_;
    bool sizes_;
    std::optional<mod::Evaluator> mask_, score_, gradient_;
    ir::Function derivative_;
    ir::DifferentiateReport report_;
    std::vector<std::size_t> place_;  ///< for each capture, its index in captured_
    std::vector<Array> captured_;
};

/// Sum of a[i] * b[i] with every step rounded to Accumulator.
template <typename Accumulator>
double dot(const double* a, const double* b, std::int64_t size) {
    Accumulator sum = 0;
    for (std::int64_t i = 0; i < size; ++i)
        sum += static_cast<Accumulator>(a[i]) * static_cast<Accumulator>(b[i]);
    return sum;
}

/// sum[i] += factor * a[i] with every step rounded to Accumulator.
template <typename Accumulator>
void add_scaled(double* sum, double factor, const double* a, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i)
        sum[i] = static_cast<Accumulator>(sum[i]) +
                 static_cast<Accumulator>(factor) * static_cast<Accumulator>(a[i]);
}

/// The larger of the two, or NaN if either is, which std::max might drop.
double larger(double a, double b) {
    return std::isnan(a) || b <= a ? a : b;
}

/// Scores, statistics and probabilities of one query row.
struct Row {
    std::vector<bool> attended;  ///< pairs that contribute; those masked with -inf do not
    std::vector<double> scores;  ///< scaled, before the score mod
    std::vector<double> probabilities;
    std::vector<double> kept;  ///< probabilities after dropout
    double sink = 0;           ///< probability of the sink
    double max_score = -kInfinity;
    double lse = -kInfinity;
};

template <typename Accumulator>
Row softmax_row(const Array& query, const Array& key, const ReferenceOptions& options, Mods& mods,
                double scale, std::int64_t b, std::int64_t h, std::int64_t kv_head,
                std::int64_t q) {
    const std::int64_t length = key.dim(2), depth = key.dim(3);
    Row row;
    row.probabilities.assign(length, -kInfinity);
    row.scores.assign(length, 0);
    row.attended.assign(length, options.mask_value != -kInfinity);
    for (std::int64_t kv = 0; kv < length; ++kv) {
        double& score = row.probabilities[kv];
        score = options.mask_value;
        if (attends(options, b, q, kv) && mods.attends(b, h, q, kv)) {
            score = dot<Accumulator>(query.row(b, h, q), key.row(b, kv_head, kv), depth);
            score = round_to(scale * round_to(score, options.arithmetic), options.arithmetic);
            row.scores[kv] = score;
            row.attended[kv] = true;
            score = round_to(mods.score(score, b, h, q, kv), options.arithmetic);
        }
        row.max_score = larger(row.max_score, score);
    }
    const double sink = options.sinks.given() ? options.sinks(h) : -kInfinity;
    const double top = larger(row.max_score, sink);
    row.kept.assign(length, 0.0);
    if (top == -kInfinity) {
        std::fill(row.probabilities.begin(), row.probabilities.end(), 0.0);
        return row;
    }
    constexpr DType accumulator = std::is_same_v<Accumulator, float> ? DType::f32 : DType::f64;
    const std::vector<double> masked = row.probabilities;
    const double share = std::exp(sink - top);
    Accumulator sum = 0;
    for (double& p : row.probabilities) {
        p = static_cast<Accumulator>(std::exp(p - top));
        sum += static_cast<Accumulator>(p);
    }
    sum += static_cast<Accumulator>(share);
    row.lse = top + std::log(static_cast<double>(sum));
    row.sink = share / sum;
    // As in fused kernels: rounded when stored, and rounded again in log2 units.
    const double stored =
        round_to(round_to(row.lse, accumulator) * std::numbers::log2e, accumulator) /
        std::numbers::log2e;
    if (options.from_stored) row.sink = std::exp(sink - stored);
    for (std::int64_t kv = 0; kv < length; ++kv) {
        const std::size_t place = kv;
        double& p = row.probabilities[place];
        p = round_to(options.from_stored ? std::exp(masked[place] - stored) : p / sum,
                     options.arithmetic);
        row.kept[place] = p * dropout_factor(options.dropout, options.seed, options.first_batch + b,
                                             options.first_head + h, q, kv);
    }
    return row;
}

template <typename Accumulator>
ReferenceOutput forward(const Array& query, const Array& key, const Array& value,
                        const ReferenceOptions& options, const Sizes& s, double scale) {
    ReferenceOutput result{Array({s.batch, s.query_heads, s.query_length, s.value_dim}),
                           Array({s.batch, s.query_heads, s.query_length}),
                           Array({s.batch, s.query_heads, s.query_length})};
    Mods mods(options);
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q) {
                const std::int64_t kv_head = h / (s.query_heads / s.kv_heads);
                const Row row =
                    softmax_row<Accumulator>(query, key, options, mods, scale, b, h, kv_head, q);
                result.lse(b, h, q) = row.lse;
                result.max_scores(b, h, q) = row.max_score;
                double* out = result.out.row(b, h, q);
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv) {
                    if (!row.attended[kv]) continue;
                    add_scaled<Accumulator>(out, row.kept[kv], value.row(b, kv_head, kv),
                                            s.value_dim);
                }
                for (std::int64_t d = 0; d < s.value_dim; ++d)
                    out[d] = round_to(out[d], options.arithmetic);
            }
    return result;
}

template <typename Accumulator>
ReferenceGradients backward(const Array& query, const Array& key, const Array& value,
                            const Array& dout, const Array& dlse, const ReferenceOptions& options,
                            const Sizes& s, double scale) {
    ReferenceGradients result{
        Array(query.shape), Array(key.shape), Array(value.shape), Array(options.sinks), {}};
    std::fill(result.sinks.data.begin(), result.sinks.data.end(), 0.0);
    Mods mods(options);
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q) {
                const std::int64_t kv_head = h / (s.query_heads / s.kv_heads);
                const Row row =
                    softmax_row<Accumulator>(query, key, options, mods, scale, b, h, kv_head, q);
                std::vector<double> dp(s.kv_length);
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv) {
                    if (!row.attended[kv]) continue;
                    dp[kv] = round_to(dot<Accumulator>(dout.row(b, h, q), value.row(b, kv_head, kv),
                                                       s.value_dim),
                                      options.arithmetic) *
                             dropout_factor(options.dropout, options.seed, options.first_batch + b,
                                            options.first_head + h, q, kv);
                }
                // The sum over kv of P dP, which equals the sum over d of out dout.
                double delta = dot<Accumulator>(row.probabilities.data(), dp.data(), s.kv_length);
                if (options.from_stored) {
                    std::vector<double> out(s.value_dim);
                    for (std::int64_t kv = 0; kv < s.kv_length; ++kv) {
                        if (!row.attended[kv]) continue;
                        add_scaled<Accumulator>(out.data(), row.kept[kv], value.row(b, kv_head, kv),
                                                s.value_dim);
                    }
                    for (double& x : out) x = round_to(x, options.arithmetic);
                    delta = dot<Accumulator>(out.data(), dout.row(b, h, q), s.value_dim);
                }
                if (dlse.given()) delta -= dlse(b, h, q);
                if (options.sinks.given()) result.sinks(h) -= row.sink * delta;
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv) {
                    const std::size_t place = kv;
                    const double p = row.probabilities[place];
                    if (p == 0) continue;
                    const double ds =
                        round_to(mods.score_gradient(row.scores[place], p * (dp[place] - delta), b,
                                                     h, q, kv),
                                 options.arithmetic);
                    add_scaled<Accumulator>(result.value.row(b, kv_head, kv), row.kept[place],
                                            dout.row(b, h, q), s.value_dim);
                    add_scaled<Accumulator>(result.query.row(b, h, q), ds, key.row(b, kv_head, kv),
                                            s.head_dim);
                    add_scaled<Accumulator>(result.key.row(b, kv_head, kv), ds, query.row(b, h, q),
                                            s.head_dim);
                }
            }
    for (double& g : result.query.data) g = round_to(scale * g, options.arithmetic);
    for (double& g : result.key.data) g = round_to(scale * g, options.arithmetic);
    for (double& g : result.value.data) g = round_to(g, options.arithmetic);
    result.captured = mods.captured();
    return result;
}

/// Square root of the sum of the squares of a[i] * b[i].
double size_of_dot(const double* a, const double* b, std::int64_t size) {
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) squares += a[i] * b[i] * (a[i] * b[i]);
    return std::sqrt(squares);
}

/// sum[i] = sqrt(sum[i]^2 + (factor * a[i])^2).
void add_size(double* sum, double factor, const double* a, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) sum[i] = std::hypot(sum[i], factor * a[i]);
}

}  // namespace

double dropout_factor(double rate, std::uint64_t seed, std::int64_t b, std::int64_t h,
                      std::int64_t q, std::int64_t kv) {
    if (rate <= 0) return 1;
    const auto word = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
    const std::uint64_t head = word(b) << 32 | word(h);
    const std::uint64_t key =
        std::uint64_t{ir::philox(seed, head << 1 | 1)} << 32 | ir::philox(seed, head << 1);
    const double threshold = std::min<double>(std::round(rate * 0x1p32), 0xffffffff);
    return ir::philox(key, word(q) << 32 | word(kv)) >= threshold ? 1 / (1 - rate) : 0;
}

Array reference_attended_keys(const Array& query, const Array& key,
                              const ReferenceOptions& options) {
    const Sizes s = check(query, key, key, options);
    Array result({s.batch, s.kv_heads, s.kv_length});
    Mods mods(options);
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q)
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv)
                    if (attends(options, b, q, kv) && mods.attends(b, h, q, kv))
                        result(b, h / (s.query_heads / s.kv_heads), kv) = 1;
    return result;
}

ReferenceOutput reference_forward(const Array& query, const Array& key, const Array& value,
                                  const ReferenceOptions& options) {
    const Sizes s = check(query, key, value, options);
    const double scale = effective_scale(options, s);
    return options.arithmetic == DType::f64 ? forward<double>(query, key, value, options, s, scale)
                                            : forward<float>(query, key, value, options, s, scale);
}

ReferenceGradients reference_backward(const Array& query, const Array& key, const Array& value,
                                      const Array& dout, const Array& dlse,
                                      const ReferenceOptions& options) {
    const Sizes s = check(query, key, value, options);
    expect_shape("dout", dout, {s.batch, s.query_heads, s.query_length, s.value_dim});
    if (dlse.given()) expect_shape("dlse", dlse, {s.batch, s.query_heads, s.query_length});
    const double scale = effective_scale(options, s);
    return options.arithmetic == DType::f64
               ? backward<double>(query, key, value, dout, dlse, options, s, scale)
               : backward<float>(query, key, value, dout, dlse, options, s, scale);
}

ReferenceSizes reference_sizes(const Array& query, const Array& key, const Array& value,
                               const Array& dout, const ReferenceOptions& options) {
    const Sizes s = check(query, key, value, options);
    const double scale = effective_scale(options, s);
    const DType accumulator = options.arithmetic == DType::f64 ? DType::f64 : DType::f32;
    const double of_scores = epsilon(accumulator) / epsilon(options.arithmetic);
    // f16 keeps the spacing of its smallest normal number below it; other types may lose smaller
    // numbers.
    const double least = options.arithmetic == DType::f16
                             ? smallest_normal(DType::f16)
                             : smallest_normal(options.arithmetic) / epsilon(options.arithmetic);
    ReferenceOptions exact = options;
    exact.arithmetic = DType::f64;
    ReferenceSizes result{
        Array({s.batch, s.query_heads, s.query_length, s.value_dim}),
        Array({s.batch, s.query_heads, s.query_length}),
        {Array(query.shape), Array(key.shape), Array(value.shape), Array(options.sinks), {}}};
    auto& [dq, dk, dv, dsinks, captured] = result.gradients;
    std::fill(dsinks.data.begin(), dsinks.data.end(), 0.0);
    Mods mods(exact, true), scores(exact);
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q) {
                const std::int64_t kv_head = h / (s.query_heads / s.kv_heads);
                const Row row =
                    softmax_row<double>(query, key, exact, mods, scale, b, h, kv_head, q);
                const std::size_t keys = s.kv_length;
                std::vector<double> dp(keys), relative(keys), sized(keys);
                for (std::size_t kv = 0; kv < keys; ++kv) {
                    if (row.probabilities[kv] == 0) continue;
                    const auto at = static_cast<std::int64_t>(kv);
                    const double* values = value.row(b, kv_head, at);
                    const double dot = scale * size_of_dot(query.row(b, h, q),
                                                           key.row(b, kv_head, at), s.head_dim);
                    const double score =
                        std::abs(scores.score_gradient(row.scores[kv], dot, b, h, q, at)) +
                        std::abs(scores.score(row.scores[kv], b, h, q, at));
                    result.lse(b, h, q) = larger(result.lse(b, h, q), score);
                    // exp(score - lse): an absolute error of either is a relative one of the
                    // result.
                    relative[kv] = 1 + of_scores * (score + std::abs(row.lse));
                    sized[kv] = std::max(row.kept[kv] * relative[kv], least);
                    add_size(result.out.row(b, h, q), sized[kv], values, s.value_dim);
                    if (!dout.given()) continue;
                    const double* gradient = dout.row(b, h, q);
                    dp[kv] = size_of_dot(gradient, values, s.value_dim);
                    add_size(dv.row(b, kv_head, at), sized[kv], gradient, s.value_dim);
                }
                if (!dout.given()) continue;
                const double delta = size_of_dot(row.kept.data(), dp.data(), s.kv_length);
                if (dsinks.given()) {
                    const double sink = row.sink * (1 + of_scores * std::abs(row.lse));
                    dsinks(h) = std::hypot(
                        dsinks(h),
                        std::max(sink, least) * size_of_dot(sized.data(), dp.data(), s.kv_length));
                }
                for (std::size_t kv = 0; kv < keys; ++kv) {
                    if (row.probabilities[kv] == 0) continue;
                    const auto at = static_cast<std::int64_t>(kv);
                    const double modified = std::max(
                        (row.kept[kv] * dp[kv] + row.probabilities[kv] * delta) * relative[kv],
                        least);
                    double ds =
                        std::abs(mods.score_gradient(row.scores[kv], modified, b, h, q, at));
                    // A derivative of 0 may be a difference that cancels, such as 1 - tanh^2.
                    if (options.score_mod.defined()) ds = std::max(ds, modified);
                    add_size(dq.row(b, h, q), scale * ds, key.row(b, kv_head, at), s.head_dim);
                    add_size(dk.row(b, kv_head, at), scale * ds, query.row(b, h, q), s.head_dim);
                }
            }
    captured = mods.captured();
    return result;
}

}  // namespace tilewright::attn
