// The inner loop of f32 products on AVX2, in assembly. Included once per target.
//
// 12 sums, 3 vectors of B and one element of A take all 16 registers: compilers that unroll this
// loop move and spill some of them. Where another hyperthread shares the core, the instructions
// other than FMAs limit the speed: here there are 31 of them for 48 FMAs.
#if defined(TILEWRIGHT_CPU_GEMM_AVX2_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_GEMM_AVX2_INL_H
#undef TILEWRIGHT_CPU_GEMM_AVX2_INL_H
#else
#define TILEWRIGHT_CPU_GEMM_AVX2_INL_H
#endif

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {

// clang-format off
#define TW_THREE(text) text
#define TW_TWO(text)
#define TW_ZERO(r)                              \
    "vxorps %[" r "0], %[" r "0], %[" r "0]\n"  \
    "vxorps %[" r "1], %[" r "1], %[" r "1]\n"  \
    "vxorps %[" r "2], %[" r "2], %[" r "2]\n"
#define TW_ROW(third, r, at)                    \
    "vbroadcastss " at ", %[x]\n"               \
    "vfmadd231ps %[b0], %[x], %[" r "0]\n"      \
    "vfmadd231ps %[b1], %[x], %[" r "1]\n"      \
    third("vfmadd231ps %[b2], %[x], %[" r "2]\n")
#define TW_STEP(third, b0, b1, b2, at0, at1, at2, at3)  \
    "vmovups " b0 "(%[b]), %[b0]\n"                     \
    "vmovups " b1 "(%[b]), %[b1]\n"                     \
    third("vmovups " b2 "(%[b]), %[b2]\n")              \
    TW_ROW(third, "p", at0) TW_ROW(third, "q", at1) TW_ROW(third, "r", at2) TW_ROW(third, "s", at3)
// Lines 0 to 3 of A, `stride` bytes apart: its rows or its columns.
#define TW_LINE0 "(%[a])"
#define TW_LINE1 "(%[a],%[stride])"
#define TW_LINE2 "(%[a],%[stride],2)"
#define TW_LINE3 "(%[a],%[stride3])"
#define TW_OF_ROWS(third, b0, b1, b2, i, line) \
    TW_STEP(third, b0, b1, b2, i TW_LINE0, i TW_LINE1, i TW_LINE2, i TW_LINE3)
#define TW_OF_COLUMN(third, b0, b1, b2, i, line) \
    TW_STEP(third, b0, b1, b2, "0" line, "4" line, "8" line, "12" line)
#define TW_STEPS_OF_THREE(step)                               \
    step(TW_THREE, "0", "32", "64", "0", TW_LINE0)            \
    step(TW_THREE, "96", "128", "160", "4", TW_LINE1)         \
    step(TW_THREE, "192", "224", "256", "8", TW_LINE2)        \
    step(TW_THREE, "288", "320", "352", "12", TW_LINE3) "add $384, %[b]\n"
#define TW_STEPS_OF_TWO(step)                                 \
    step(TW_TWO, "0", "32", "", "0", TW_LINE0)                \
    step(TW_TWO, "64", "96", "", "4", TW_LINE1)               \
    step(TW_TWO, "128", "160", "", "8", TW_LINE2)             \
    step(TW_TWO, "192", "224", "", "12", TW_LINE3) "add $256, %[b]\n"
#define TW_LOOP(steps_text)                                                                         \
    asm volatile(TW_ZERO("p") TW_ZERO("q") TW_ZERO("r") TW_ZERO("s")                                \
                 ".p2align 5\n1:\n" steps_text "dec %[steps]\njnz 1b\n"                             \
                 : [p0] "=&x"(sum[0][0].raw), [p1] "=&x"(sum[0][1].raw), [p2] "=&x"(sum[0][2].raw), \
                   [q0] "=&x"(sum[1][0].raw), [q1] "=&x"(sum[1][1].raw), [q2] "=&x"(sum[1][2].raw), \
                   [r0] "=&x"(sum[2][0].raw), [r1] "=&x"(sum[2][1].raw), [r2] "=&x"(sum[2][2].raw), \
                   [s0] "=&x"(sum[3][0].raw), [s1] "=&x"(sum[3][1].raw), [s2] "=&x"(sum[3][2].raw), \
                   [b0] "=&x"(b0), [b1] "=&x"(b1), [b2] "=&x"(b2), [x] "=&x"(x), [a] "+&r"(a),      \
                   [b] "+&r"(b), [steps] "+&r"(steps)                                               \
                 : [stride] "r"(bytes), [stride3] "r"(3 * bytes)                                    \
                 : "cc", "memory")
// clang-format on

/// sum = 4 rows of A times kVectors (2 or 3) vectors of B, whose rows are contiguous, over 4 *
/// `steps` steps of k, with steps >= 1. The elements of a row of A (kRowMajor) or of a column are
/// contiguous, and rows or columns are `stride` apart. `a` and `b` advance past what was read.
template <int kVectors, bool kRowMajor>
HWY_INLINE void four_rows(const float*& a, std::int64_t stride, const float*& b, std::int64_t steps,
                          hwy::HWY_NAMESPACE::Vec256<float> (&sum)[4][3]) {
    const std::int64_t bytes = 4 * stride;
    __m256 b0, b1, b2, x;
    if constexpr (kVectors == 3 && kRowMajor) {
        TW_LOOP(TW_STEPS_OF_THREE(TW_OF_ROWS) "add $16, %[a]\n");
    } else if constexpr (kVectors == 3) {
        TW_LOOP(TW_STEPS_OF_THREE(TW_OF_COLUMN) "lea (%[a],%[stride],4), %[a]\n");
    } else if constexpr (kRowMajor) {
        TW_LOOP(TW_STEPS_OF_TWO(TW_OF_ROWS) "add $16, %[a]\n");
    } else {
        TW_LOOP(TW_STEPS_OF_TWO(TW_OF_COLUMN) "lea (%[a],%[stride],4), %[a]\n");
    }
}

#undef TW_THREE
#undef TW_TWO
#undef TW_ZERO
#undef TW_ROW
#undef TW_STEP
#undef TW_LINE0
#undef TW_LINE1
#undef TW_LINE2
#undef TW_LINE3
#undef TW_OF_ROWS
#undef TW_OF_COLUMN
#undef TW_STEPS_OF_THREE
#undef TW_STEPS_OF_TWO
#undef TW_LOOP

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();
#endif

#endif
