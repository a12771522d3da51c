// LayerNorm forward and backward: the forward pass also outputs the statistics, so that the
// backward pass reads the rows once; a second call adds up partial sums of the weight and bias
// gradients.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kRows = 45, kColumns = 200, kBlock = 8;
    constexpr std::int64_t kPrograms = (kRows + kBlock - 1) / kBlock;
    const tw::BlockSpec rows({kBlock, tw::all}, [](auto i) { return tw::block(i, 0); });
    const tw::BlockSpec row_values({kBlock}, [](auto i) { return tw::block(i); });
    const tw::BlockSpec part({tw::squeezed, tw::all}, [](auto i) { return tw::block(i, 0); });
    const tw::TensorType matrix{tw::f32, {kRows, kColumns}}, column{tw::f32, {kRows}},
        parts{tw::f32, {kPrograms, kColumns}};

    auto forward = tw::call(
        tw::kernel(
            "layer_norm",
            [](tw::Ref x, tw::Ref weight, tw::Ref bias, tw::Ref y, tw::Ref mean, tw::Ref inverse) {
                const tw::Tile values = x.load({.other = 0});
                const tw::Tile m = tw::mean(values, 1, true);
                const tw::Tile centred = values - m;
                const tw::Tile r = tw::rsqrt(tw::mean(tw::square(centred), 1, true) + 1e-5);
                y.store(centred * r * weight.load() + bias.load());
                mean.store(tw::squeeze(m, 1));
                inverse.store(tw::squeeze(r, 1));
            }),
        {.grid = {kPrograms},
         .in = {rows},
         .out = {rows, row_values, row_values},
         .out_type = {matrix, column, column}});

    auto backward =
        tw::call(tw::kernel("layer_norm_backward",
                            [](tw::Ref x, tw::Ref mean, tw::Ref inverse, tw::Ref dy, tw::Ref weight,
                               tw::Ref dx, tw::Ref d_weight, tw::Ref d_bias) {
                                // Rows past the end read 0 everywhere and add nothing.
                                const tw::Tile m = tw::expand_dims(mean.load({.other = 0}), 1);
                                const tw::Tile r = tw::expand_dims(inverse.load({.other = 0}), 1);
                                const tw::Tile normal = (x.load({.other = 0}) - m) * r;
                                const tw::Tile gradient = dy.load({.other = 0});
                                const tw::Tile scaled = gradient * weight.load();
                                dx.store((scaled - tw::mean(scaled, 1, true) -
                                          normal * tw::mean(scaled * normal, 1, true)) *
                                         r);
                                d_weight.store(tw::sum(gradient * normal, 0));
                                d_bias.store(tw::sum(gradient, 0));
                            }),
                 {.grid = {kPrograms},
                  .in = {rows, row_values, row_values, rows},
                  .out = {rows, part, part},
                  .out_type = {matrix, parts, parts}});

    auto total =
        tw::call(tw::kernel("sum_of_parts",
                            [](tw::Ref all, tw::Ref sum) { sum.store(tw::sum(all.load(), 0)); }),
                 {.out_type = {{tw::f32, {kColumns}}}});

    const tw::Tensor x = examples::random_tensor({kRows, kColumns}, 1);
    const tw::Tensor weight = examples::random_tensor({kColumns}, 2);
    const tw::Tensor bias = examples::random_tensor({kColumns}, 3);
    const tw::Tensor dy = examples::random_tensor({kRows, kColumns}, 4);
    const auto [y, mean, inverse] = forward.outputs<3>(x, weight, bias);
    const auto [dx, weights, biases] = backward.outputs<3>(x, mean, inverse, dy, weight);
    const tw::Tensor d_weight = total(weights), d_bias = total(biases);

    // Plain C++, row by row.
    std::vector<double> normal, dx_plain, dw_plain(kColumns, 0.0), db_plain(kColumns, 0.0);
    for (std::int64_t i = 0; i < kRows; ++i) {
        double m = 0, variance = 0, sum = 0, products = 0;
        for (std::int64_t j = 0; j < kColumns; ++j) m += x.get({i, j}) / kColumns;
        for (std::int64_t j = 0; j < kColumns; ++j)
            variance += (x.get({i, j}) - m) * (x.get({i, j}) - m) / kColumns;
        const double r = 1 / std::sqrt(variance + 1e-5);
        for (std::int64_t j = 0; j < kColumns; ++j) {
            const auto at = static_cast<std::size_t>(j);
            const double n = (x.get({i, j}) - m) * r;
            normal.push_back(n);
            sum += dy.get({i, j}) * weight.get({j}) / kColumns;
            products += dy.get({i, j}) * weight.get({j}) * n / kColumns;
            dw_plain[at] += dy.get({i, j}) * n;
            db_plain[at] += dy.get({i, j});
        }
        for (std::int64_t j = 0; j < kColumns; ++j) {
            const double n = normal[static_cast<std::size_t>(i * kColumns + j)];
            dx_plain.push_back((dy.get({i, j}) * weight.get({j}) - sum - n * products) * r);
        }
    }
    const auto of = [](const std::vector<double>& values) {
        return [&values](std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
    };
    int status = examples::check("layer_norm", y, 1e-5, [&](std::int64_t i) {
        return of(normal)(i) * weight.get({i % kColumns}) + bias.get({i % kColumns});
    });
    status |= examples::check("dx", dx, 1e-5, of(dx_plain));
    status |= examples::check("dweight", d_weight, 1e-5, of(dw_plain));
    status |= examples::check("dbias", d_bias, 1e-5, of(db_plain));
    return status;
}
