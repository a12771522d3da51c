// Loops that run at the machine's limits.
#include "cli/bench/roofs.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/machine.h"
#include "tilewright/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tilewright::cli {
namespace {

/// A loop on registers. Returns a value that depends on all of its work, so that none is removed.
struct PeakLoop {
    float (*run)(std::int64_t steps);
    double flops_per_step;
};

constexpr int kAccumulators = 12;  // latency 4 x 2 units needs 8; 12 fit in AVX2's 16 registers

#define TW_PEAK_LOOP(name, isa, Vector, zero, set1, step)               \
    __attribute__((target(isa))) float name(std::int64_t steps) {       \
        Vector sums[kAccumulators];                                     \
        for (auto& sum : sums) sum = zero();                            \
        const auto a = set1(1.0f), b = set1(1e-9f);                     \
        for (std::int64_t i = 0; i < steps; ++i)                        \
            _Pragma("GCC unroll 12") for (auto& sum : sums) sum = step; \
        float result[sizeof(Vector) / 4], total = 0;                    \
        for (auto& sum : sums) {                                        \
            std::memcpy(result, &sum, sizeof(Vector));                  \
            for (float x : result) total += x;                          \
        }                                                               \
        return total;                                                   \
    }

#if defined(__x86_64__)
TW_PEAK_LOOP(peak_sse, "sse2", __m128, _mm_setzero_ps, _mm_set1_ps,
             _mm_add_ps(_mm_mul_ps(sum, a), b))
TW_PEAK_LOOP(peak_avx2, "avx2,fma", __m256, _mm256_setzero_ps, _mm256_set1_ps,
             _mm256_fmadd_ps(sum, a, b))
TW_PEAK_LOOP(peak_avx512, "avx512f", __m512, _mm512_setzero_ps, _mm512_set1_ps,
             _mm512_fmadd_ps(sum, a, b))

__attribute__((target("avx512f,avx512bf16"))) __m512bh pair_vector(float value) {
    return _mm512_cvtne2ps_pbh(_mm512_set1_ps(value), _mm512_set1_ps(value));
}
TW_PEAK_LOOP(peak_avx512_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps, pair_vector,
             _mm512_dpbf16_ps(sum, a, b))

/// Asks the operating system for the AMX tile registers; false if there are none.
bool enable_amx() {
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return (edx & kTile) && (edx & kBf16) &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

__attribute__((target("amx-tile,amx-bf16"))) float peak_amx(std::int64_t steps) {
    struct alignas(64) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (std::int64_t i = 0; i < steps; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    alignas(64) float result[256];
    _tile_stored(0, result, 64);
    _tile_release();
    return result[0];
}

PeakLoop best_f32() {
    if (__builtin_cpu_supports("avx512f")) return {peak_avx512, kAccumulators * 16 * 2.0};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {peak_avx2, kAccumulators * 8 * 2.0};
    return {peak_sse, kAccumulators * 4 * 2.0};
}

PeakLoop best_bf16() {
    if (enable_amx()) return {peak_amx, 4 * 16 * 16 * 32 * 2.0};
    if (__builtin_cpu_supports("avx512bf16")) return {peak_avx512_bf16, kAccumulators * 32 * 2.0};
    return best_f32();
}
#else
// GCC's and clang's vector extension: two or four native vectors at a time.
using Lanes = float __attribute__((vector_size(16)));
Lanes lanes_zero() {
    return Lanes{};
}
Lanes lanes_of(float value) {
    return Lanes{value, value, value, value};
}
TW_PEAK_LOOP(peak_generic, "default", Lanes, lanes_zero, lanes_of, sum* a + b)
PeakLoop best_f32() {
    return {peak_generic, kAccumulators * 4 * 2.0};
}
PeakLoop best_bf16() {
    return best_f32();
}
#endif

std::atomic<float> sink;  // keeps the loops' results alive

/// Runs the loop in pieces of some tenths of a millisecond, distributed like the programs of a
/// kernel, so that a thread that waits for its core does not delay the others.
Roof peak(std::string name, PeakLoop loop) {
    const int pieces = 32 * cpu::num_threads();
    constexpr std::int64_t kSteps = 100'000;
    return {std::move(name),
            [=] { cpu::parallel_for(pieces, [&](std::int64_t) { sink = loop.run(kSteps); }); },
            loop.flops_per_step * kSteps * pieces};
}

using Buffer = std::vector<std::uint64_t>;

/// The part of [0, size) that thread i of n works on.
std::pair<std::size_t, std::size_t> part(std::size_t size, std::int64_t i, int n) {
    const auto index = static_cast<std::size_t>(i), count = static_cast<std::size_t>(n);
    return {size * index / count, size * (index + 1) / count};
}

}  // namespace

Variant as_long_as(const Roof& roof, double seconds) {
    return timed(roof.name, roof.work, std::max(seconds, 0.01));
}

Roof fma_peak_f32() {
    return peak("FMA peak", best_f32());
}

Roof dot_peak_bf16() {
    return peak("bf16 peak", best_bf16());
}

Roof read_bandwidth(std::size_t bytes) {
    const int threads = cpu::num_threads();
    auto data = std::make_shared<Buffer>(bytes / 8, 1);
    return {"reading",
            [data, threads] {
                cpu::parallel_for(threads, [&](std::int64_t i) {
                    const auto [first, last] = part(data->size(), i, threads);
                    std::uint64_t sums[16] = {};
                    std::size_t at = first;
                    for (; at + 16 <= last; at += 16)
                        for (std::size_t j = 0; j < 16; ++j) sums[j] += (*data)[at + j];
                    std::uint64_t total = 0;
                    for (std::uint64_t sum : sums) total += sum;
                    sink = static_cast<float>(total);
                });
            },
            static_cast<double>(data->size() * 8)};
}

Roof copy_bandwidth(std::size_t bytes) {
    const int threads = cpu::num_threads();
    auto from = std::make_shared<Buffer>(bytes / 8, 1), to = std::make_shared<Buffer>(bytes / 8);
    return {"memcpy",
            [from, to, threads] {
                cpu::parallel_for(threads, [&](std::int64_t i) {
                    const auto [first, last] = part(from->size(), i, threads);
                    std::memcpy(to->data() + first, from->data() + first, (last - first) * 8);
                });
            },
            static_cast<double>(from->size() * 8) * 2};
}

std::optional<Roof> streaming_copy(std::size_t bytes) {
#if defined(__x86_64__)
    const int threads = cpu::num_threads();
    const auto count = static_cast<std::int64_t>(bytes / sizeof(__m128i));
    const Tensor from = Tensor::zeros(u64, {2 * count}), to = Tensor::zeros(u64, {2 * count});
    return Roof{
        "streaming",
        [from, to, threads, count] {
            cpu::parallel_for(threads, [&](std::int64_t i) {
                const auto [first, last] = part(static_cast<std::size_t>(count), i, threads);
                const auto* source = reinterpret_cast<const __m128i*>(from.data<std::uint64_t>());
                auto* target = reinterpret_cast<__m128i*>(to.data<std::uint64_t>());
                for (std::size_t at = first; at < last; ++at)
                    _mm_stream_si128(target + at, _mm_loadu_si128(source + at));
                _mm_sfence();
            });
        },
        static_cast<double>(count) * sizeof(__m128i) * 2};
#else
    static_cast<void>(bytes);
    return {};
#endif
}

}  // namespace tilewright::cli
