// The FMA peak of one core, and the clock that it is measured with.
#pragma once

#include <cstdint>
#include <ctime>

#include "cpu/simd/kernels.h"

namespace tilewright::bench {

// CPU time of this thread, which other programs on the machine do not add to.
inline double seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

#if defined(__x86_64__)
// Twelve independent chains are enough to hide an FMA latency of 4 cycles at two per cycle. In
// assembly, so that it needs no compiler flags and stays in registers.
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
inline void peak_avx2(std::int64_t steps) {
    TW_PEAK_LOOP("ymm");
}
inline void peak_avx512(std::int64_t steps) {
    TW_PEAK_LOOP("zmm");
}
#endif

// f32 FLOP/s of one run of the FMA loop with the table's vectors; 0 if it has none.
inline double peak(const cpu::Kernels& table) {
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

}  // namespace tilewright::bench
