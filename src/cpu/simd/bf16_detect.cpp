// Whether this machine has AVX512-BF16 and AMX.
#include "cpu/simd/bf16.h"

#if defined(__x86_64__) && defined(__linux__) && !TILEWRIGHT_SCALAR
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hwy/targets.h"

namespace tilewright::cpu {

bool has_avx512_bf16() {
    // Highway has checked that the system saves the vector registers.
    if ((hwy::SupportedTargets() & HWY_AVX3) == 0) return false;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
}

bool has_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!has_avx512_bf16() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    constexpr unsigned kAmxBf16 = 1u << 22;
    constexpr unsigned kAmxTile = 1u << 24;
    if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
    // Linux enables the tile registers on request, for all threads of the process.
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

bool has_avx512_bf16() {
    return false;
}
bool has_amx() {
    return false;
}

}  // namespace tilewright::cpu

#endif
