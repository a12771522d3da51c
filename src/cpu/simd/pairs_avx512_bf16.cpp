// Pairs of bf16 rows from f32, rounded by vcvtne2ps2bf16: probabilities, and score gradients of
// attention. Compiled with AVX512-BF16 enabled, so nothing here may be shared with other
// translation units: no inline functions of the library or of ours.
#include <immintrin.h>

#include "cpu/simd/dot_products.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kLanes = 16;

// (low[l], high[l]), rounded to bf16; subnormal numbers become 0.
inline __m512i pairs(__m512 low, __m512 high) {
    const __m512i first =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(first, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

inline __mmask16 lanes_left(std::int64_t lanes) {
    return static_cast<__mmask16>(lanes >= kLanes ? 0xffff : (1u << lanes) - 1);
}

// While it lives, subnormal operands and results of this thread's arithmetic are 0: they would cost
// later instructions a microcode assist, and products of bf16 pairs read them as 0 anyway.
class FlushSubnormals {
  public:
    FlushSubnormals() : before_(_mm_getcsr()) {
        constexpr unsigned kResults = 1U << 15, kOperands = 1U << 6;
        _mm_setcsr(before_ | kResults | kOperands);
    }
    ~FlushSubnormals() { _mm_setcsr(before_); }
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;

  private:
    unsigned before_;
};

// 2^x with a relative error of 2^-18, a thousandth of what rounding to bf16 adds; 1 for 0. The
// kCount vectors are interleaved, so that each one's latency is hidden by the operations of the
// others.
template <int kCount>
inline void exp2(__m512 (&x)[kCount]) {
    constexpr float kC[] = {1.F, .6930448449F, .2412802048F, .05224247422F, .01342668427F};
    constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    __m512 fraction[kCount], p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        fraction[i] = _mm512_reduce_ps(x[i], kFloor);
        p[i] = _mm512_set1_ps(kC[4]);
    }
#pragma GCC unroll 8
    for (int c = 3; c >= 0; --c) {
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i)
            p[i] = _mm512_fmadd_ps(p[i], fraction[i], _mm512_set1_ps(kC[c]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        // The form without a mask reads an undefined vector in g++'s header, which warns.
        x[i] = _mm512_maskz_scalef_ps(0xffff, p[i], x[i]);
    }
}

// A lane operand at 16 lanes: one vector for all rows, or one element per row. Masks of whole
// vectors are constants, since masked stores are slow.
template <bool kWhole>
struct LaneOperand {
    const float* at;
    std::int64_t row_stride, lane_stride;
    __mmask16 mask;
    __m512 first;

    LaneOperand(const StripOperand& operand, std::int64_t lane, __mmask16 lanes)
        : at(static_cast<const float*>(operand.data) + lane * operand.lane_stride),
          row_stride(operand.row_stride),
          lane_stride(operand.lane_stride),
          mask(lanes),
          first(read(0)) {}
    __m512 read(std::int64_t row) const {
        const float* const p = at + row * row_stride;
        const __mmask16 kept = kWhole ? static_cast<__mmask16>(0xffff) : mask;
        return lane_stride == 0 ? _mm512_set1_ps(*p) : _mm512_maskz_loadu_ps(kept, p);
    }
    // With kSame all rows have one vector.
    template <bool kSame>
    __m512 row(std::int64_t r) const {
        return kSame || row_stride == 0 ? first : read(r);
    }
};

// Rows of 16 lanes.
template <bool kWhole>
struct Exp2Column {
    const float* x;
    std::int64_t x_stride;
    LaneOperand<kWhole> shift, scale;
    std::uint32_t* out;
    std::int64_t out_stride;
    __mmask16 lanes;

    // The sum of the rows' results.
    template <int kCount, bool kSame>
    __m512 rows(std::int64_t r) const {
        const __mmask16 mask = kWhole ? static_cast<__mmask16>(0xffff) : lanes;
        __m512 p[kCount];
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) {
            const __m512 score = _mm512_maskz_loadu_ps(mask, x + (r + i) * x_stride);
            p[i] = _mm512_fmsub_ps(score, scale.template row<kSame>(r + i),
                                   shift.template row<kSame>(r + i));
        }
        exp2(p);
        __m512 total = p[0];
#pragma GCC unroll 8
        for (int i = 1; i < kCount; ++i) total = _mm512_add_ps(total, p[i]);
#pragma GCC unroll 8
        for (int i = 0; i < kCount; i += 2) {
            _mm512_mask_storeu_epi32(out + (r + i) / 2 * out_stride, mask, pairs(p[i], p[i + 1]));
        }
        return total;
    }

    template <bool kSame>
    __m512 rows(std::int64_t first, std::int64_t last) const {
        constexpr std::int64_t kRows = 4;
        __m512 sum = _mm512_setzero_ps();
        std::int64_t r = first;
        for (; r + kRows <= last; r += kRows) sum = _mm512_add_ps(sum, rows<kRows, kSame>(r));
        for (; r < last; r += 2) sum = _mm512_add_ps(sum, rows<2, kSame>(r));
        return sum;
    }
};

// Operands of a gradient, in the order of FusedCall's.
enum Operand { kScore, kShift, kDerivative, kDelta, kPairs, kRows, kGradientPairs, kNumOperands };

// A value of two rows: an element for each lane or, where kSplat, one for the whole row.
template <bool kSplat>
struct TwoRows {
    const float* at[2];
    __m512 splat[2];

    explicit TwoRows(const FusedOperand& o, std::int64_t row) {
        for (int i = 0; i < 2; ++i) {
            at[i] = reinterpret_cast<const float*>(o.data + (row + i) * o.row_bytes);
            splat[i] = kSplat ? _mm512_set1_ps(*at[i]) : _mm512_setzero_ps();
        }
    }
    __m512 read(int row, std::int64_t lane) const {
        return kSplat ? splat[row] : _mm512_loadu_ps(at[row] + lane);
    }
};

// The 16 lanes from `lane` on of a row in which all of the call's forms are at least 0.
inline __mmask16 lanes_kept(const FusedCall& call, std::int64_t row, std::int64_t lane) {
    const auto* const forms = reinterpret_cast<const FusedCall::Index*>(&call.affine);
    const __m512i number = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __mmask16 kept = 0xffff;
    for (std::size_t i = 0; i < call.num_affine; ++i) {
        const FusedCall::Index& form = forms[i];
        const auto first = static_cast<int>(form.base + row * form.row + lane * form.lane);
        const __m512i value = _mm512_add_epi32(
            _mm512_set1_epi32(first), _mm512_mullo_epi32(number, _mm512_set1_epi32(form.lane)));
        kept &= _mm512_cmpge_epi32_mask(value, _mm512_setzero_si512());
    }
    return kept;
}

enum Kept { kNone, kSome, kAll };

// Of `lanes` lanes of the rows `row` and row + 1: in most blocks that a diagonal cuts, all or none.
inline Kept block_kept(const FusedCall& call, std::int64_t row, std::int64_t lane,
                       std::int64_t lanes) {
    const auto* const forms = reinterpret_cast<const FusedCall::Index*>(&call.affine);
    Kept kept = kAll;
    for (std::size_t i = 0; i < call.num_affine; ++i) {
        const FusedCall::Index& form = forms[i];
        const std::int64_t first = form.base + row * form.row + lane * form.lane;
        const std::int64_t down = form.row, across = (lanes - 1) * form.lane;
        const std::int64_t least = first + (down < 0 ? down : 0) + (across < 0 ? across : 0);
        const std::int64_t most = first + (down > 0 ? down : 0) + (across > 0 ? across : 0);
        if (most < 0) return kNone;
        if (least < 0) kept = kSome;
    }
    return kept;
}

inline void write(std::byte* row, std::int64_t bytes, __m512i words) {
    _mm512_storeu_si512(row + bytes, words);
}

// Rows `row` and row + 1.
template <bool kConditions, bool kSplat>
void gradient_rows(const FusedCall& call, std::int64_t row) {
    constexpr int kCount = 4, kBlock = 2 * kLanes;  // vectors at once: two of each row
    const auto* const operands = reinterpret_cast<const FusedOperand*>(&call.operands);
    const TwoRows<false> score(operands[kScore], row), derivative(operands[kDerivative], row);
    const TwoRows<kSplat> shift(operands[kShift], row), delta(operands[kDelta], row);
    std::byte* out[kNumOperands];
    for (int i = kPairs; i < kNumOperands; ++i) {
        out[i] = operands[i].data + row * operands[i].row_bytes;
    }
    std::byte* const rows[] = {out[kRows], out[kRows] + operands[kRows].row_bytes};
    const __m512 c = _mm512_set1_ps(call.steps[0].immediate);
    for (std::int64_t l = 0; l < call.lanes; l += kBlock) {
        const std::int64_t lane = l + kBlock <= call.lanes ? l : call.lanes - kBlock;
        __m512 p[kCount], d[kCount];
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) {
            const std::int64_t at = lane + i % 2 * kLanes;
            p[i] = _mm512_fmsub_ps(score.read(i / 2, at), c, shift.read(i / 2, at));
            d[i] = _mm512_sub_ps(derivative.read(i / 2, at), delta.read(i / 2, at));
        }
        const Kept block = kConditions ? block_kept(call, row, lane, kBlock) : kAll;
        if (block != kNone) exp2(p);
        if (kConditions && block != kAll) {
#pragma GCC unroll 8
            for (int i = 0; i < kCount; ++i) {
                const __mmask16 kept = block == kNone
                                           ? static_cast<__mmask16>(0)
                                           : lanes_kept(call, row + i / 2, lane + i % 2 * kLanes);
                p[i] = _mm512_maskz_mov_ps(kept, p[i]);
                d[i] = _mm512_maskz_mov_ps(kept, d[i]);  // its product may have been left out
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) d[i] = _mm512_mul_ps(p[i], d[i]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            write(out[kPairs], 4 * (lane + i * kLanes), pairs(p[i], p[i + 2]));
            write(out[kGradientPairs], 4 * (lane + i * kLanes), pairs(d[i], d[i + 2]));
            write(rows[i], 2 * lane, (__m512i)_mm512_cvtne2ps_pbh(d[2 * i + 1], d[2 * i]));
        }
    }
}

// Rows [first, last) of the 16 lanes from `lane` on.
template <bool kWhole>
void exp2_column(const Strip& s, std::int64_t first, std::int64_t last, std::int64_t lane) {
    const auto constant = static_cast<float>(s.immediate[0]);
    const StripOperand scale = s.in[2].data != nullptr ? s.in[2] : StripOperand{&constant, 0, 0};
    const __mmask16 mask = lanes_left(s.lanes - lane);
    const Exp2Column<kWhole> column{static_cast<const float*>(s.in[0].data) + lane,
                                    s.in[0].row_stride,
                                    LaneOperand<kWhole>(s.in[1], lane, mask),
                                    LaneOperand<kWhole>(scale, lane, mask),
                                    static_cast<std::uint32_t*>(s.out) + lane,
                                    s.out_row_stride,
                                    mask};
    const bool same = column.shift.row_stride == 0 && column.scale.row_stride == 0;
    const __m512 sum =
        same ? column.template rows<true>(first, last) : column.template rows<false>(first, last);
    auto* const sums = static_cast<float*>(s.accumulator);
    if (sums == nullptr) return;
    const __m512 before = _mm512_maskz_loadu_ps(mask, sums + lane);
    _mm512_mask_storeu_ps(sums + lane, mask, _mm512_add_ps(before, sum));
}

}  // namespace

