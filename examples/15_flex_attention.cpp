// Programmable attention: ALiBi with learned slopes under a sliding window within documents, with
// all gradients, checked against a dense computation.
#include <limits>

#include "check.h"

namespace tw = tilewright;

namespace {

constexpr std::int64_t kHeads = 2, kLength = 150, kDim = 8;

bool attends(std::int64_t q, std::int64_t kv) {
    return kv <= q && q - kv <= 40 && q / 50 == kv / 50;
}

/// The output and, for dout = 1, the gradient of the slopes, in f64.
struct Dense {
    std::vector<double> out, dslopes = std::vector<double>(kHeads);

    Dense(const tw::Tensor& q, const tw::Tensor& k, const tw::Tensor& v,
          const std::vector<float>& slopes) {
        for (std::int64_t h = 0; h < kHeads; ++h)
            for (std::int64_t i = 0; i < kLength; ++i) row(q, k, v, slopes, h, i);
    }

    void row(const tw::Tensor& q, const tw::Tensor& k, const tw::Tensor& v,
             const std::vector<float>& slopes, std::int64_t h, std::int64_t i) {
        std::vector<double> p(kLength, 0.0), sums(kLength, 0.0), result(kDim, 0.0);
        double total = 0, mean = 0;
        for (std::int64_t j = 0; j < kLength; ++j) {
            const auto at = static_cast<std::size_t>(j);
            for (std::int64_t d = 0; d < kDim; ++d) sums[at] += v.get({0, h, j, d});
            if (!attends(i, j)) continue;
            double score = 0;
            for (std::int64_t d = 0; d < kDim; ++d)
                score += q.get({0, h, i, d}) * k.get({0, h, j, d});
            score = score / std::sqrt(static_cast<double>(kDim)) +
                    slopes[static_cast<std::size_t>(h)] * static_cast<double>(j - i);
            total += p[at] = std::exp(score);
        }
        for (std::int64_t j = 0; j < kLength; ++j) {
            const auto at = static_cast<std::size_t>(j);
            p[at] /= total;
            mean += p[at] * sums[at];
            for (std::int64_t d = 0; d < kDim; ++d)
                result[static_cast<std::size_t>(d)] += p[at] * v.get({0, h, j, d});
        }
        out.insert(out.end(), result.begin(), result.end());
        // dS = P (dP - sum of P dP), and d score / d slope = kv - q.
        for (std::int64_t j = 0; j < kLength; ++j) {
            const auto at = static_cast<std::size_t>(j);
            dslopes[static_cast<std::size_t>(h)] +=
                p[at] * (sums[at] - mean) * static_cast<double>(j - i);
        }
    }
};

}  // namespace

int main() {
    using namespace examples;
    const tw::Tensor q = random_tensor({1, kHeads, kLength, kDim}, 1);
    const tw::Tensor k = random_tensor({1, kHeads, kLength, kDim}, 2);
    const tw::Tensor v = random_tensor({1, kHeads, kLength, kDim}, 3);

    const std::vector<float> values{0.05F, 0.01F};
    const tw::Capture slopes = tw::capture(tw::Tensor::from_vector(values, {kHeads}), "slopes");
    const auto alibi = [slopes](auto s, auto b, auto h, auto i, auto j) {
        return s + slopes[h] * (j - i);
    };
    const tw::Mod same_document = [](auto b, auto h, auto i, auto j) { return i / 50 == j / 50; };
    const tw::Mod window = tw::masks::causal() & tw::masks::sliding_window(40) & same_document;

    const tw::AttentionOptions options{.mask = window, .score_mod = alibi};
    const tw::AttentionOutput result = tw::attention(q, k, v, options);
    const tw::Tensor dout = tw::Tensor::full(tw::f32, {1, kHeads, kLength, kDim}, 1);
    const tw::AttentionGradients gradients = tw::attention_backward(q, k, v, result, dout, options);

    const Dense dense(q, k, v, values);
    int status = check("lambdas", result.out, 1e-5,
                       [&](std::int64_t i) { return dense.out[static_cast<std::size_t>(i)]; });
    status |= check("gradient of the slopes", gradients.captured[0], 1e-3,
                    [&](std::int64_t i) { return dense.dslopes[static_cast<std::size_t>(i)]; });

    // The same mods from text, and the mask as data that many calls can share.
    const tw::Bindings arrays{{"slopes", slopes.tensor()}};
    const tw::BlockMask mask = tw::create_block_mask(
        tw::parse_mod("0 <= q - kv <= 40 and q // 50 == kv // 50"), 1, 1, kLength, kLength);
    const tw::AttentionOutput from_text = tw::attention(
        q, k, v, {.block_mask = mask, .score_mod = tw::parse_mod("alibi(slopes)", arrays)});
    status |= check("text and a block mask", from_text.out, 1e-5,
                    [&](std::int64_t i) { return dense.out[static_cast<std::size_t>(i)]; });
    return status;
}
