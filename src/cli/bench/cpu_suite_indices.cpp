// Kernels with gathers, scatters and atomics.
#include <fmt/format.h>

#include "cli/bench/cpu_suite.h"
#include "cli/builtin.h"
#include "tilewright/lang.h"

namespace tilewright::cli {

namespace {

/// Integers from 0 to below - 1.
Tensor random_indices(Tensor::Dims shape, std::int64_t below, std::uint32_t seed) {
    const Tensor result = Tensor::empty(i32, std::move(shape));
    std::uint32_t state = seed * 747796405U + 2891336453U;
    for (std::int64_t i = 0; i < result.size(); ++i) {
        state = state * 1664525U + 1013904223U;
        const auto value = static_cast<std::int64_t>(state >> 8) * below >> 24;
        result.data<std::int32_t>()[i] = static_cast<std::int32_t>(value);
    }
    return result;
}

constexpr std::int64_t kBlock = 4096;
const BlockSpec& line_block() {
    static const BlockSpec block{{kBlock}, [](auto i) { return tilewright::block(i); }};
    return block;
}

SuiteCase segment_sum_case(std::int64_t count, std::int64_t segments) {
    Call call = tilewright::call(
        kernel("segment_sum",
               [](Ref x, Ref ids, Ref, Ref sums) { sums.at(ids.load()).atomic_add(x.load()); }),
        {.grid = {count / kBlock},
         .in = {line_block(), line_block(), {}},
         .out_type = {{f32, {segments}}},
         .aliases = {{2, 0}}});
    const SuiteInput ids = [=] {
        Tensor sorted = random_indices({count}, segments, 2);
        std::sort(sorted.data<std::int32_t>(), sorted.data<std::int32_t>() + count);
        return sorted;
    };
    SuiteCase result = suite_case(
        fmt::format("segment_sum {} to {}", count, segments), call, plain_loops().segment_sum,
        {random_input(f32, {count}, 1), ids, zero_input(f32, {segments})}, {f32, {segments}});
    result.updated = 2;
    result.sizes = {count};
    result.units = count;
    result.bytes = 8.0 * static_cast<double>(count);
    return result;
}

SuiteCase histogram_case(std::int64_t count, std::int64_t bins) {
    Call call = tilewright::call(
        kernel("histogram", [](Ref x, Ref, Ref counts) { counts.at(x.load()).atomic_add(1); }),
        {.grid = {count / kBlock},
         .in = {line_block(), {}},
         .out_type = {{i32, {bins}}},
         .aliases = {{1, 0}}});
    SuiteCase result =
        suite_case(fmt::format("histogram {} in {}", count, bins), call, plain_loops().histogram,
                   {index_input({count}, bins, 1), zero_input(i32, {bins})}, {i32, {bins}});
    result.updated = 1;
    result.sizes = {bins};
    result.units = count;
    result.bytes = 4.0 * static_cast<double>(count);
    return result;
}

SuiteCase embedding_case(std::int64_t table, std::int64_t n, std::int64_t count) {
    constexpr std::int64_t kRows = 64;
    Call call = tilewright::call(
        kernel("embedding", [](Ref x, Ref ids, Ref y) { y.store(x.at(ids.load(), all).load()); }),
        {.grid = {count / kRows},
         .in = {{}, BlockSpec{{kRows}, [](auto i) { return tilewright::block(i); }}},
         .out = {BlockSpec{{kRows, n}, [](auto i) { return tilewright::block(i, 0); }}},
         .out_type = {{f32, {count, n}}}});
    SuiteCase result = suite_case(
        fmt::format("embedding {} of {} x {}", count, table, n), call, plain_loops().embedding,
        {random_input(f32, {table, n}, 1), index_input({count}, table, 2)}, {f32, {count, n}});
    result.sizes = {n};
    result.units = count;
    result.bytes = 8.0 * static_cast<double>(count * n);
    return result;
}

SuiteCase embedding_gradient_case(std::int64_t table, std::int64_t n, std::int64_t count) {
    constexpr std::int64_t kRows = 64;
    const BlockSpec ids{{kRows}, [](auto i) { return tilewright::block(i); }};
    const BlockSpec rows{{kRows, n}, [](auto i) { return tilewright::block(i, 0); }};
    Call call = tilewright::call(
        kernel("embedding_gradient",
               [](Ref dy, Ref id, Ref, Ref dx) { dx.at(id.load(), all).atomic_add(dy.load()); }),
        {.grid = {count / kRows},
         .in = {rows, ids, {}},
         .out_type = {{f32, {table, n}}},
         .aliases = {{2, 0}}});
    SuiteCase result = suite_case(fmt::format("embedding_gradient {} to {} x {}", count, table, n),
                                  call, plain_loops().embedding_gradient,
                                  {random_input(f32, {count, n}, 1), index_input({count}, table, 2),
                                   zero_input(f32, {table, n})},
                                  {f32, {table, n}});
    result.updated = 2;
    result.sizes = {n, count};
    result.units = n;
    result.parts = 1;
    result.bytes = 12.0 * static_cast<double>(count * n);
    return result;
}

SuiteCase sparse_rows_case(std::int64_t rows, std::int64_t n, std::int64_t columns) {
    constexpr std::int64_t kRows = 64;
    const BlockSpec block{{kRows, n}, [](auto i) { return tilewright::block(i, 0); }};
    Call call =
        tilewright::call(kernel("sparse_rows",
                                [](Ref x, Ref at, Ref vector, Ref y) {
                                    y.store(sum(x.load() * vector.at(at.load()).load(), 1));
                                }),
                         {.grid = {rows / kRows},
                          .in = {block, block, {}},
                          .out = {BlockSpec{{kRows}, [](auto i) { return tilewright::block(i); }}},
                          .out_type = {{f32, {rows}}}});
    SuiteCase result =
        suite_case(fmt::format("sparse matrix {} x {}, {} in a row", rows, columns, n), call,
                   plain_loops().sparse_rows,
                   {random_input(f32, {rows, n}, 1), index_input({rows, n}, columns, 2),
                    random_input(f32, {columns}, 3)},
                   {f32, {rows}});
    result.sizes = {n};
    result.units = rows;
    result.bytes = 8.0 * static_cast<double>(rows * n);
    result.tolerance = 2e-6;
    return result;
}

}  // namespace

SuiteInput index_input(Tensor::Dims shape, std::int64_t below, std::uint32_t seed) {
    return [=] { return random_indices(shape, below, seed); };
}

std::vector<SuiteCase> index_cases(bool small) {
    std::vector<SuiteCase> cases;
    const std::int64_t count = small ? kBlock : 1 << 20;
    cases.push_back(segment_sum_case(count, small ? 10 : 4096));
    cases.push_back(histogram_case(4 * count, 256));
    cases.push_back(embedding_case(small ? 100 : 32768, small ? 70 : 256, small ? 64 : 16384));
    cases.push_back(
        embedding_gradient_case(small ? 100 : 32768, small ? 70 : 256, small ? 64 : 16384));
    cases.push_back(sparse_rows_case(small ? 64 : 65536, 32, small ? 1000 : 65536));
    return cases;
}

}  // namespace tilewright::cli
