// Matrix products of several dtypes, products inside other kernels, and small factorisations.
#include <fmt/format.h>

#include "cli/bench/cpu_suite.h"
#include "cli/builtin.h"
#include "tilewright/lang.h"

namespace tilewright::cli {
namespace {

/// The program of `bench matmul`; the result of bytes is f32 or i32.
SuiteCase matmul_case(DType dtype, PlainLoop loop, std::int64_t n) {
    const DType result_dtype = size_of(dtype) > 1 ? dtype : is_float(dtype) ? f32 : i32;
    SuiteCase result = suite_case(
        fmt::format("matmul {} x {} x {} {}", n, n, n, tilewright::name(dtype)), matmul(n, n, n),
        loop, {random_input(dtype, {n, n}, 1), random_input(dtype, {n, n}, 2)},
        {result_dtype, {n, n}});
    result.sizes = {n, n};
    result.units = n / 8;
    result.flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    result.tolerance = is_float(dtype) ? 1e-5 : 0;
    return result;
}

constexpr std::int64_t kSmall = 16;

/// A factorisation of `count` small matrices, which each program does in its own tile. They are
/// symmetric and positive definite: random values off the diagonal, large ones on it.
SuiteCase factorisation_case(const std::string& name, std::int64_t count, PlainLoop loop,
                             const std::function<Tile(Tile k, Tile a)>& step) {
    constexpr std::int64_t n = kSmall;
    const BlockSpec block{{squeezed, n, n}, [](auto i) { return tilewright::block(i, 0, 0); }};
    Call call = tilewright::call(
        kernel(name, [step](Ref x, Ref y) { y.store(for_loop(0, n, x.load(), step)); }),
        {.grid = {count}, .in = {block}, .out = {block}, .out_type = {{f32, {count, n, n}}}});
    const SuiteInput x = [=] {
        Tensor matrices = random_values(f32, {count, n, n}, 1);
        float* data = matrices.data<float>();
        for (std::int64_t m = 0; m < count; ++m, data += n * n) {
            for (std::int64_t i = 0; i < n; ++i) {
                for (std::int64_t j = 0; j < i; ++j) data[j * n + i] = data[i * n + j];
                data[i * n + i] = 20 + data[i * n + i];
            }
        }
        return matrices;
    };
    SuiteCase result = suite_case(fmt::format("{} of {} {} x {}", name, count, n, n), call, loop,
                                  {x}, {f32, {count, n, n}});
    result.units = count;
    result.flops = static_cast<double>(count * n * n * n) / 3;
    result.tolerance = 1e-5;
    return result;
}

SuiteCase cholesky_case(std::int64_t count) {
    return factorisation_case("cholesky", count, plain_loops().cholesky, [](Tile k, Tile a) {
        const Tile row = iota({kSmall, 1}, 0), column = iota({1, kSmall}, 1), at = k.to(i32);
        const Tile chosen = sum(where(column == at, a, 0.0), 1, true);
        const Tile diagonal = sum(where(row == at, chosen, 0.0));
        const Tile l = where(row >= at, chosen / sqrt(diagonal), 0.0);
        const Tile below = where(row > at, l, 0.0);
        return where(column == at, l, a - below * transpose(below));
    });
}

/// Without pivots.
SuiteCase lu_case(std::int64_t count) {
    SuiteCase result = factorisation_case("lu", count, plain_loops().lu, [](Tile k, Tile a) {
        const Tile row = iota({kSmall, 1}, 0), column = iota({1, kSmall}, 1), at = k.to(i32);
        const Tile left = sum(where(column == at, a, 0.0), 1, true);
        const Tile top = sum(where(row == at, a, 0.0), 0, true);
        const Tile diagonal = sum(where(row == at, left, 0.0));
        const Tile l = where(row > at, left / diagonal, 0.0);
        const Tile next = a - l * where(column > at, top, 0.0);
        return where((column == at) & (row > at), l, next);
    });
    result.flops *= 2;
    return result;
}

SuiteCase int4_case(std::int64_t rows, std::int64_t depth, std::int64_t n) {
    Call call = tilewright::call(
        kernel("int4_matmul",
               [=](Ref x, Ref packed, Ref scales, Ref y) {
                   const Tile words = packed.load();
                   const Tile low = ((words & 15).to(i32) - 8).to(f32),
                              high = ((words >> 4).to(i32) - 8).to(f32);
                   const Tile half = dot(x.at(all, ds(0, depth / 2)).load(), low);
                   y.store(dot(x.at(all, ds(depth / 2, depth / 2)).load(), high, {.acc = half}) *
                           scales.load());
               }),
        {.grid = {n / 64},
         .in = {{},
                BlockSpec{{depth / 2, 64}, [](auto j) { return tilewright::block(0, j); }},
                BlockSpec{{64}, [](auto j) { return tilewright::block(j); }}},
         .out = {BlockSpec{{rows, 64}, [](auto j) { return tilewright::block(0, j); }}},
         .out_type = {{f32, {rows, n}}}});
    SuiteCase result = suite_case(fmt::format("int4 matmul {} x {} x {}", rows, depth, n), call,
                                  plain_loops().int4_matmul,
                                  {random_input(f32, {rows, depth}, 1),
                                   random_input(u8, {depth / 2, n}, 2), random_input(f32, {n}, 3)},
                                  {f32, {rows, n}});
    result.sizes = {n, depth, rows};
    result.units = n / 64;
    result.flops = 2.0 * static_cast<double>(rows * depth * n);
    result.tolerance = 1e-5;
    return result;
}

SuiteCase kmeans_case(std::int64_t rows, std::int64_t n, std::int64_t count) {
    const std::int64_t block_rows = 64;
    Call call = tilewright::call(
        kernel("kmeans",
               [](Ref x, Ref centres, Ref y) {
                   // |x - c|^2 without |x|^2, which does not depend on the centre.
                   const Tile c = centres.load();
                   const Tile norms = sum(c * c, 1);
                   const Tile products = dot(x.load(), c, {.trans_b = true});
                   y.store(argmin(norms - products * 2.0, 1));
               }),
        {.grid = {rows / block_rows},
         .in = {BlockSpec{{block_rows, n}, [](auto i) { return tilewright::block(i, 0); }}, {}},
         .out = {BlockSpec{{block_rows}, [](auto i) { return tilewright::block(i); }}},
         .out_type = {{i32, {rows}}}});
    SuiteCase result = suite_case(
        fmt::format("k-means step of {} x {}, {} centres", rows, n, count), call,
        plain_loops().kmeans, {random_input(f32, {rows, n}, 1), random_input(f32, {count, n}, 2)},
        {i32, {rows}});
    result.sizes = {n, count};
    result.units = rows;
    result.flops = 3.0 * static_cast<double>(rows * n * count);
    return result;
}

}  // namespace

std::vector<SuiteCase> product_cases(bool small) {
    const PlainLoops& plain = plain_loops();
    const std::int64_t n = small ? 64 : 1024;
    std::vector<SuiteCase> cases;
    cases.push_back(matmul_case(f32, plain.matmul_f32, n));
    cases.push_back(matmul_case(i8, plain.matmul_i8, n));
    cases.push_back(matmul_case(i32, plain.matmul_i32, n));
    cases.push_back(matmul_case(f8e4m3, plain.matmul_f8, n));
    cases.push_back(int4_case(16, small ? 64 : 4096, small ? 128 : 4096));
    cases.push_back(kmeans_case(small ? 64 : 32768, 32, small ? 10 : 64));
    cases.push_back(cholesky_case(small ? 4 : 512));
    cases.push_back(lu_case(small ? 4 : 512));
    return cases;
}

}  // namespace tilewright::cli
