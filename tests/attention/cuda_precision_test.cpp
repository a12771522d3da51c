// Products of f32 attention on GPUs: tf32 and bf16x3 stay within bounds derived from their
// rounding, and `precision` is refused where it does not apply. On a GPU or the stand-in for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/attention/cuda_calls.h"
#include "tilewright/attention.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using namespace cuda_calls;

/// The magnitudes that bounds are made of, for `heads` query heads on one kv head.
struct Magnitudes {
    double scores = 0;     ///< largest scale * sum |q k|
    double gradients = 0;  ///< largest sum |dout v|
    double columns = 0;    ///< largest sum of a key's probabilities over queries of all heads
    double q = 0, k = 0, v = 0, dout = 0;  ///< largest elements
};

Magnitudes magnitudes(const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& dout, bool causal = true) {
    const Array q = to_array(query), k = to_array(key), v = to_array(value), d = to_array(dout);
    const auto at = [](const Array& x, std::int64_t row, std::int64_t column, std::int64_t width) {
        return x.data[static_cast<std::size_t>(row * width + column)];
    };
    const auto largest = [](const Array& x) {
        double most = 0;
        for (const double each : x.data) most = std::max(most, std::abs(each));
        return most;
    };
    const std::int64_t length = query.dim(2), keys = key.dim(2), dim = query.dim(3);
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    Magnitudes m{.q = largest(q), .k = largest(k), .v = largest(v), .dout = largest(d)};
    std::vector<double> columns(static_cast<std::size_t>(keys));
    for (std::int64_t row = 0; row < query.dim(1) * length; ++row) {
        std::vector<double> p;
        double sum = 0;
        const std::int64_t attended = causal ? std::min(keys, row % length + 1) : keys;
        for (std::int64_t j = 0; j < attended; ++j) {
            double score = 0, size = 0, gradient = 0;
            for (std::int64_t e = 0; e < dim; ++e) {
                const double product = at(q, row, e, dim) * at(k, j, e, dim);
                score += product;
                size += std::abs(product);
                gradient += std::abs(at(d, row, e, dim) * at(v, j, e, dim));
            }
            m.scores = std::max(m.scores, scale * size);
            m.gradients = std::max(m.gradients, gradient);
            p.push_back(std::exp(scale * score));
            sum += p.back();
        }
        for (std::size_t j = 0; j < p.size(); ++j) columns[j] += p[j] / sum;
    }
    m.columns = *std::max_element(columns.begin(), columns.end());
    return m;
}

struct Results {
    Array out, dq, dk, dv;
};

Results results_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
                   const AttentionOptions& options) {
    const AttentionOutput out = attention(q, k, v, options);
    const AttentionGradients grads = attention_backward(q, k, v, out, dout, options);
    return {to_array(out.out), to_array(grads.query), to_array(grads.key), to_array(grads.value)};
}

/// `product`: the largest relative error of a product. Scores are off by product * scores, so
/// probabilities by twice that, relatively; each further product adds its own error.
void expect_within(const std::string& precision, double product, std::int64_t length,
                   std::int64_t dim) {
    SCOPED_TRACE(precision + " " + std::to_string(length) + " x " + std::to_string(dim));
    const Tensor q = random_tensor(f32, {1, 2, length, dim}, 1);
    const Tensor k = random_tensor(f32, {1, 1, 70, dim}, 2);
    const Tensor v = random_tensor(f32, {1, 1, 70, dim}, 3);
    const Tensor dout = random_tensor(f32, {1, 2, length, dim}, 4);
    const Magnitudes m = magnitudes(q, k, v, dout);
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    constexpr double kF32 = 0x1p-19;  // f32 sums of up to 140 terms, exp2
    const double of_p = 2 * (product + kF32) * m.scores + 4 * kF32, of_sum = of_p + product + kF32;
    // dS = P (dP - delta), where both are at most m.gradients; delta is off like out.
    const double of_score = m.gradients * (2 * of_p + product + of_sum + 4 * kF32);
    const double of_ds = of_score + 2 * m.gradients * (product + kF32);
    const auto on_gpu = [&](const std::string& name) {
        return results_of(q.to(kGpu), k.to(kGpu), v.to(kGpu), dout.to(kGpu),
                          {.causal = true, .engine = "tiles", .precision = name});
    };
    const Results got = on_gpu(precision), ieee = on_gpu("ieee"),
                  want =
                      results_of(q.to(f64), k.to(f64), v.to(f64), dout.to(f64), {.causal = true});
    EXPECT_LE(largest_error(got.out, want.out), of_sum * m.v);
    EXPECT_LE(largest_error(got.dq, want.dq), scale * m.k * of_ds);
    EXPECT_LE(largest_error(got.dk, want.dk), scale * m.q * m.columns * of_ds);
    EXPECT_LE(largest_error(got.dv, want.dv), m.dout * m.columns * of_sum);
    EXPECT_NE(got.out.data, ieee.out.data);
    EXPECT_NE(got.dk.data, ieee.dk.data);
    if (precision != "tf32") return;
    // An error far below the bound would mean that products are not in the precision tested.
    EXPECT_GT(largest_error(got.out, want.out), of_sum * m.v / 100);
}

