// Which instructions for products of narrow elements this machine has.
#include "cpu/simd/dot_products.h"

#if defined(__x86_64__) && defined(__linux__) && !TILEWRIGHT_SCALAR
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hwy/targets.h"

namespace tilewright::cpu {
namespace {

/// The registers of cpuid's leaf 7; zeros where that leaf does not exist.
struct Features {
    explicit Features(unsigned subleaf) { __get_cpuid_count(7, subleaf, &a, &b, &c, &d); }
    unsigned a = 0, b = 0, c = 0, d = 0;
};

// Highway has checked that the system saves the vector registers.
bool has_avx512() {
    return (hwy::SupportedTargets() & HWY_AVX3) != 0;
}

}  // namespace

bool has_avx512_bf16() {
    return has_avx512() && (Features(1).a & (1u << 5)) != 0;
}

bool has_avx512_vnni() {
    return has_avx512() && (Features(0).c & (1u << 11)) != 0;
}

bool has_amx() {
    constexpr unsigned kAmxBf16 = 1u << 22;
    constexpr unsigned kAmxTile = 1u << 24;
    const unsigned features = Features(0).d;
    if (!has_avx512_bf16() || (features & kAmxBf16) == 0 || (features & kAmxTile) == 0) {
        return false;
    }
    // Linux enables the tile registers on request, for all threads of the process.
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx_int8() {
    return has_avx512_vnni() && has_amx() && (Features(0).d & (1u << 25)) != 0;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

bool has_avx512_bf16() {
    return false;
}
bool has_avx512_vnni() {
    return false;
}
bool has_amx() {
    return false;
}
bool has_amx_int8() {
    return false;
}

}  // namespace tilewright::cpu

#endif
