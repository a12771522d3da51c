// A sequential grid axis: the steps of axis 2 run in order inside one program and accumulate in
// scratch; the last step writes the output block.
#include "check.h"
#include "matmul_reference.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kSize = 192, kBlock = 64;
    auto matmul = tw::kernel("matmul", [](tw::Ref x, tw::Ref y, tw::Ref z, tw::Ref accumulator) {
        const tw::Tile step = tw::program_id(2);
        tw::when(step == 0, [&] { accumulator.store(0); });
        accumulator.store(tw::dot(x.load(), y.load(), {.acc = accumulator.load()}));
        tw::when(step == tw::num_programs(2) - 1, [&] { z.store(accumulator.load()); });
    });
    constexpr std::int64_t kBlocks = kSize / kBlock;
    auto call = tw::call(
        matmul, {
                    .grid = {kBlocks, kBlocks, kBlocks},
                    .in = {tw::BlockSpec{{kBlock, kBlock},
                                         [](auto i, auto, auto k) { return tw::block(i, k); }},
                           tw::BlockSpec{{kBlock, kBlock},
                                         [](auto, auto j, auto k) { return tw::block(k, j); }}},
                    .out = {tw::BlockSpec{{kBlock, kBlock},
                                          [](auto i, auto j, auto) { return tw::block(i, j); }}},
                    .out_type = {{tw::f32, {kSize, kSize}}},
                    .scratch = {{tw::f32, {kBlock, kBlock}}},
                    .sequential = {2},
                });

    const tw::Tensor x = examples::random_tensor({kSize, kSize}, 1);
    const tw::Tensor y = examples::random_tensor({kSize, kSize}, 2);
    return examples::check("sequential matmul", call(x, y), 1e-4, [&](std::int64_t i) {
        return examples::matmul_element(x, y, i / kSize, i % kSize);
    });
}