TEST(CudaCallsPrecision, ErrorsAreThoseOfTheProducts) {
    TW_REQUIRE_GPU();
    for (const std::int64_t dim : {16, 64}) {
        if (is_stand_in() && dim > 16) continue;
        for (const std::int64_t length : {70, 1}) {
            expect_within("tf32", 2 * 0x1p-11, length, dim);
            expect_within("bf16x3", 3 * 0x1p-16, length, dim);
        }
    }
}

// The queries of a key head are the rows of one block if they fit in shared memory: 8 and 64 rows
// of 128 f32 columns do, 128 rows of 512 do not.
TEST(CudaCallsPrecision, OneQueryOfManyHeads) {
    TW_REQUIRE_GPU();
    const std::pair<std::int64_t, std::int64_t> shapes[] = {{8, 128}, {64, 128}, {128, 512}};
    for (const auto& [heads, dim] : shapes) {
        const Tensor q = random_tensor(f32, {1, heads, 1, dim}, 1);
        const Tensor k = random_tensor(f32, {1, 1, 40, dim}, 2);
        const Tensor v = random_tensor(f32, {1, 1, 40, dim}, 3);
        const Magnitudes m = magnitudes(q, k, v, q, false);
        const Array want = to_array(attention(q.to(f64), k.to(f64), v.to(f64), {}).out);
        constexpr double kF32 = 0x1p-19;  // as above
        const std::pair<const char*, double> precisions[] = {
            {"ieee", kF32}, {"tf32", 2 * 0x1p-11}, {"bf16x3", 3 * 0x1p-16}};
        for (const auto& [precision, product] : precisions) {
            if (is_stand_in() && (heads == 64 || (heads == 128 && product != kF32))) continue;
            SCOPED_TRACE(fmt::format("{} x {} {}", heads, dim, precision));
            const AttentionOptions options{.engine = "tiles", .precision = precision};
            const Tensor out = attention(q.to(kGpu), k.to(kGpu), v.to(kGpu), options).out;
            const double of_sum = 2 * (product + kF32) * m.scores + 5 * kF32 + product;
            EXPECT_LE(largest_error(to_array(out), want), of_sum * m.v);
        }
    }
}

TEST(CudaCallsPrecision, HoldsForMasksModsAndGradientsInAnyOrder) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(f32, {1, 2, 70, 16}, 1).to(kGpu);
    for (const char* const precision : {"tf32", "bf16x3"}) {
        SCOPED_TRACE(precision);
        const auto options = [&](const char* name) {
            AttentionOptions result{
                .window = {20, 5},
                .score_mod = [](auto s, auto, auto, auto a, auto b) { return s - abs(a - b); },
                .deterministic = false,
                .precision = name};
            result.segment_ids = ids(1, 70, 30, kGpu);
            return result;
        };
        const Results got = results_of(q, q, q, q, options(precision)),
                      ieee = results_of(q, q, q, q, options("ieee"));
        constexpr double kNear = 0.05;  // for elements up to 10, in tf32 at worst
        EXPECT_LE(largest_error(got.out, ieee.out), kNear);
        EXPECT_LE(largest_error(got.dq, ieee.dq), kNear);
        EXPECT_LE(largest_error(got.dk, ieee.dk), kNear);
        EXPECT_LE(largest_error(got.dv, ieee.dv), kNear);
        EXPECT_NE(got.out.data, ieee.out.data);
    }
}

std::string error_of(DType dtype, const std::string& precision) {
    const Tensor q = Tensor::zeros(dtype, {1, 1, 8, 16});
    try {
        attention(q, q, q, {.precision = precision});
    } catch (const UserError& error) {
        return error.what();
    }
    return "no error";
}

TEST(Precision, IsRefusedWhereItDoesNotApply) {
    EXPECT_THAT(error_of(f32, "fast"),
                HasSubstr("expected precision `ieee`, `tf32` or `bf16x3` but got `fast`"));
    EXPECT_THAT(error_of(bf16, "tf32"),
                HasSubstr("expected precision `ieee` with query of bf16 but got `tf32`"));
    EXPECT_THAT(error_of(f64, "bf16x3"), HasSubstr("with query of f64 but got `bf16x3`"));
    for (const DType dtype : {bf16, f16, f64}) EXPECT_EQ(error_of(dtype, "ieee"), "no error");
}

TEST(Precision, CpusComputeIeee) {
    const Tensor q = random_tensor(f32, {1, 2, 70, 16}, 1);
    const Results want = results_of(q, q, q, q, {.causal = true});
    for (const char* const precision : {"ieee", "tf32", "bf16x3"}) {
        const Results got = results_of(q, q, q, q, {.causal = true, .precision = precision});
        EXPECT_EQ(got.out.data, want.out.data);
        EXPECT_EQ(got.dk.data, want.dk.data);
    }
}

}  // namespace
}  // namespace tilewright
