// Blocked matrix product with relu: each program of a 2 x 2 grid computes one block of z from a
// band of rows of x and a band of columns of y.
#include <algorithm>

#include "check.h"
#include "matmul_reference.h"

namespace tw = tilewright;

int main() {
    auto matmul = tw::kernel("matmul", [](tw::Ref x, tw::Ref y, tw::Ref z) {
        z.store(tw::relu(tw::dot(x.load(), y.load())));
    });
    auto call = tw::call(
        matmul,
        {
            .grid = {2, 2},
            .in = {tw::BlockSpec{{512, 1024}, [](auto i, auto j) { return tw::block(i, 0); }},
                   tw::BlockSpec{{1024, 512}, [](auto i, auto j) { return tw::block(0, j); }}},
            .out = {tw::BlockSpec{{512, 512}, [](auto i, auto j) { return tw::block(i, j); }}},
            .out_type = {{tw::f32, {1024, 1024}}},
        });

    const tw::Tensor x = examples::random_tensor({1024, 1024}, 1);
    const tw::Tensor y = examples::random_tensor({1024, 1024}, 2);
    tw::Tensor z = call(x, y);

    // Every 37th column keeps the plain reference quick.
    const tw::Tensor sample = z.slice(1, 0, 28, 37);
    return examples::check("matmul", sample, 1e-4, [&](std::int64_t i) {
        return std::max(examples::matmul_element(x, y, i / 28, i % 28 * 37), 0.0);
    });
}
