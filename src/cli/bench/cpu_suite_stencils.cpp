// Kernels that read neighbours: slices of a tile with a halo, as written in array languages.
#include <fmt/format.h>

#include "cli/bench/cpu_suite.h"
#include "cli/builtin.h"
#include "tilewright/lang.h"

namespace tilewright::cli {
namespace {

/// y (rows, width) from blocks of kRows rows with a border of `halo` on every side.
SuiteCase stencil(const std::string& name, const std::string& title, std::int64_t halo,
                  PlainLoop loop, std::int64_t rows, std::int64_t width, std::int64_t block_rows,
                  std::int64_t block_width, const std::function<Tile(Tile x, Tile f)>& f,
                  bool right_side = false) {
    const BlockSpec with_halo{
        {element(block_rows + 2 * halo), element(block_width + 2 * halo)},
        [=](auto i, auto j) { return tilewright::block(i * block_rows, j * block_width); }};
    const BlockSpec block{{block_rows, block_width},
                          [](auto i, auto j) { return tilewright::block(i, j); }};
    CallOptions options{.grid = {rows / block_rows, width / block_width},
                        .in = {with_halo},
                        .out = {block},
                        .out_type = {{f32, {rows, width}}}};
    std::vector<SuiteInput> inputs = {random_input(f32, {rows + 2 * halo, width + 2 * halo}, 1)};
    double arrays = 2;
    if (right_side) {
        options.in.push_back(block);
        inputs.push_back(random_input(f32, {rows, width}, 2));
        arrays = 3;
    }
    Call call =
        right_side ? tilewright::call(
                         kernel(name, [f](Ref x, Ref g, Ref y) { y.store(f(x.load(), g.load())); }),
                         options)
                   : tilewright::call(kernel(name, [f](Ref x, Ref y) { y.store(f(x.load(), {})); }),
                                      options);
    SuiteCase result = suite_case(
        fmt::format("{} {} x {}, blocks {} x {}", title, rows, width, block_rows, block_width),
        call, loop, std::move(inputs), {f32, {rows, width}});
    result.sizes = {width};
    result.units = rows;
    result.bytes = 4 * arrays * static_cast<double>(rows * width);
    result.tolerance = 2e-6;
    return result;
}

SuiteCase depthwise_case(std::int64_t planes, std::int64_t height, std::int64_t width) {
    Call call = tilewright::call(
        kernel(
            "depthwise",
            [=](Ref x, Ref weights, Ref y) {
                const Tile image = x.load();
                Tile sum = zeros({height, width}, f32);
                for (std::int64_t di = 0; di < 3; ++di)
                    for (std::int64_t dj = 0; dj < 3; ++dj)
                        sum += weights.at(di, dj).load() * slice(image, {di, dj}, {height, width});
                y.store(sum);
            }),
        {.grid = {planes},
         .in = {BlockSpec{{squeezed, height + 2, width + 2},
                          [](auto i) { return tilewright::block(i, 0, 0); }},
                BlockSpec{{squeezed, 3, 3}, [](auto i) { return tilewright::block(i, 0, 0); }}},
         .out = {BlockSpec{{squeezed, height, width},
                           [](auto i) { return tilewright::block(i, 0, 0); }}},
         .out_type = {{f32, {planes, height, width}}}});
    SuiteCase result =
        suite_case(fmt::format("depthwise 3 x 3, {} x {} x {}", planes, height, width), call,
                   plain_loops().depthwise,
                   {random_input(f32, {planes, height + 2, width + 2}, 1),
                    random_input(f32, {planes, 3, 3}, 2)},
                   {f32, {planes, height, width}});
    result.sizes = {height, width};
    result.units = planes;
    result.bytes = 8.0 * static_cast<double>(planes * height * width);
    result.tolerance = 2e-6;
    return result;
}

SuiteCase sliding_sum_case(std::int64_t rows, std::int64_t n) {
    constexpr std::int64_t kRows = 8;
    const auto block = [](std::int64_t columns) {
        return BlockSpec{{kRows, columns}, [](auto i) { return tilewright::block(i, 0); }};
    };
    Call call = tilewright::call(kernel("sliding_sum",
                                        [n](Ref x, Ref y) {
                                            const Tile t = x.load();
                                            Tile sum = slice(t, {0, 0}, {kRows, n});
                                            for (std::int64_t k = 1; k < 9; ++k)
                                                sum += slice(t, {0, k}, {kRows, n});
                                            y.store(sum);
                                        }),
                                 {.grid = {rows / kRows},
                                  .in = {block(n + 8)},
                                  .out = {block(n)},
                                  .out_type = {{f32, {rows, n}}}});
    SuiteCase result = suite_case(fmt::format("sliding sum of 9, {} x {}", rows, n), call,
                                  plain_loops().sliding_sum, {random_input(f32, {rows, n + 8}, 1)},
                                  {f32, {rows, n}});
    result.sizes = {n};
    result.units = rows;
    result.bytes = 8.0 * static_cast<double>(rows * n);
    result.tolerance = 2e-6;
    return result;
}

}  // namespace

std::vector<SuiteCase> stencil_cases(bool small) {
    const PlainLoops& plain = plain_loops();
    const std::int64_t n = small ? 64 : 2048;
    const std::int64_t wide = small ? 64 : 256;
    /// The part of a tile from (i, j) on, smaller by `border` in both dimensions.
    const auto part = [](const Tile& x, std::int64_t border, std::int64_t i, std::int64_t j) {
        return slice(x, {i, j}, {x.dim(0) - border, x.dim(1) - border});
    };
    std::vector<SuiteCase> cases;
    cases.push_back(depthwise_case(small ? 3 : 256, small ? 20 : 112, small ? 70 : 112));
    cases.push_back(
        stencil("stencil", "stencil of 5", 1, plain.stencil, n, n, 32, wide, [=](Tile x, Tile) {
            return part(x, 2, 1, 1) * 0.5 +
                   (part(x, 2, 0, 1) + part(x, 2, 2, 1) + part(x, 2, 1, 0) + part(x, 2, 1, 2)) *
                       0.125;
        }));
    cases.push_back(stencil(
        "jacobi", "jacobi", 1, plain.jacobi, n, n, 32, wide,
        [=](Tile x, Tile f) {
            return (part(x, 2, 0, 1) + part(x, 2, 2, 1) + part(x, 2, 1, 0) + part(x, 2, 1, 2) - f) *
                   0.25;
        },
        true));
    cases.push_back(
        stencil("blur", "blur of 5 x 5", 2, plain.blur, n, n, 32, wide, [=](Tile x, Tile) {
            const auto rows = [&](std::int64_t i) {
                return slice(x, {i, 0}, {x.dim(0) - 4, x.dim(1)});
            };
            const Tile sums = rows(0) + rows(4) + (rows(1) + rows(3)) * 4.0 + rows(2) * 6.0;
            const auto columns = [&](std::int64_t j) {
                return slice(sums, {0, j}, {sums.dim(0), sums.dim(1) - 4});
            };
            return (columns(0) + columns(4) + (columns(1) + columns(3)) * 4.0 + columns(2) * 6.0) *
                   (1.0 / 256);
        }));
    cases.push_back(sliding_sum_case(small ? 8 : 1024, small ? 500 : 4096));
    return cases;
}

}  // namespace tilewright::cli
