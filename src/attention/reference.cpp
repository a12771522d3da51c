// Dense attention in f64, or in the plain arithmetic of a narrower type; one query row at a time.
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
    if (options.window_left >= 0 && kv < q - options.window_left) return false;
    if (options.window_right >= 0 && kv > q + options.window_right) return false;
    if (options.segment_ids.given()) {
        const Array& kv_ids =
            options.kv_segment_ids.given() ? options.kv_segment_ids : options.segment_ids;
        if (options.segment_ids(b, q) != kv_ids(b, kv)) return false;
    }
    return true;
}

/// Sum of a[i] * b[i], every step rounded to Accumulator.
template <typename Accumulator>
double dot(const double* a, const double* b, std::int64_t size) {
    Accumulator sum = 0;
    for (std::int64_t i = 0; i < size; ++i)
        sum += static_cast<Accumulator>(a[i]) * static_cast<Accumulator>(b[i]);
    return sum;
}

/// sum[i] += factor * a[i], every step rounded to Accumulator.
template <typename Accumulator>
void add_scaled(double* sum, double factor, const double* a, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i)
        sum[i] = static_cast<Accumulator>(sum[i]) +
                 static_cast<Accumulator>(factor) * static_cast<Accumulator>(a[i]);
}

/// Scores, statistics and probabilities of one query row.
struct Row {
    std::vector<double> probabilities;
    double max_score = -kInfinity;
    double lse = -kInfinity;
};

template <typename Accumulator>
Row softmax_row(const Array& query, const Array& key, const ReferenceOptions& options, double scale,
                std::int64_t b, std::int64_t h, std::int64_t kv_head, std::int64_t q) {
    const std::int64_t length = key.dim(2), depth = key.dim(3);
    Row row;
    row.probabilities.assign(static_cast<std::size_t>(length), -kInfinity);
    for (std::int64_t kv = 0; kv < length; ++kv) {
        double& score = row.probabilities[static_cast<std::size_t>(kv)];
        score = options.mask_value;
        if (attends(options, b, q, kv)) {
            score = dot<Accumulator>(query.row(b, h, q), key.row(b, kv_head, kv), depth);
            score = round_to(scale * round_to(score, options.arithmetic), options.arithmetic);
        }
        // std::max would drop a NaN.
        if (!(score <= row.max_score)) row.max_score = score;
    }
    if (row.max_score == -kInfinity) {
        std::fill(row.probabilities.begin(), row.probabilities.end(), 0.0);
        return row;
    }
    Accumulator sum = 0;
    for (double& p : row.probabilities) {
        p = static_cast<Accumulator>(std::exp(p - row.max_score));
        sum += static_cast<Accumulator>(p);
    }
    row.lse = row.max_score + std::log(static_cast<double>(sum));
    for (double& p : row.probabilities) p = round_to(p / sum, options.arithmetic);
    return row;
}

template <typename Accumulator>
ReferenceOutput forward(const Array& query, const Array& key, const Array& value,
                        const ReferenceOptions& options, const Sizes& s, double scale) {
    ReferenceOutput result{Array({s.batch, s.query_heads, s.query_length, s.value_dim}),
                           Array({s.batch, s.query_heads, s.query_length}),
                           Array({s.batch, s.query_heads, s.query_length})};
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q) {
                const std::int64_t kv_head = h / (s.query_heads / s.kv_heads);
                const Row row =
                    softmax_row<Accumulator>(query, key, options, scale, b, h, kv_head, q);
                result.lse(b, h, q) = row.lse;
                result.max_scores(b, h, q) = row.max_score;
                double* out = result.out.row(b, h, q);
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv)
                    add_scaled<Accumulator>(out, row.probabilities[static_cast<std::size_t>(kv)],
                                            value.row(b, kv_head, kv), s.value_dim);
                for (std::int64_t d = 0; d < s.value_dim; ++d)
                    out[d] = round_to(out[d], options.arithmetic);
            }
    return result;
}

template <typename Accumulator>
ReferenceGradients backward(const Array& query, const Array& key, const Array& value,
                            const Array& dout, const Array& dlse, const ReferenceOptions& options,
                            const Sizes& s, double scale) {
    ReferenceGradients result{Array(query.shape), Array(key.shape), Array(value.shape)};
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.query_heads; ++h)
            for (std::int64_t q = 0; q < s.query_length; ++q) {
                const std::int64_t kv_head = h / (s.query_heads / s.kv_heads);
                const Row row =
                    softmax_row<Accumulator>(query, key, options, scale, b, h, kv_head, q);
                std::vector<double> dp(static_cast<std::size_t>(s.kv_length));
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv)
                    dp[static_cast<std::size_t>(kv)] = round_to(
                        dot<Accumulator>(dout.row(b, h, q), value.row(b, kv_head, kv), s.value_dim),
                        options.arithmetic);
                // sum over kv of P dP, the same as the sum over d of out dout.
                double delta = dot<Accumulator>(row.probabilities.data(), dp.data(), s.kv_length);
                if (dlse.given()) delta -= dlse(b, h, q);
                for (std::int64_t kv = 0; kv < s.kv_length; ++kv) {
                    const double p = row.probabilities[static_cast<std::size_t>(kv)];
                    if (p == 0) continue;
                    const double ds = round_to(p * (dp[static_cast<std::size_t>(kv)] - delta),
                                               options.arithmetic);
                    add_scaled<Accumulator>(result.value.row(b, kv_head, kv), p, dout.row(b, h, q),
                                            s.value_dim);
                    add_scaled<Accumulator>(result.query.row(b, h, q), ds, key.row(b, kv_head, kv),
                                            s.head_dim);
                    add_scaled<Accumulator>(result.key.row(b, kv_head, kv), ds, query.row(b, h, q),
                                            s.head_dim);
                }
            }
    for (double& g : result.query.data) g = round_to(scale * g, options.arithmetic);
    for (double& g : result.key.data) g = round_to(scale * g, options.arithmetic);
    for (double& g : result.value.data) g = round_to(g, options.arithmetic);
    return result;
}

}  // namespace

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

}  // namespace tilewright::attn
