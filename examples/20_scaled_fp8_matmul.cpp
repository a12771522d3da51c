// A matrix product of 8-bit floats: each row of x and each column of w has a scale that maps its
// largest element to the format's largest, 448. The scales multiply the sum of a block once.
#include <algorithm>
#include <cmath>

#include "check.h"

namespace tw = tilewright;

/// Rows as e4m3, and the scales that undo the conversion.
struct Quantised {
    explicit Quantised(const tw::Tensor& values) {
        const std::int64_t rows = values.dim(0), columns = values.dim(1);
        std::vector<float> all = values.to_vector<float>(), factors;
        for (std::int64_t row = 0; row < rows; ++row) {
            float* const from = all.data() + row * columns;
            float largest = 0;
            for (std::int64_t i = 0; i < columns; ++i) {
                largest = std::max(largest, std::abs(from[i]));
            }
            factors.push_back(largest / 448);
            for (std::int64_t i = 0; i < columns; ++i) from[i] /= factors.back();
        }
        elements = tw::Tensor::from_vector(all, {rows, columns}).to(tw::f8e4m3);
        scales = tw::Tensor::from_vector(factors, {rows});
    }
    tw::Tensor elements, scales;
};

int main() {
    constexpr std::int64_t kBlock = 128, kRows = 300, kInner = 512, kColumns = 200;
    auto scaled_matmul = tw::kernel("scaled_matmul", [](tw::Ref x, tw::Ref w, tw::Ref row_scales,
                                                        tw::Ref column_scales, tw::Ref z) {
        // w is stored transposed: the tensor cores read both operands along their rows.
        const tw::Tile total = tw::dot(x.load(), tw::transpose(w.load()));
        const tw::Tile rows = tw::expand_dims(row_scales.load(), 1);
        const tw::Tile columns = tw::expand_dims(column_scales.load(), 0);
        z.store((total * rows * columns).to(tw::bf16));
    });
    auto call = tw::call(
        scaled_matmul,
        {
            .grid = {(kRows + kBlock - 1) / kBlock, (kColumns + kBlock - 1) / kBlock},
            .in = {tw::BlockSpec{{kBlock, kInner}, [](auto i, auto j) { return tw::block(i, 0); }},
                   tw::BlockSpec{{kBlock, kInner}, [](auto i, auto j) { return tw::block(j, 0); }},
                   tw::BlockSpec{{kBlock}, [](auto i, auto j) { return tw::block(i); }},
                   tw::BlockSpec{{kBlock}, [](auto i, auto j) { return tw::block(j); }}},
            .out = {tw::BlockSpec{{kBlock, kBlock},
                                  [](auto i, auto j) { return tw::block(i, j); }}},
            .out_type = {{tw::bf16, {kRows, kColumns}}},
        });

    const Quantised x(examples::random_tensor({kRows, kInner}, 1));
    const Quantised w(examples::random_tensor({kColumns, kInner}, 2));
    const tw::Tensor z = call(x.elements, w.elements, x.scales, w.scales);
    const std::vector<float> xs = x.elements.to_vector<float>(), ws = w.elements.to_vector<float>();
    return examples::check("scaled fp8 matmul", z, 0.125, [&](std::int64_t i) {
        const std::int64_t row = i / kColumns, column = i % kColumns;
        double sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k) {
            sum += double{xs[static_cast<std::size_t>(row * kInner + k)]} *
                   ws[static_cast<std::size_t>(column * kInner + k)];
        }
        return sum * x.scales.get({row}) * w.scales.get({column});
    });
}
