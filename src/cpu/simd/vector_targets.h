// Which instruction sets the vector sources are compiled for. Must be included before Highway.
#pragma once

// Below AVX2 the scalar table is used; SVE vectors have no compile-time size.
#define HWY_DISABLED_TARGETS                                                                       \
    (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_WASM | \
     HWY_WASM_EMU256 | HWY_PPC8)

#include "hwy/detect_targets.h"

// Newer versions of Highway know more targets; sources compile to nothing for those.
#define TW_IS_VECTOR_TARGET \
    (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)

// Returns TARGET::CALL for the run-time `target`: the bridge from a target's namespace to a plain
// function. Ends a function of a vector source, inside #if HWY_ONCE.
#if HWY_TARGETS & HWY_AVX2
#define TW_CASE_AVX2(CALL) \
    case Target::avx2:     \
        return N_AVX2::CALL;
#else
#define TW_CASE_AVX2(CALL)
#endif
#if HWY_TARGETS & HWY_AVX3
#define TW_CASE_AVX512(CALL) \
    case Target::avx512:     \
        return N_AVX3::CALL;
#else
#define TW_CASE_AVX512(CALL)
#endif
#if HWY_TARGETS & HWY_NEON
#define TW_CASE_NEON(CALL) \
    case Target::neon:     \
        return N_NEON::CALL;
#else
#define TW_CASE_NEON(CALL)
#endif
#define TW_RETURN_FROM_TARGET(target, CALL) \
    switch (target) {                       \
        TW_CASE_AVX2(CALL)                  \
        TW_CASE_AVX512(CALL)                \
        TW_CASE_NEON(CALL)                  \
        default:                            \
            return nullptr;                 \
    }
