// 2-D convolution by slices: a program computes one band of output rows as a sum of shifted slices
// of the image. Rows outside of the image read as zero, which is the padding.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kHeight = 50, kWidth = 70, kKernel = 3, kBand = 8;
    auto conv2d = tw::kernel("conv2d", [](tw::Ref image, tw::Ref weights, tw::Ref z) {
        const tw::Tile top = tw::program_id(0) * kBand;
        tw::Tile sum = tw::zeros({kBand, kWidth}, tw::f32);
        for (int dy = 0; dy < kKernel; ++dy) {
            for (int dx = 0; dx < kKernel; ++dx) {
                // A traced start may leave the image; its lanes outside read 0.
                const tw::Tile left = tw::constant(dx - 1, tw::i64);
                const tw::Tile shifted =
                    image.at(tw::ds(top + (dy - 1), kBand), tw::ds(left, kWidth)).load();
                sum += weights.at(dy, dx).load() * shifted;
            }
        }
        z.store(sum);
    });
    auto call = tw::call(
        conv2d, {
                    .grid = {(kHeight + kBand - 1) / kBand},
                    .out = {tw::BlockSpec{{kBand, kWidth}, [](auto i) { return tw::block(i, 0); }}},
                    .out_type = {{tw::f32, {kHeight, kWidth}}},
                });

    const tw::Tensor image = examples::random_tensor({kHeight, kWidth}, 1);
    const tw::Tensor weights = examples::random_tensor({kKernel, kKernel}, 2);
    return examples::check("conv2d", call(image, weights), 1e-5, [&](std::int64_t i) {
        double sum = 0;
        for (std::int64_t dy = 0; dy < kKernel; ++dy) {
            for (std::int64_t dx = 0; dx < kKernel; ++dx) {
                const std::int64_t row = i / kWidth + dy - 1, column = i % kWidth + dx - 1;
                if (row < 0 || row >= kHeight || column < 0 || column >= kWidth) continue;
                sum += image.get({row, column}) * weights.get({dy, dx});
            }
        }
        return sum;
    });
}
