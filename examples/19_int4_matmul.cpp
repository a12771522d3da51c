// A matrix product with 4-bit weights: two per byte, and a scale for every 64 rows of a column. The
// kernel converts them to bf16, so that memory holds and moves a quarter of the bytes.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kBlock = 64, kGroup = 64, kRows = 100, kInner = 256, kColumns = 192;
    auto int4_matmul = tw::kernel("int4_matmul", [](tw::Ref x, tw::Ref packed, tw::Ref scales,
                                                    tw::Ref z) {
        const tw::Tile row = tw::program_id(0) * kBlock, column = tw::program_id(1) * kBlock;
        const tw::Slice rows = tw::ds(row, kBlock), columns = tw::ds(column, kBlock);
        const tw::Tile zeros = tw::zeros({kBlock, kBlock}, tw::f32);
        const auto add_group = [&](tw::Tile group, tw::Tile total) {
            // Byte (i, j) holds rows 2 i and 2 i + 1 of column j, the even one in the low bits.
            const tw::Slice bytes = tw::ds(group * (kGroup / 2), kGroup / 2);
            const tw::Tile pairs = packed.at(bytes, columns).load().to(tw::i32);
            const tw::Tile low = (pairs & 15) - 8, high = (pairs >> 4) - 8;
            const tw::Tile values = tw::reshape(tw::stack({low, high}, 1), {kGroup, kBlock});
            const tw::Tile scale = tw::expand_dims(scales.at(group, columns).load(), 0);
            const tw::Tile w = (values.to(tw::f32) * scale).to(tw::bf16);
            return tw::dot(x.at(rows, tw::ds(group * kGroup, kGroup)).load(), w, {.acc = total});
        };
        z.at(rows, columns).store(tw::for_loop(0, scales.extent(0), zeros, add_group));
    });
    auto call = tw::call(
        int4_matmul, {
                         .grid = {(kRows + kBlock - 1) / kBlock, (kColumns + kBlock - 1) / kBlock},
                         .out_type = {{tw::f32, {kRows, kColumns}}},
                     });

    const tw::Tensor x = examples::random_tensor({kRows, kInner}, 1).to(tw::bf16);
    const tw::Tensor scales = examples::random_tensor({kInner / kGroup, kColumns}, 2);
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < kInner / 2 * kColumns; ++i) {
        bytes.push_back(static_cast<std::uint8_t>(i * 7919 % 251));
    }
    const tw::Tensor packed = tw::Tensor::from_vector(bytes, {kInner / 2, kColumns});
    const std::vector<float> xs = x.to_vector<float>();
    return examples::check("int4 matmul", call(x, packed, scales), 1e-3, [&](std::int64_t i) {
        const std::int64_t row = i / kColumns, column = i % kColumns;
        double sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k) {
            const int byte = bytes[static_cast<std::size_t>(k / 2 * kColumns + column)];
            const int value = (k % 2 == 0 ? byte & 15 : byte >> 4) - 8;
            const auto scale = static_cast<float>(scales.get({k / kGroup, column}));
            const float weight =
                tw::Tensor::from_vector<float>({static_cast<float>(value) * scale}, {1})
                    .to(tw::bf16)
                    .to_vector<float>()[0];
            sum += double{xs[static_cast<std::size_t>(row * kInner + k)]} * weight;
        }
        return sum;
    });
}
