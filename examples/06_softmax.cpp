// Softmax over the rows of a matrix whose row length is not a multiple of the block: lanes past the
// end of a row read `other`.
#include <algorithm>

#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kRows = 100, kColumns = 781, kBlockRows = 8, kPadded = 1024;
    auto softmax = tw::kernel("softmax", [](tw::Ref x, tw::Ref z) {
        const tw::Tile row = x.load({.other = -INFINITY});
        const tw::Tile exponentials = tw::exp(row - tw::max(row, 1, true));
        z.store(exponentials / tw::sum(exponentials, 1, true));
    });
    const tw::BlockSpec rows{{kBlockRows, kPadded}, [](auto i) { return tw::block(i, 0); }};
    auto call = tw::call(softmax, {
                                      .grid = {(kRows + kBlockRows - 1) / kBlockRows},
                                      .in = {rows},
                                      .out = {rows},
                                      .out_type = {{tw::f32, {kRows, kColumns}}},
                                  });

    const tw::Tensor x = examples::random_tensor({kRows, kColumns}, 3);
    const tw::Tensor z = call(x);

    std::vector<double> denominators;
    for (std::int64_t r = 0; r < kRows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < kColumns; ++c) sum += std::exp(x.get({r, c}));
        denominators.push_back(sum);
    }
    return examples::check("softmax", z, 1e-7, [&](std::int64_t i) {
        const std::int64_t row = i / kColumns;
        return std::exp(x.get({row, i % kColumns})) / denominators[static_cast<std::size_t>(row)];
    });
}
