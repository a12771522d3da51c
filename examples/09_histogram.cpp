// Histogram with atomics: every program counts its block into one shared array, which is an input
// of zeros that an alias updates in place.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kValues = 10000, kBins = 16, kBlock = 256;
    auto histogram = tw::kernel("histogram", [](tw::Ref x, tw::Ref, tw::Ref counts) {
        const tw::Tile position = tw::program_id(0) * kBlock + tw::iota(kBlock);
        const tw::Tile bin = tw::floor((x.load() + 1.0) * (kBins / 2.0)).to(tw::i32);
        counts.at(bin).atomic_add(1, {.mask = position < kValues});
    });
    auto call = tw::call(histogram,
                         {
                             .grid = {(kValues + kBlock - 1) / kBlock},
                             .in = {tw::BlockSpec{{kBlock}, [](auto i) { return tw::block(i); }}},
                             .out_type = {{tw::i32, {kBins}}},
                             .aliases = {{1, 0}},
                         });

    const tw::Tensor x = examples::random_tensor({kValues}, 5);
    const tw::Tensor counts = call(x, tw::Tensor::zeros(tw::i32, {kBins}));

    std::vector<int> expected(kBins, 0);
    for (float value : x.to_vector<float>()) {
        ++expected[static_cast<std::size_t>((value + 1.0f) * (kBins / 2.0f))];
    }
    return examples::check("histogram", counts, 0,
                           [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
}
