// RMSNorm of bf16 rows with f32 weights, forward and backward: each program handles a block of
// rows; the weight's gradient is summed per program and then, in order, over the programs.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kRows = 50, kColumns = 300, kBlock = 8;
    constexpr std::int64_t kPrograms = (kRows + kBlock - 1) / kBlock;
    constexpr double kEps = 1e-5;
    const tw::BlockSpec rows({kBlock, tw::all}, [](auto i) { return tw::block(i, 0); });
    const tw::BlockSpec row_values({kBlock}, [](auto i) { return tw::block(i); });

    auto forward = tw::call(tw::kernel("rms_norm",
                                       [](tw::Ref x, tw::Ref weight, tw::Ref y, tw::Ref inverse) {
                                           const tw::Tile values = x.load({.other = 0}).to(tw::f32);
                                           const tw::Tile r =
                                               tw::rsqrt(tw::mean(tw::square(values), 1) + kEps);
                                           y.store(values * tw::expand_dims(r, 1) * weight.load());
                                           inverse.store(r);
                                       }),
                            {.grid = {kPrograms},
                             .in = {rows},
                             .out = {rows, row_values},
                             .out_type = {{tw::f32, {kRows, kColumns}}, {tw::f32, {kRows}}}});

    auto backward = tw::call(
        tw::kernel("rms_norm_backward",
                   [](tw::Ref x, tw::Ref inverse, tw::Ref dy, tw::Ref weight, tw::Ref dx,
                      tw::Ref d_weight) {
                       // Rows past the end read 0 everywhere and add nothing.
                       const tw::Tile r = tw::expand_dims(inverse.load({.other = 0}), 1);
                       const tw::Tile normal = x.load({.other = 0}).to(tw::f32) * r;
                       const tw::Tile gradient = dy.load({.other = 0}),
                                      scaled = gradient * weight.load();
                       const tw::Tile mean = tw::mean(scaled * normal, 1, true);
                       dx.store(((scaled - normal * mean) * r).to(dx.dtype()));
                       d_weight.store(tw::sum(gradient * normal, 0));
                   }),
        {.grid = {kPrograms},
         .in = {rows, row_values, rows},
         .out = {rows,
                 tw::BlockSpec({tw::squeezed, tw::all}, [](auto i) { return tw::block(i, 0); })},
         .out_type = {{tw::bf16, {kRows, kColumns}}, {tw::f32, {kPrograms, kColumns}}}});

    auto total = tw::call(
        tw::kernel("sum_of_parts",
                   [](tw::Ref parts, tw::Ref sum) { sum.store(tw::sum(parts.load(), 0)); }),
        {.out_type = {{tw::f32, {kColumns}}}});

    const tw::Tensor x = examples::random_tensor({kRows, kColumns}, 1).to(tw::bf16);
    const tw::Tensor weight = examples::random_tensor({kColumns}, 2);
    const tw::Tensor dy = examples::random_tensor({kRows, kColumns}, 3);
    const auto [y, inverse] = forward.outputs<2>(x, weight);
    const auto [dx, parts] = backward.outputs<2>(x, inverse, dy, weight);
    const tw::Tensor d_weight = total(parts);

    // Plain C++, row by row.
    std::vector<double> r, mean;
    for (std::int64_t i = 0; i < kRows; ++i) {
        double squares = 0, products = 0;
        for (std::int64_t j = 0; j < kColumns; ++j) squares += x.get({i, j}) * x.get({i, j});
        r.push_back(1 / std::sqrt(squares / kColumns + kEps));
        for (std::int64_t j = 0; j < kColumns; ++j)
            products += dy.get({i, j}) * weight.get({j}) * x.get({i, j}) * r.back();
        mean.push_back(products / kColumns);
    }
    const auto row = [](std::int64_t i) { return static_cast<std::size_t>(i / kColumns); };
    const auto normal = [&](std::int64_t i) {
        return x.get({i / kColumns, i % kColumns}) * r[row(i)];
    };
    int status = examples::check("rms_norm", y, 1e-6, [&](std::int64_t i) {
        return normal(i) * weight.get({i % kColumns});
    });
    status |= examples::check("dx", dx, 1e-2, [&](std::int64_t i) {
        const double scaled = dy.get({i / kColumns, i % kColumns}) * weight.get({i % kColumns});
        return (scaled - normal(i) * mean[row(i)]) * r[row(i)];
    });
    status |= examples::check("dweight", d_weight, 1e-5, [&](std::int64_t j) {
        double sum = 0;
        for (std::int64_t i = 0; i < kRows; ++i) sum += dy.get({i, j}) * normal(i * kColumns + j);
        return sum;
    });
    return status;
}
