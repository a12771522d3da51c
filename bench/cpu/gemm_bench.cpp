// Matrix-product micro-kernels on attention tiles, as a fraction of the measured FMA peak.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/cpu/fma_peak.h"
#include "cpu/simd/kernels.h"

namespace {

using namespace tilewright;
using bench::peak;
using bench::seconds;

// Operands are of type T, C of type Result; an element of T holds kTerms numbers along k.
template <typename T, typename Result = T, int kTerms = 1>
void gemm(benchmark::State& state, const cpu::Kernels& table, cpu::GemmFunction f, bool k_major) {
    const std::int64_t m = state.range(0);
    const std::int64_t n = state.range(1);
    const std::int64_t k = state.range(2);
    const auto size = [](std::int64_t x, std::int64_t y) {
        return static_cast<std::size_t>(x * y);
    };
    std::vector<T> a(size(m, k), T(0));
    std::vector<T> b(size(k, n), T(0));
    std::vector<Result> c(size(m, n), Result(0));
    cpu::GemmArgs args;
    args.m = m;
    args.n = n;
    args.k = k;
    args.a = a.data();
    args.a_row = k_major ? 1 : k;
    args.a_col = k_major ? m : 1;
    args.b = b.data();
    args.ldb = n;
    args.c = c.data();
    args.ldc = n;
    args.accumulate = true;
    const double flops =
        2.0 * kTerms * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const int repeats = std::max(1, static_cast<int>(2e7 / flops));
    double roof = 0;
    double best = 1e30;
    // The clock frequency drifts, so the peak is measured again with every run.
    for (auto _ : state) {
        roof = std::max(roof, peak(table) * kTerms * sizeof(float) / sizeof(T));
        const double start = seconds();
        for (int i = 0; i < repeats; ++i) f(args);
        benchmark::ClobberMemory();
        best = std::min(best, (seconds() - start) / repeats);
    }
    state.counters["GFLOPS"] = flops / best * 1e-9;
    if (roof > 0) state.counters["peak_percent"] = 100 * flops / best / roof;
    state.counters["B_GBps"] = static_cast<double>(b.size() * sizeof(T)) / best * 1e-9;
}

void register_all() {
    for (const cpu::Kernels* table : cpu::available_kernels()) {
        if (table->name == "scalar") continue;
        const std::string name(table->name);
        const auto f32_tile = [table](benchmark::State& s) {
            gemm<float>(s, *table, table->gemm_f32, false);
        };
        const auto f32_k_major = [table](benchmark::State& s) {
            gemm<float>(s, *table, table->gemm_f32, true);
        };
        const auto f64_tile = [table](benchmark::State& s) {
            gemm<double>(s, *table, table->gemm_f64, false);
        };
        auto* tiles = benchmark::RegisterBenchmark((name + "/f32/row_major").c_str(), f32_tile);
        auto* k_major = benchmark::RegisterBenchmark((name + "/f32/k_major").c_str(), f32_k_major);
        auto* doubles = benchmark::RegisterBenchmark((name + "/f64/row_major").c_str(), f64_tile);
        for (auto* b : {tiles, k_major, doubles}) {
            b->ArgNames({"m", "n", "k"})->MinTime(0.1);
            for (std::int64_t m : {64, 128, 512}) {
                b->Args({m, 64, 64})->Args({m, 64, 128});
            }
            b->Args({128, 100, 64})
                ->Args({61, 64, 64})
                ->Args({128, 128, 128})
                ->Args({64, 256, 256});
        }
        if (table->gemm_bf16_pairs != nullptr) {
            const auto pairs = [table](benchmark::State& s) {
                gemm<std::uint32_t, float, 2>(s, *table, table->gemm_bf16_pairs, false);
            };
            auto* b = benchmark::RegisterBenchmark((name + "/bf16_pairs").c_str(), pairs);
            b->ArgNames({"m", "n", "k"})->MinTime(0.1);
            for (std::int64_t m : {64, 128, 256}) b->Args({m, 64, 32})->Args({m, 64, 64});
        }
        // Decode: few rows, a long k; B comes from memory.
        for (std::int64_t m : {1, 4, 8, 16}) tiles->Args({m, 64, 32768})->Args({m, 128, 32768});
    }
}
const int kRegistered = (register_all(), 0);

}  // namespace
