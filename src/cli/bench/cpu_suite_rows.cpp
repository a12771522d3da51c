// Kernels on rows: elementwise chains in blocks of several shapes, norms, scans, transposition.
#include <fmt/format.h>

#include "cli/bench/cpu_suite.h"
#include "cli/builtin.h"
#include "support/integer.h"
#include "tilewright/lang.h"

namespace tilewright::cli {
namespace {

using Elementwise = std::function<Tile(Tile x, Tile r, Tile bias)>;

/// y = f(x, r, bias of the column) in blocks of rows x columns.
SuiteCase elementwise(const std::string& name, const Elementwise& f, PlainLoop loop,
                      std::int64_t rows, std::int64_t n, std::int64_t block_rows,
                      std::int64_t block_columns) {
    const BlockSpec block{{block_rows, block_columns},
                          [](auto i, auto j) { return tilewright::block(i, j); }};
    const BlockSpec columns{{block_columns}, [](auto, auto j) { return tilewright::block(j); }};
    Call call = tilewright::call(
        kernel(name,
               [f](Ref x, Ref r, Ref bias, Ref y) { y.store(f(x.load(), r.load(), bias.load())); }),
        {.grid = {ceil_div(rows, block_rows), ceil_div(n, block_columns)},
         .in = {block, block, columns},
         .out = {block},
         .out_type = {{f32, {rows, n}}}});
    SuiteCase result = suite_case(
        fmt::format("{} {} x {}, blocks {} x {}", name, rows, n, block_rows, block_columns), call,
        loop,
        {random_input(f32, {rows, n}, 1), random_input(f32, {rows, n}, 2),
         random_input(f32, {n}, 3)},
        {f32, {rows, n}});
    result.sizes = {n};
    result.units = rows;
    result.bytes = 12.0 * static_cast<double>(rows * n);
    result.tolerance = 2e-6;
    return result;
}

/// y = f(x) on blocks of whole rows.
SuiteCase by_rows(const std::string& name, const std::function<Tile(Tile)>& f, PlainLoop loop,
                  DType dtype, std::int64_t rows, std::int64_t n, std::int64_t block_rows) {
    const BlockSpec block{{block_rows, n}, [](auto i) { return tilewright::block(i, 0); }};
    Call call = tilewright::call(kernel(name, [f](Ref x, Ref y) { y.store(f(x.load())); }),
                                 {.grid = {rows / block_rows},
                                  .in = {block},
                                  .out = {block},
                                  .out_type = {{dtype, {rows, n}}}});
    SuiteCase result =
        suite_case(fmt::format("{} {} x {} {}", name, rows, n, tilewright::name(dtype)), call, loop,
                   {random_input(dtype, {rows, n}, 1)}, {dtype, {rows, n}});
    result.sizes = {n};
    result.units = rows;
    result.bytes = 2.0 * static_cast<double>(rows * n * size_of(dtype));
    return result;
}

SuiteCase layer_norm_case(std::int64_t rows, std::int64_t n) {
    const BlockSpec block{{8, n}, [](auto i) { return tilewright::block(i, 0); }};
    Call call = tilewright::call(
        kernel("layer_norm",
               [](Ref x, Ref weight, Ref bias, Ref y) {
                   const Tile t = x.load();
                   const Tile d = t - mean(t, 1, true);
                   y.store(d * rsqrt(mean(d * d, 1, true) + 1e-5) * weight.load() + bias.load());
               }),
        {.grid = {rows / 8},
         .in = {block, {}, {}},
         .out = {block},
         .out_type = {{f32, {rows, n}}}});
    SuiteCase result = suite_case(
        fmt::format("layer_norm {} x {}", rows, n), call, plain_loops().layer_norm,
        {random_input(f32, {rows, n}, 1), random_input(f32, {n}, 2), random_input(f32, {n}, 3)},
        {f32, {rows, n}});
    result.sizes = {n};
    result.units = rows;
    result.bytes = 8.0 * static_cast<double>(rows * n);
    result.tolerance = 2e-5;
    return result;
}

/// In groups of `group` channels of x (batch, channels, n).
SuiteCase group_norm_case(std::int64_t batch, std::int64_t channels, std::int64_t group,
                          std::int64_t n) {
    const BlockSpec block{{squeezed, group, n},
                          [](auto i, auto j) { return tilewright::block(i, j, 0); }};
    const BlockSpec of_channels{{group}, [](auto, auto j) { return tilewright::block(j); }};
    Call call = tilewright::call(
        kernel("group_norm",
               [group](Ref x, Ref weight, Ref bias, Ref y) {
                   const Tile t = x.load();
                   const Tile d = t - mean(mean(t, 1, true), 0, true);
                   const Tile factor = rsqrt(mean(mean(d * d, 1, true), 0, true) + 1e-5);
                   y.store(d * factor * reshape(weight.load(), {group, 1}) +
                           reshape(bias.load(), {group, 1}));
               }),
        {.grid = {batch, channels / group},
         .in = {block, of_channels, of_channels},
         .out = {block},
         .out_type = {{f32, {batch, channels, n}}}});
    SuiteCase result = suite_case(
        fmt::format("group_norm {} x {} x {}, {} channels in a group", batch, channels, n, group),
        call, plain_loops().group_norm,
        {random_input(f32, {batch, channels, n}, 1), random_input(f32, {channels}, 2),
         random_input(f32, {channels}, 3)},
        {f32, {batch, channels, n}});
    result.sizes = {n, group, channels};
    result.units = batch * (channels / group);
    result.bytes = 8.0 * static_cast<double>(batch * channels * n);
    result.tolerance = 2e-5;
    return result;
}

/// Scores of pairs beyond the diagonal and beyond the prefix of their batch become very small.
SuiteCase prefix_mask_case(std::int64_t batch, std::int64_t n) {
    constexpr std::int64_t kRows = 64;
    const BlockSpec block{{squeezed, kRows, n},
                          [](auto i, auto j) { return tilewright::block(i, j, 0); }};
    const BlockSpec prefix{{squeezed}, [](auto i, auto) { return tilewright::block(i); }};
    Call call = tilewright::call(
        kernel("prefix_mask",
               [n](Ref scores, Ref prefixes, Ref y) {
                   const Tile q = iota({kRows, 1}, 0) + program_id(1) * kRows;
                   const Tile kv = iota({1, n}, 1);
                   y.store(where((kv <= q) | (kv < prefixes.load()), scores.load(), -1e30));
               }),
        {.grid = {batch, n / kRows},
         .in = {block, prefix},
         .out = {block},
         .out_type = {{f32, {batch, n, n}}}});
    SuiteCase result = suite_case(
        fmt::format("prefix_mask {} x {} x {}", batch, n, n), call, plain_loops().prefix_mask,
        {random_input(f32, {batch, n, n}, 1), index_input({batch}, n, 2)}, {f32, {batch, n, n}});
    result.sizes = {n};
    result.units = batch * n;
    result.bytes = 8.0 * static_cast<double>(batch * n * n);
    return result;
}

SuiteCase rotary_case(std::int64_t rows, std::int64_t half) {
    constexpr std::int64_t kRows = 64;
    const auto blocks = [](std::int64_t columns) {
        return BlockSpec{{kRows, columns}, [](auto i) { return tilewright::block(i, 0); }};
    };
    Call call = tilewright::call(kernel("rotary",
                                        [half](Ref x, Ref cosines, Ref sines, Ref y) {
                                            const Tile a = x.at(all, ds(0, half)).load(),
                                                       b = x.at(all, ds(half, half)).load();
                                            const Tile c = cosines.load(), s = sines.load();
                                            y.at(all, ds(0, half)).store(a * c - b * s);
                                            y.at(all, ds(half, half)).store(b * c + a * s);
                                        }),
                                 {.grid = {rows / kRows},
                                  .in = {blocks(2 * half), blocks(half), blocks(half)},
                                  .out = {blocks(2 * half)},
                                  .out_type = {{f32, {rows, 2 * half}}}});
    SuiteCase result =
        suite_case(fmt::format("rotary {} x {}", rows, 2 * half), call, plain_loops().rotary,
                   {random_input(f32, {rows, 2 * half}, 1), random_input(f32, {rows, half}, 2),
                    random_input(f32, {rows, half}, 3)},
                   {f32, {rows, 2 * half}});
    result.sizes = {half};
    result.units = rows;
    result.bytes = 24.0 * static_cast<double>(rows * half);
    result.tolerance = 1e-6;
    return result;
}

SuiteCase transpose_case(std::int64_t rows, std::int64_t columns) {
    Call call = tilewright::call(
        kernel("transpose", [](Ref x, Ref y) { y.store(transpose(x.load())); }),
        {.grid = {rows / 64, columns / 64},
         .in = {BlockSpec{{64, 64}, [](auto i, auto j) { return tilewright::block(i, j); }}},
         .out = {BlockSpec{{64, 64}, [](auto i, auto j) { return tilewright::block(j, i); }}},
         .out_type = {{f32, {columns, rows}}}});
    SuiteCase result =
        suite_case(fmt::format("transpose {} x {}", rows, columns), call, plain_loops().transpose,
                   {random_input(f32, {rows, columns}, 1)}, {f32, {columns, rows}});
    result.sizes = {columns, rows};
    result.units = rows / 16;
    result.bytes = 8.0 * static_cast<double>(rows * columns);
    return result;
}

SuiteCase cumsum_rows_case(std::int64_t rows, std::int64_t columns) {
    const BlockSpec block{{rows, 64}, [](auto j) { return tilewright::block(0, j); }};
    Call call =
        tilewright::call(kernel("cumsum_rows", [](Ref x, Ref y) { y.store(cumsum(x.load(), 0)); }),
                         {.grid = {columns / 64},
                          .in = {block},
                          .out = {block},
                          .out_type = {{f32, {rows, columns}}}});
    SuiteCase result = suite_case(fmt::format("cumsum down {} x {} f32", rows, columns), call,
                                  plain_loops().cumsum_rows,
                                  {random_input(f32, {rows, columns}, 1)}, {f32, {rows, columns}});
    result.sizes = {columns, rows};
    result.units = columns / 64;
    result.bytes = 8.0 * static_cast<double>(rows * columns);
    result.tolerance = 1e-6;
    return result;
}

SuiteCase linear_recurrence_case(std::int64_t rows, std::int64_t columns) {
    const BlockSpec row{{1, columns}, [](auto i) { return tilewright::block(i, 0); }};
    // One map x -> a x + b after another.
    const auto then = [](auto f, auto g) {
        return std::pair(f.first * g.first, f.second * g.first + g.second);
    };
    Call call = tilewright::call(
        kernel("linear_recurrence",
               [then](Ref a, Ref b, Ref y) {
                   y.store(associative_scan(then, std::pair(a.load(), b.load()), 1).second);
               }),
        {.grid = {rows}, .in = {row, row}, .out = {row}, .out_type = {{f32, {rows, columns}}}});
    SuiteCase result =
        suite_case(fmt::format("linear recurrence {} x {} f32", rows, columns), call,
                   plain_loops().linear_recurrence,
                   {random_input(f32, {rows, columns}, 1), random_input(f32, {rows, columns}, 2)},
                   {f32, {rows, columns}});
    result.sizes = {columns};
    result.units = rows;
    result.bytes = 12.0 * static_cast<double>(rows * columns);
    result.tolerance = 1e-5;
    return result;
}

SuiteCase top_k_case(std::int64_t rows, std::int64_t columns, std::int64_t count) {
    const auto blocks = [](std::int64_t n) {
        return BlockSpec{{8, n}, [](auto i) { return tilewright::block(i, 0); }};
    };
    Call call = tilewright::call(
        kernel("top_k", [count](Ref x, Ref y) { y.store(top_k(x.load(), count).first); }),
        {.grid = {rows / 8},
         .in = {blocks(columns)},
         .out = {blocks(count)},
         .out_type = {{f32, {rows, count}}}});
    SuiteCase result = suite_case(fmt::format("top_k {} of {} x {} f32", count, rows, columns),
                                  call, plain_loops().top_k,
                                  {random_input(f32, {rows, columns}, 1)}, {f32, {rows, count}});
    result.sizes = {columns, count};
    result.units = rows;
    result.bytes = 4.0 * static_cast<double>(rows * (columns + count));
    return result;
}

SuiteCase sort_case(std::int64_t rows, std::int64_t columns) {
    const BlockSpec block{{1, columns}, [](auto i) { return tilewright::block(i, 0); }};
    Call call = tilewright::call(
        kernel("sort", [](Ref x, Ref y) { y.store(sort(x.load(), 1)); }),
        {.grid = {rows}, .in = {block}, .out = {block}, .out_type = {{f32, {rows, columns}}}});
    SuiteCase result =
        suite_case(fmt::format("sort {} x {} f32", rows, columns), call, plain_loops().sort,
                   {random_input(f32, {rows, columns}, 1)}, {f32, {rows, columns}});
    result.sizes = {columns};
    result.units = rows;
    result.bytes = 8.0 * static_cast<double>(rows * columns);
    return result;
}

}  // namespace

std::vector<SuiteCase> row_cases(bool small) {
    const PlainLoops& plain = plain_loops();
    const Elementwise sum = [](Tile x, Tile r, Tile) { return x + r; };
    const Elementwise relu_chain = [](Tile x, Tile r, Tile b) { return relu(x * 1.5 + b) + r; };
    const Elementwise gelu_chain = [](Tile x, Tile r, Tile b) { return gelu(x + b) + r; };
    std::vector<SuiteCase> cases;
    // Larger than the caches, and within the second-level cache of one core.
    const std::int64_t rows = small ? 64 : 4096, n = small ? 512 : 4096;
    const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, n}, {64, 512}, {512, 64}};
    for (const auto& [block_rows, block_columns] : shapes)
        cases.push_back(elementwise("add", sum, plain.add, rows, n, block_rows, block_columns));
    for (const std::int64_t r : {rows, std::int64_t{16}}) {
        for (const auto& [block_rows, block_columns] : shapes) {
            if (block_rows > r) continue;
            cases.push_back(elementwise("scale_shift_relu", relu_chain, plain.scale_shift_relu, r,
                                        n, block_rows, block_columns));
        }
    }
    for (const auto& [block_rows, block_columns] : shapes) {
        cases.push_back(elementwise("bias_gelu_residual", gelu_chain, plain.bias_gelu_residual,
                                    rows / 4, n, block_rows, block_columns));
    }
    const auto softmax = [](Tile t) {
        const Tile weights = exp(t - max(t, 1, true));
        return weights * (1.0 / tilewright::sum(weights, 1, true));
    };
    cases.push_back(by_rows("softmax", softmax, plain.softmax, f32, rows, n / 4, 8));
    cases.back().tolerance = 1e-5;
    cases.push_back(layer_norm_case(rows, n / 4));
    cases.push_back(group_norm_case(small ? 2 : 16, small ? 8 : 128, 4, small ? 100 : 3136));
    cases.push_back(prefix_mask_case(small ? 2 : 4, small ? 64 : 2048));
    cases.push_back(rotary_case(small ? 64 : 32768, 64));
    cases.push_back(transpose_case(small ? 128 : 2048, small ? 64 : 2048));
    const std::int64_t lines = small ? 2 : 16, length = small ? 1000 : 262144;
    const auto running = [](Tile t) { return cumsum(t, 1); };
    cases.push_back(by_rows("cumsum", running, plain.cumsum_f32, f32, lines, length, 1));
    // The loop adds sequentially, which rounds more.
    cases.back().tolerance = 1e-4;
    cases.push_back(by_rows("cumsum", running, plain.cumsum_i32, i32, lines, length, 1));
    cases.push_back(by_rows(
        "cummax", [](Tile t) { return cummax(t, 1); }, plain.cummax, f32, lines, length, 1));
    cases.push_back(by_rows(
        "cumlogsumexp", [](Tile t) { return cumlogsumexp(t, 1); }, plain.cumlogsumexp, f32, lines,
        length, 1));
    cases.back().tolerance = 1e-5;
    cases.push_back(linear_recurrence_case(lines, length));
    cases.push_back(top_k_case(small ? 8 : 4096, small ? 100 : 1024, 8));
    cases.push_back(sort_case(small ? 8 : 1024, small ? 100 : 4096));
    cases.push_back(cumsum_rows_case(small ? 100 : 2048, small ? 64 : 2048));
    return cases;
}

}  // namespace tilewright::cli
