// The tile machine on whole kernels, as a fraction of the FMA peak measured in the same process.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "bench/cpu/fma_peak.h"
#include "cpu/machine.h"
#include "ir/builder.h"
#include "ir/evaluate.h"

namespace {

using namespace tilewright;
using ir::IndexOperand;
using ir::Op;
using ir::Value;

/// A kernel under construction.
struct Kernel {
    ir::Function function;
    ir::Builder b{function};

    Value ref(const char* name, std::vector<std::int64_t> extents, DType dtype = DType::f32) {
        return function.add_parameter(ir::RefType{dtype, std::move(extents)}, name);
    }
    Value index(std::int64_t i) { return b.constant_int({DType::i64, {}}, i); }
    Value splat(ir::Shape shape, double value) { return b.constant({DType::f32, shape}, value); }
    Value column(Value vector, const ir::Shape& shape) {
        return b.broadcast(b.expand_dims(vector, 1), shape);
    }
    IndexOperand all(std::int64_t size) { return IndexOperand::slice(index(0), size); }
};

/// Forward attention over (heads, S, D), with an online softmax over blocks of keys.
ir::Function attention(std::int64_t s, std::int64_t d, std::int64_t block_q, std::int64_t block_k,
                       bool causal, DType dtype) {
    Kernel k;
    ir::Builder& b = k.b;
    k.function.name = "attention";
    k.function.grid = {ir::kDynamic, s / block_q};
    const std::vector<std::int64_t> extents{ir::kDynamic, s, d};
    const Value query = k.ref("q", extents, dtype), key = k.ref("k", extents, dtype),
                value = k.ref("v", extents, dtype), out = k.ref("o", extents, dtype);
    const IndexOperand head = IndexOperand::scalar(b.program_id(0));
    const Value first = b.binary(Op::mul, b.program_id(1), k.index(block_q));
    const std::array rows{head, IndexOperand::slice(first, block_q), k.all(d)};
    const Value q = b.load(query, rows);
    const ir::Shape scores{block_q, block_k}, outs{block_q, d};
    const double factor = 1.4426950408889634 / std::sqrt(static_cast<double>(d));
    const auto positions = [&](Value start, std::int64_t count) {
        const Value iota = b.iota({DType::i32, {count}}, 0);
        return b.binary(Op::add, b.broadcast(b.cast(start, DType::i32), {count}), iota);
    };
    const auto step = [&](bool masked) {
        return [&, masked](Value iv, std::span<const Value> c) {
            const Value start = b.binary(Op::mul, iv, k.index(block_k));
            const std::array block{head, IndexOperand::slice(start, block_k), k.all(d)};
            Value score = b.dot(q, b.load(key, block), {}, {false, true});
            if (masked) {
                const Value row = k.column(positions(first, block_q), scores);
                const Value column =
                    b.broadcast(b.expand_dims(positions(start, block_k), 0), scores);
                score = b.select(b.binary(Op::ge, row, column), score,
                                 k.splat(scores, -std::numeric_limits<double>::infinity()));
            }
            const Value high = b.binary(Op::max, c[0], b.reduce(ir::Reduction::max, score, 1));
            const Value offset = b.binary(Op::mul, high, k.splat({block_q}, factor));
            const Value minus = b.unary(Op::neg, offset);
            const Value p =
                b.unary(Op::exp2, b.fma(score, k.splat(scores, factor), k.column(minus, scores)));
            const Value alpha = b.unary(Op::exp2, b.fma(c[0], k.splat({block_q}, factor), minus));
            const Value sum = b.fma(c[1], alpha, b.reduce(ir::Reduction::sum, p, 1));
            const Value scaled = b.binary(Op::mul, c[2], k.column(alpha, outs));
            return std::vector{high, sum, b.dot(b.cast(p, dtype), b.load(value, block), scaled)};
        };
    };
    std::vector<Value> state{k.splat({block_q}, -1e30), k.splat({block_q}, 0), k.splat(outs, 0)};
    const Value end = b.binary(Op::add, first, k.index(block_q));
    const Value full = causal ? b.binary(Op::div, first, k.index(block_k)) : k.index(s / block_k);
    state = b.for_loop(k.index(0), full, k.index(1), state, step(false));
    if (causal) {
        const Value last =
            b.binary(Op::div, b.binary(Op::add, end, k.index(block_k - 1)), k.index(block_k));
        state = b.for_loop(full, last, k.index(1), state, step(true));
    }
    const Value inverse = b.binary(Op::div, k.splat({block_q}, 1), state[1]);
    b.store(out, rows, b.cast(b.binary(Op::mul, state[2], k.column(inverse, outs)), dtype));
    b.yield({});
    return k.function;
}

/// C = A B of n x n, one program per tile, in steps along the contraction.
ir::Function matmul(std::int64_t n, std::int64_t bm, std::int64_t bn, std::int64_t bk) {
    Kernel k;
    ir::Builder& b = k.b;
    k.function.name = "matmul";
    k.function.grid = {n / bm, n / bn};
    const Value x = k.ref("x", {n, n}), y = k.ref("y", {n, n}), z = k.ref("z", {n, n});
    const Value row = b.binary(Op::mul, b.program_id(0), k.index(bm));
    const Value column = b.binary(Op::mul, b.program_id(1), k.index(bn));
    const std::array init{k.splat({bm, bn}, 0)};
    const auto sum = b.for_loop(
        k.index(0), k.index(n), k.index(bk), init, [&](Value at, std::span<const Value> c) {
            const std::array from{IndexOperand::slice(row, bm), IndexOperand::slice(at, bk)};
            const std::array to{IndexOperand::slice(at, bk), IndexOperand::slice(column, bn)};
            return std::vector{b.dot(b.load(x, from), b.load(y, to), c[0])};
        });
    b.store(z, std::array{IndexOperand::slice(row, bm), IndexOperand::slice(column, bn)}, sum[0]);
    b.yield({});
    return k.function;
}

/// Softmax over rows of n elements, `block` rows per program.
ir::Function softmax(std::int64_t rows, std::int64_t n, std::int64_t block) {
    Kernel k;
    ir::Builder& b = k.b;
    k.function.name = "softmax";
    k.function.grid = {rows / block};
    const Value x = k.ref("x", {rows, n}), y = k.ref("y", {rows, n});
    const Value row = b.binary(Op::mul, b.program_id(0), k.index(block));
    const std::array at{IndexOperand::slice(row, block), k.all(n)};
    const Value tile = b.load(x, at);
    const Value high = k.column(b.reduce(ir::Reduction::max, tile, 1), {block, n});
    const Value e = b.unary(Op::exp, b.binary(Op::sub, tile, high));
    const Value total = k.column(b.reduce(ir::Reduction::sum, e, 1), {block, n});
    b.store(y, at, b.binary(Op::div, e, total));
    b.yield({});
    return k.function;
}

/// Runs a kernel over arrays of these shapes on one thread; `flops` and `bytes` per call.
void run_kernel(benchmark::State& state, const ir::Function& kernel,
                const std::vector<std::vector<std::int64_t>>& shapes,
                std::vector<std::int64_t> grid, double flops, double bytes,
                DType dtype = DType::f32) {
    const auto program = cpu::compile(kernel);
    if (std::getenv("TILEWRIGHT_BENCH_LIST")) std::puts(cpu::to_string(*program).c_str());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::vector<std::byte>> data;
    ir::Arguments arguments;
    arguments.grid = std::move(grid);
    for (const std::vector<std::int64_t>& shape : shapes) {
        ir::RefArgument ref;
        std::int64_t stride = 1;
        for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
            ref.extents[d] = shape[d];
            ref.strides[d] = stride;
        }
        data.emplace_back(static_cast<std::size_t>(stride * size_of(dtype)));
        for (std::int64_t i = 0; i < stride; ++i) {
            ir::write_element(dtype, data.back().data() + i * size_of(dtype),
                              ir::encode(dtype, normal(random)));
        }
        ref.data = data.back().data();
        arguments.refs.push_back(ref);
    }
    cpu::set_num_threads(1);
    double best = 1e30, roof = 0;
    for (auto _ : state) {
        roof = std::max(roof, bench::peak(cpu::kernels()));
        const double start = bench::seconds();
        cpu::run(*program, arguments);
        best = std::min(best, bench::seconds() - start);
    }
    cpu::set_num_threads(0);
    if (flops > 0) {
        state.counters["GFLOPS"] = flops / best * 1e-9;
        if (roof > 0) state.counters["peak_percent"] = 100 * flops / best / roof;
    }
    if (bytes > 0) state.counters["GBps"] = bytes / best * 1e-9;
}

