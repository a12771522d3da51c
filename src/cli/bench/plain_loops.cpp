// The loops for any machine, and the choice of a level.
#define TW_PLAIN_LEVEL "the compiler's default"
#include "cli/bench/plain_loops-inl.h"
#include "cpu/simd/kernels.h"

namespace tilewright::cli {

const PlainLoops kPlainLoopsDefault = kLoopsOfThisLevel;

const PlainLoops& plain_loops() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool narrow = cpu::kernels().vector_bytes == 32;
    if (!narrow && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return kPlainLoopsV4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kPlainLoopsV3;
#endif
    return kPlainLoopsDefault;
}

}  // namespace tilewright::cli
