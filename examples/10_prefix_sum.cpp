// Prefix sum in two calls: the sum of each block, then each program scans its block and adds the
// sums of all blocks before it.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kSize = 5000, kBlock = 512, kBlocks = (kSize + kBlock - 1) / kBlock;
    const tw::BlockSpec block{{kBlock}, [](auto i) { return tw::block(i); }};
    const tw::BlockSpec one{{tw::squeezed}, [](auto i) { return tw::block(i); }};

    auto block_sums = tw::call(
        tw::kernel("block_sums", [](tw::Ref x, tw::Ref sums) { sums.store(tw::sum(x.load())); }),
        {.grid = {kBlocks}, .in = {block}, .out = {one}, .out_type = {{tw::i32, {kBlocks}}}});

    auto scan_blocks = tw::call(
        tw::kernel("scan_blocks",
                   [](tw::Ref x, tw::Ref sums, tw::Ref z) {
                       const tw::Tile before = tw::iota(kBlocks) < tw::program_id(0);
                       const tw::Tile offset = tw::sum(sums.load({.mask = before}));
                       z.store(tw::cumsum(x.load()) + offset);
                   }),
        {.grid = {kBlocks}, .in = {block}, .out = {block}, .out_type = {{tw::i32, {kSize}}}});

    std::vector<int> values;
    for (int i = 0; i < kSize; ++i) values.push_back(i * 7919 % 101 - 50);
    const tw::Tensor x = tw::Tensor::from_vector(values, {kSize});
    const tw::Tensor z = scan_blocks(x, block_sums(x));

    std::vector<int> expected;
    int sum = 0;
    for (int value : values) expected.push_back(sum += value);
    return examples::check("prefix sum", z, 0,
                           [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
}
