// A matrix product whose activation is passed as a function and fused into the kernel.
#include "check.h"
#include "matmul_reference.h"

namespace tw = tilewright;

/// activation(x * y) for square matrices of n, in blocks of 64.
template <typename Activation>
tw::Call fused_matmul(std::int64_t n, Activation activation) {
    auto kernel = tw::kernel("fused_matmul", [activation](tw::Ref x, tw::Ref y, tw::Ref z) {
        z.store(activation(tw::dot(x.load(), y.load())));
    });
    return tw::call(
        kernel,
        {
            .grid = {n / 64, n / 64},
            .in = {tw::BlockSpec{{64, n}, [](auto i, auto) { return tw::block(i, 0); }},
                   tw::BlockSpec{{n, 64}, [](auto, auto j) { return tw::block(0, j); }}},
            .out = {tw::BlockSpec{{64, 64}, [](auto i, auto j) { return tw::block(i, j); }}},
            .out_type = {{tw::f32, {n, n}}},
        });
}

int main() {
    constexpr std::int64_t kSize = 128;
    const tw::Tensor x = examples::random_tensor({kSize, kSize}, 1);
    const tw::Tensor y = examples::random_tensor({kSize, kSize}, 2);
    const auto product = [&](std::int64_t i) {
        return examples::matmul_element(x, y, i / kSize, i % kSize);
    };

    auto with_gelu = fused_matmul(kSize, [](tw::Tile t) { return tw::gelu(t, false); });
    auto with_cap = fused_matmul(kSize, [](tw::Tile t) { return 2.0 * tw::tanh(t / 2.0); });

    return examples::check("gelu(x @ y)", with_gelu(x, y), 1e-4,
                           [&](std::int64_t i) {
                               const double v = product(i);
                               return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
                           }) |
           examples::check("2 tanh(x @ y / 2)", with_cap(x, y), 1e-4,
                           [&](std::int64_t i) { return 2 * std::tanh(product(i) / 2); });
}
