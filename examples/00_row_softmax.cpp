// The README's kernel: a softmax over rows, eight rows per program.
#include <tilewright/tilewright.h>

#include <cmath>
#include <cstdio>

namespace tw = tilewright;

int main() {
    auto softmax = tw::kernel("softmax", [](tw::Ref x, tw::Ref y) {
        const tw::Tile row = x.load();
        const tw::Tile e = tw::exp(row - tw::max(row, 1, true));
        y.store(e / tw::sum(e, 1, true));
    });
    const tw::BlockSpec rows{{8, 4}, [](auto i) { return tw::block(i, 0); }};
    auto call = tw::call(
        softmax, {.grid = {2}, .in = {rows}, .out = {rows}, .out_type = {{tw::f32, {16, 4}}}});

    const tw::Tensor y = call(tw::Tensor::arange(tw::f32, 64).reshape({16, 4}));
    for (int j = 0; j < 4; ++j) std::printf("%.4f ", y.get({0, j}));
    std::printf("\n");
    return std::abs(y.get({15, 3}) - 0.6439) < 1e-4 ? 0 : 1;
}
