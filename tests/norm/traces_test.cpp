// One compiled program of a norm handles every number of rows.
#include <gtest/gtest.h>

#include "norm/programs.h"
#include "tests/support/accuracy.h"

namespace tilewright::norm {
namespace {

using testing::random_tensor;

/// The calls of a LayerNorm with a residual, forward and backward, for rows of n elements.
struct Calls {
    explicit Calls(std::int64_t n)
        : o{.layer = true, .weight = true, .bias = true, .residual = true, .n = n},
          weight(random_tensor(f32, {n}, 1)) {}

    /// Gradients for short rows.
    void run_backward(const Tensor& x, const Tensor& row) {
        const std::vector<Tensor> grads = backward.run({x, x, row, row, weight, x});
        sum.run({grads[1]});
    }

    Options o;
    Tensor weight;
    Call forward = norm::forward(o), backward = norm::backward(o);
    Call statistics = row_statistics(o), second = forward_long(o);
    Call products = row_products(o), backward_second = backward_long(o);
    Call sum = sum_parts(f32, false);
};

TEST(Traces, NormsAreTracedOnceForEveryNumberOfRows) {
    Calls calls(40);
    for (const std::int64_t rows : {70, 1000, 64, 131}) {
        const Tensor x = random_tensor(f32, {rows, 40}, 2), row = random_tensor(f32, {rows}, 3);
        calls.forward.run({x, calls.weight, calls.weight, x});
        calls.run_backward(x, row);
    }
    // Also fewer rows than there are partial sums of the gradient.
    for (const std::int64_t rows : {1, 7, 63}) {
        calls.run_backward(random_tensor(f32, {rows, 40}, 2), random_tensor(f32, {rows}, 3));
    }
    EXPECT_EQ(calls.forward.num_traces(), 1);
    EXPECT_EQ(calls.backward.num_traces(), 1);
    EXPECT_EQ(calls.sum.num_traces(), 1);
}

TEST(Traces, NormsOfLongRowsAreTracedOnceForEveryNumberOfRows) {
    const std::int64_t n = kLongestTile + 5;
    Calls calls(n);
    for (const std::int64_t rows : {2, 1, 5}) {
        const Tensor x = random_tensor(f32, {rows, n}, 2), row = random_tensor(f32, {rows}, 3);
        const std::vector<Tensor> parts = calls.statistics.run({x, x});
        calls.second.run({x, calls.weight, calls.weight, {}, parts[0], parts[1]});
        const std::vector<Tensor> products = calls.products.run({x, x, row, row, calls.weight});
        calls.backward_second.run({x, x, row, row, calls.weight, x, products[0], products[1]});
    }
    EXPECT_EQ(calls.statistics.num_traces(), 1);
    EXPECT_EQ(calls.second.num_traces(), 1);
    EXPECT_EQ(calls.products.num_traces(), 1);
    EXPECT_EQ(calls.backward_second.num_traces(), 1);
}

}  // namespace
}  // namespace tilewright::norm
