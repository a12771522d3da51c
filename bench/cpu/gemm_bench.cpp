// Matrix-product micro-kernels on attention tiles, as a share of the FMA peak of the same process.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "cpu/simd/kernels.h"

namespace {

using namespace tilewright;

// CPU time of this thread: other programs on the machine do not count.
double seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

#if defined(__x86_64__)
// Twelve independent chains: enough to hide an FMA latency of 4 at two a cycle. In assembly, so
// that it needs no compiler flags and stays in registers.
#define TW_PEAK_LOOP(register_name)                                                             \
    asm volatile(                                                                               \
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,15\n"                                                 \
        "vxorps %%xmm\\r,%%xmm\\r,%%xmm\\r\n"                                                   \
        ".endr\n"                                                                               \
        "1:\n"                                                                                  \
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n"                                                    \
        "vfmadd231ps %%" register_name "15,%%" register_name "15,%%" register_name              \
        "\\r\n"                                                                                 \
        ".endr\n"                                                                               \
        "dec %0\n"                                                                              \
        "jnz 1b\n"                                                                              \
        "vzeroupper\n"                                                                          \
        : "+r"(steps)                                                                           \
        :                                                                                       \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
          "xmm10", "xmm11", "xmm15")
void peak_avx2(std::int64_t steps) {
    TW_PEAK_LOOP("ymm");
}
void peak_avx512(std::int64_t steps) {
    TW_PEAK_LOOP("zmm");
}
#endif

// One run of the FMA loop with the table's vectors, f32 flop/s; 0 where there is none.
double peak(const cpu::Kernels& table) {
#if defined(__x86_64__)
    const std::int64_t steps = 20'000;
    const double start = seconds();
    if (table.vector_bytes == 64) {
        peak_avx512(steps);
    } else {
        peak_avx2(steps);
    }
    return 2.0 * 12 * static_cast<double>(steps) * table.vector_bytes / 4 / (seconds() - start);
#else
    return 0;
#endif
}

template <typename T>
void gemm(benchmark::State& state, const cpu::Kernels& table, cpu::GemmFunction f, bool k_major) {
    const std::int64_t m = state.range(0);
    const std::int64_t n = state.range(1);
    const std::int64_t k = state.range(2);
    const auto size = [](std::int64_t x, std::int64_t y) {
        return static_cast<std::size_t>(x * y);
    };
    std::vector<T> a(size(m, k), T(0.5));
    std::vector<T> b(size(k, n), T(0.25));
    std::vector<T> c(size(m, n), T(0));
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
    const double roof = peak(table) * sizeof(float) / sizeof(T);
    double best = 1e30;
    for (auto _ : state) {
        const double start = seconds();
        f(args);
        benchmark::ClobberMemory();
        best = std::min(best, seconds() - start);
    }
    const double flops =
        2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
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
        // Decode: few rows, a long k; B comes from memory.
        for (std::int64_t m : {1, 4, 8, 16}) tiles->Args({m, 64, 32768})->Args({m, 128, 32768});
    }
}
const int kRegistered = (register_all(), 0);

}  // namespace