void bench_attention(benchmark::State& state, bool causal, DType dtype) {
    const std::int64_t s = state.range(0), d = state.range(1);
    const std::int64_t block_q = state.range(2), block_k = state.range(3), heads = 1;
    const std::vector<std::int64_t> shape{heads, s, d};
    const double flops =
        4.0 * static_cast<double>(heads * s * d) * static_cast<double>(s) / (causal ? 2 : 1);
    run_kernel(state, attention(s, d, block_q, block_k, causal, dtype),
               {shape, shape, shape, shape}, {heads, s / block_q}, flops, 0, dtype);
}

void bench_matmul(benchmark::State& state) {
    const std::int64_t n = state.range(0), bm = state.range(1), bn = state.range(2);
    run_kernel(state, matmul(n, bm, bn, state.range(3)), {{n, n}, {n, n}, {n, n}}, {n / bm, n / bn},
               2.0 * static_cast<double>(n) * static_cast<double>(n * n), 0);
}

void bench_softmax(benchmark::State& state) {
    const std::int64_t rows = 8192, n = state.range(0), block = state.range(1);
    run_kernel(state, softmax(rows, n, block), {{rows, n}, {rows, n}}, {rows / block}, 0,
               8.0 * static_cast<double>(rows * n));
}

void bench_compile(benchmark::State& state) {
    const ir::Function kernel = attention(4096, 64, 64, 128, true, DType::f32);
    for (auto _ : state) benchmark::DoNotOptimize(cpu::compile(kernel));
}

const int kRegistered = [] {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const bool causal : {false, true}) {
            const std::string label = std::string("attention/") + std::string(name(dtype)) +
                                      (causal ? "/causal" : "/full");
            auto* attention = benchmark::RegisterBenchmark(
                label.c_str(), [=](benchmark::State& s) { bench_attention(s, causal, dtype); });
            attention->ArgNames({"s", "d", "block_q", "block_k"})
                ->Unit(benchmark::kMillisecond)
                ->MinTime(0.3);
            for (const std::int64_t d : {64, 128}) {
                attention->Args({1024, d, 64, 128});
                for (const std::int64_t block_q : {64, 128, 256}) {
                    attention->Args({4096, d, block_q, 128});
                }
            }
        }
    }
    benchmark::RegisterBenchmark("matmul", bench_matmul)
        ->ArgNames({"n", "bm", "bn", "bk"})
        ->Args({512, 128, 256, 256})
        ->Args({1024, 128, 256, 256})
        ->Args({2048, 128, 256, 256})
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark("softmax", bench_softmax)
        ->ArgNames({"n", "block"})
        ->Args({1024, 8})
        ->Args({4096, 4})
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark("compile", bench_compile)->Unit(benchmark::kMicrosecond);
    return 0;
}();

}  // namespace
