// The softmax of a block of scores in wgmma accumulators: exact, and with a speculative row
// maximum.
#pragma once

#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "forward_config.cuh"

namespace twd::attn {

// A thread holds two rows: accumulator register 4 j + 2 r + e is row lane / 4 + 8 r, column
// 8 j + 2 (lane % 4) + e. The four lanes of a quad share their rows.
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Statistics of a thread's two rows over the blocks so far.
struct RowState {
    float reference[2];  ///< subtracted in the exponent; at most the true maximum, scaled
    float sum[2];        ///< this thread's part of the sum of p
};

/// A multiply-add subtracts the rounded scaled maximum from products that are not rounded. That
/// changes p by a factor which the sums share, of up to 2^1/8 here. Beyond this, products are
/// rounded too.
constexpr float kLargestRounded = 0x1p22f;

/// Exponents are scores times log2(e), which overflows for the largest finite scores. Beyond this
/// exponent they grow at half the rate, so that finite scores keep their order and stay finite.
constexpr float kLargestLinear = 0x1p127f;
constexpr float kLargestFinite = 0x1.fffffep127f;

/// scale * score as an exponent, where `score` * `scale` / log2(e) is the score by definition.
TW_DEVICE float bounded_exponent(float score, float scale) {
    const float exponent = score * scale;
    if (!(fabsf(exponent) > kLargestLinear)) return exponent;
    if (fabsf(score * (scale * kLn2)) == kInfinity) return exponent;  // the score is infinite
    const float eighth = score * (scale * 0.125f);
    return copysignf(fmaf(fabsf(eighth), 4.0f, 0.5f * kLargestLinear), eighth);
}

/// The score that belongs to an exponent.
TW_DEVICE float score_of_exponent(float exponent) {
    if (!(fabsf(exponent) > kLargestLinear) || fabsf(exponent) == kInfinity) return exponent * kLn2;
    const float score = fmaf(fabsf(exponent), 2 * kLn2, -kLargestLinear * kLn2);
    return copysignf(fminf(score, kLargestFinite), exponent);
}

TW_DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

TW_DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

template <int kCount>
TW_DEVICE_ONCE void multiply_rows(float (&values)[kCount], const float (&factor)[2]) {
    TW_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] *= factor[i / 2 % 2];
}

/// Turns scores into p = exp2(scale * score - reference), and returns this thread's sums of p.
template <int kCount>
TW_DEVICE_ONCE void exponentiate(float (&scores)[kCount], const float (&reference)[2], float scale,
                                 float (&sum)[2]) {
    float partial[2][2] = {};  // by row and column parity, which gives four chains of additions
    TW_UNROLL
    for (int i = 0; i < kCount; ++i) {
        const int row = i / 2 % 2;
        scores[i] = ptx::exp2_approx(fmaf(scores[i], scale, -reference[row]));
        partial[row][i % 2] += scores[i];
    }
    sum[0] = partial[0][0] + partial[0][1];
    sum[1] = partial[1][0] + partial[1][1];
}

/// The same with a score mod: scores are products of Q and K, and the reference is an exponent.
template <int kCount, typename Mod>
TW_DEVICE void exponentiate(float (&scores)[kCount], const float (&reference)[2], const Mod& mod,
                            float (&sum)[2]) {
    float partial[2][2] = {};
    TW_UNROLL
    for (int j = 0; j < kCount / 4; ++j) {
        const auto columns = mod.columns_at(j);
        TW_UNROLL
        for (int i = 4 * j; i < 4 * j + 4; ++i) {
            const int row = i / 2 % 2;
            scores[i] =
                ptx::exp2_approx(mod.exponent(scores[i], j, i % 2, row, columns, -reference[row]));
            partial[row][i % 2] += scores[i];
        }
    }
    sum[0] = partial[0][0] + partial[0][1];
    sum[1] = partial[1][0] + partial[1][1];
}

/// The largest value of each row in this thread's registers.
template <int kCount>
TW_DEVICE_ONCE void row_maxima(const float (&values)[kCount], float (&largest)[2]) {
    float partial[2][2] = {{values[0], values[1]}, {values[2], values[3]}};
    TW_UNROLL
    for (int i = 4; i < kCount; ++i) {
        partial[i / 2 % 2][i % 2] = fmaxf(partial[i / 2 % 2][i % 2], values[i]);
    }
    largest[0] = fmaxf(partial[0][0], partial[0][1]);
    largest[1] = fmaxf(partial[1][0], partial[1][1]);
}

/// Is a row's reference too large for multiply-adds?
TW_DEVICE bool are_large(const float (&reference)[2]) {
    return fmaxf(fabsf(reference[0]), fabsf(reference[1])) > kLargestRounded;
}