void avx512_exp2_sum_pairs(const Strip& s) {
    constexpr std::int64_t kColumnRows = 32;  // the rows of a column stay in L1
    const FlushSubnormals flush;
    for (std::int64_t first = 0; first < s.rows; first += kColumnRows) {
        const std::int64_t last = first + kColumnRows < s.rows ? first + kColumnRows : s.rows;
        std::int64_t l = 0;
        for (; l + kLanes <= s.lanes; l += kLanes) exp2_column<true>(s, first, last, l);
        if (l < s.lanes) exp2_column<false>(s, first, last, l);
    }
}

void avx512_gradient_pairs(const FusedCall& call) {
    const auto* const operands = reinterpret_cast<const FusedOperand*>(&call.operands);
    const bool splat = operands[kShift].lane_bytes == 0 && operands[kDelta].lane_bytes == 0;
    const FlushSubnormals flush;
    for (std::int64_t row = 0; row < call.rows; row += 2) {
        if (!splat) {
            gradient_rows<true, false>(call, row);
        } else if (call.num_affine > 0) {
            gradient_rows<true, true>(call, row);
        } else {
            gradient_rows<false, true>(call, row);
        }
    }
}

void avx512_interleave_f32(const Strip& s) {
    for (std::int64_t r = 0; r < s.rows; r += 2) {
        const float* low = static_cast<const float*>(s.in[0].data) + r * s.in[0].row_stride;
        const float* high = r + 1 < s.rows ? low + s.in[0].row_stride : nullptr;
        std::uint32_t* out = static_cast<std::uint32_t*>(s.out) + r / 2 * s.out_row_stride;
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const __mmask16 mask = lanes_left(s.lanes - l);
            const __m512 x = _mm512_maskz_loadu_ps(mask, low + l);
            const __m512 y = high ? _mm512_maskz_loadu_ps(mask, high + l) : _mm512_setzero_ps();
            _mm512_mask_storeu_epi32(out + l, mask, pairs(x, y));
        }
    }
}

}  // namespace tilewright::cpu
