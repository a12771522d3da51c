// Grouped matrix products: the rows of x are sorted by expert, and each expert multiplies its rows
// by its weights. Groups have any number of rows, including none: a table gives the expert, the
// first row and the end of each tile of rows, and a mask keeps a group's last tile out of the next
// group.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kBlockM = 128, kBlockN = 256, kInner = 256, kColumns = 512;
    auto grouped_matmul = tw::kernel(
        "grouped_matmul",
        [](tw::Ref x, tw::Ref weights, tw::Ref expert, tw::Ref first, tw::Ref end, tw::Ref z) {
            const tw::Tile tile = tw::program_id(0), column = tw::program_id(1) * kBlockN;
            const tw::Tile row = first.at(tile).load();
            const tw::Slice rows = tw::ds(row, kBlockM), columns = tw::ds(column, kBlockN);
            const tw::Tile w = weights.at(expert.at(tile).load(), tw::all, columns).load();
            const tw::Tile block = tw::dot(x.at(rows).load(), w);
            const tw::Tile inside = row + tw::iota(kBlockM) < end.at(tile).load();
            z.at(rows, columns).store(block.to(tw::bf16), {.mask = tw::expand_dims(inside, 1)});
        });

    const std::vector<int> sizes = {300, 0, 77, 500};
    std::vector<int> expert, first, end, expert_of;
    int rows = 0;
    for (int e = 0; e < static_cast<int>(sizes.size()); ++e) {
        const int begin = rows;
        rows += sizes[static_cast<std::size_t>(e)];
        for (int row = begin; row < rows; row += kBlockM) {
            expert.push_back(e);
            first.push_back(row);
            end.push_back(rows);
        }
        expert_of.resize(static_cast<std::size_t>(rows), e);
    }
    const auto tiles = static_cast<std::int64_t>(expert.size());
    auto call = tw::call(grouped_matmul, {
                                             .grid = {tiles, (kColumns + kBlockN - 1) / kBlockN},
                                             .out_type = {{tw::bf16, {rows, kColumns}}},
                                         });

    const tw::Tensor x = examples::random_tensor({rows, kInner}, 1).to(tw::bf16);
    const tw::Tensor weights = examples::random_tensor({4, kInner, kColumns}, 2).to(tw::bf16);
    const tw::Tensor z =
        call(x, weights, tw::Tensor::from_vector(expert, {tiles}),
             tw::Tensor::from_vector(first, {tiles}), tw::Tensor::from_vector(end, {tiles}));

    // Every 37th column keeps the plain reference quick.
    const tw::Tensor sample = z.slice(1, 0, 14, 37);
    const std::vector<float> xs = x.to_vector<float>(), ws = weights.to_vector<float>();
    return examples::check("grouped matmul", sample, 0.125, [&](std::int64_t i) {
        const std::int64_t row = i / 14, column = i % 14 * 37;
        const std::int64_t e = expert_of[static_cast<std::size_t>(row)];
        double sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k) {
            sum += double{xs[static_cast<std::size_t>(row * kInner + k)]} *
                   ws[static_cast<std::size_t>((e * kInner + k) * kColumns + column)];
        }
        return sum;
    });
}