/// Exact softmax of one block: scores become p. `scale` turns scores into exponents. What was
/// accumulated before (unless kFirst) must be multiplied by `factor`. kGuard: a row may have no
/// unmasked key so far; its p are then 0.
template <bool kFirst, bool kGuard, int kCount>
TW_DEVICE_ONCE void softmax_exact(float (&scores)[kCount], RowState& state, float scale,
                                  float (&factor)[2]) {
    float largest[2], highest[2], reference[2], sum[2];
    row_maxima(scores, largest);
    bool is_large = false;
    TW_UNROLL
    for (int r = 0; r < 2; ++r) {
        largest[r] = quad_max(largest[r]);
        highest[r] = largest[r] * scale;
        if constexpr (!kFirst) highest[r] = fmaxf(highest[r], state.reference[r]);
        reference[r] = kGuard && highest[r] == -kInfinity ? 0.0f : highest[r];
        is_large |= fabsf(highest[r]) > kLargestRounded && largest[r] > -kInfinity;
    }
    if (__any_sync(~0u, is_large)) {
        float own_scale[2];
        TW_UNROLL
        for (int r = 0; r < 2; ++r) {
            const float own = bounded_exponent(largest[r], scale);
            highest[r] = kFirst ? own : fmaxf(own, state.reference[r]);
            reference[r] = kGuard && highest[r] == -kInfinity ? 0.0f : highest[r];
            // If only their order matters, a smaller scale keeps products finite. The largest is
            // met exactly; values below a maximum of earlier blocks are far below it.
            own_scale[r] = scale;
            if (fabsf(reference[r]) > kLargestLinear && fabsf(reference[r]) < kInfinity) {
                own_scale[r] = scale * 0.25f;
                reference[r] = own < highest[r] ? kLargestFinite : largest[r] * own_scale[r];
            }
        }
        multiply_rows(scores, own_scale);
        scale = 1;
    }
    TW_UNROLL
    for (int r = 0; r < 2; ++r) {
        if constexpr (!kFirst) {
            const bool none = kGuard && highest[r] == -kInfinity;
            factor[r] = ptx::exp2_approx(state.reference[r] - (none ? 0.0f : highest[r]));
        }
        state.reference[r] = highest[r];
    }
    exponentiate(scores, reference, scale, sum);
    TW_UNROLL
    for (int r = 0; r < 2; ++r) {
        state.sum[r] = kFirst ? sum[r] : fmaf(state.sum[r], factor[r], sum[r]);
    }
}

// Speculative row maximum: p = exp2(score - reference) with the reference of *earlier* blocks. No
// maximum, no shuffles and no rescaling of the output come between the two matrix products. The
// reference never exceeds the true maximum, so nothing that matters underflows, and p may grow to
// kLargestSum, where bf16, f16 and f32 keep their relative precision. The sums, which are needed
// anyway, show when it grew further.
constexpr float kLargestSum = 8192.0f;

/// False (for the whole warp) if the block must be repaired; scores have become p in any case. A
/// row without an unmasked key so far has a reference of -inf and fails. `raw`: the score mod is
/// still to be applied.
template <int kCount, typename Mod>
TW_DEVICE bool softmax_speculative(bool raw, float (&scores)[kCount], const RowState& state,
                                   float scale, const Mod& mod, float (&sum)[2]) {
    if (raw) {
        exponentiate(scores, state.reference, mod, sum);
    } else {
        exponentiate(scores, state.reference, scale, sum);
    }
    return __all_sync(~0u, sum[0] + sum[1] <= kLargestSum && !are_large(state.reference));
}

/// The reciprocal of a larger p could be less than 2^-126, which is flushed to 0.
constexpr float kLargestRaised = 0x1p125f;

/// Can a failed block be repaired from its p (for the whole warp)? If not, its scores are needed
/// again.
TW_DEVICE bool can_raise(const RowState& state, const float (&sum)[2]) {
    return __all_sync(~0u, sum[0] + sum[1] < kLargestRaised && !are_large(state.reference));
}

/// Repairs a failed block in registers: divides p by its largest value and raises the reference.
template <int kCount>
TW_DEVICE void raise_reference(float (&p)[kCount], RowState& state, const float (&sum)[2],
                               float (&factor)[2]) {
    float largest[2];
    row_maxima(p, largest);
    TW_UNROLL
    for (int r = 0; r < 2; ++r) {
        const float growth = fmaxf(0.0f, ptx::log2_approx(quad_max(largest[r])));
        const float raised = state.reference[r] + growth;
        factor[r] = ptx::exp2_approx(state.reference[r] - raised);  // for the rounded sum
        state.reference[r] = raised;
        state.sum[r] = (state.sum[r] + sum[r]) * factor[r];
    }
    multiply_rows(p, factor);
}

}  // namespace twd::attn
