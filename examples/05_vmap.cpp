// vmap: a matrix product over a batch, and over a batch of x with one shared y.
#include "check.h"
#include "matmul_reference.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kBatch = 4, kSize = 64;
    auto matmul = tw::kernel(
        "matmul", [](tw::Ref x, tw::Ref y, tw::Ref z) { z.store(tw::dot(x.load(), y.load())); });
    auto call = tw::call(
        matmul,
        {
            .grid = {2, 2},
            .in = {tw::BlockSpec{{32, kSize}, [](auto i, auto) { return tw::block(i, 0); }},
                   tw::BlockSpec{{kSize, 32}, [](auto, auto j) { return tw::block(0, j); }}},
            .out = {tw::BlockSpec{{32, 32}, [](auto i, auto j) { return tw::block(i, j); }}},
            .out_type = {{tw::f32, {kSize, kSize}}},
        });
    const tw::Tensor x = examples::random_tensor({kBatch, kSize, kSize}, 1);
    const tw::Tensor y = examples::random_tensor({kBatch, kSize, kSize}, 2);

    const tw::Tensor batched = tw::vmap(call, {0, 0})(x, y);
    const tw::Tensor shared = tw::vmap(call, {0, tw::kNotMapped})(x, y.select(0, 0));

    const auto element = [&](std::int64_t i, bool share) {
        const std::int64_t b = i / (kSize * kSize), rest = i % (kSize * kSize);
        return examples::matmul_element(x.select(0, b), y.select(0, share ? 0 : b), rest / kSize,
                                        rest % kSize);
    };
    return examples::check("vmap over x and y", batched, 1e-4,
                           [&](std::int64_t i) { return element(i, false); }) |
           examples::check("vmap over x", shared, 1e-4,
                           [&](std::int64_t i) { return element(i, true); });
}
