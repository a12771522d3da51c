// Vector superinstructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_super.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_math-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = hn::MaxLanes(DF());

/// Vectors that are interleaved: the latency of each one's operations is hidden by the others.
constexpr int kInStep = 4;

/// 2^x in one pass for the range of softmax: may be 0 below 2^-126, infinity from 2^128 on.
template <int kCount>
HWY_INLINE void fast_exp2(VF (&x)[kCount]) {
    const DF d;
    VF p[kCount];
#if HWY_TARGET == HWY_AVX3
    // vreduceps gives x - floor(x), vscalefps multiplies by 2^floor(x), both for every x.
    static constexpr float kC[] = {1.F,           .6931512952F,   .2401644439F,
                                   .05579991266F, .009017030708F, .00186713005F};
    constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    VF fraction[kCount];
    each<kCount>([&](int i) HWY_ATTR { fraction[i] = VF{_mm512_reduce_ps(x[i].raw, kFloor)}; });
    polynomials(d, fraction, kC, p);
    // Subnormal results would cost every later instruction that reads them a microcode assist.
    each<kCount>([&](int i) HWY_ATTR {
        const __mmask16 normal = _mm512_cmp_ps_mask(x[i].raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
        x[i] = VF{_mm512_maskz_scalef_ps(normal, p[i].raw, x[i].raw)};
    });
#else
    // Adding 1.5 * 2^23 leaves round(x) in the low bits of the sum, and 127 makes it the exponent
    // of the power of two; for -127 the power is 0.
    const hn::RebindToUnsigned<DF> du;
    const VF magic = hn::Set(d, 12582912.0F + 127.0F);
    VF power[kCount];
    each<kCount>([&](int i) HWY_ATTR { x[i] = clamp_keeping_nan(d, x[i], -127.0F, 128.0F); });
    each<kCount>([&](int i) HWY_ATTR { power[i] = hn::Add(x[i], magic); });
    each<kCount>([&](int i) HWY_ATTR { x[i] = hn::Sub(x[i], hn::Sub(power[i], magic)); });
    each<kCount>([&](int i) HWY_ATTR {
        power[i] = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, power[i])));
    });
    polynomials(d, x, kExp2Fraction, p);
    each<kCount>([&](int i) HWY_ATTR { x[i] = hn::Mul(p[i], power[i]); });
#endif
}

/// The first n lanes where kPartial, else all of them.
template <bool kPartial>
HWY_INLINE VF load(const float* p, std::size_t n) {
    return kPartial ? load_first(DF(), p, n) : hn::LoadU(DF(), p);
}

/// A lane operand from lane l on: one vector for all rows, or one element per row.
template <bool kPartial>
struct LaneOperand {
    const float* at;
    std::int64_t row_stride, lane_stride;
    std::size_t n;
    VF first;

    HWY_INLINE LaneOperand(const StripOperand& operand, std::int64_t l, std::size_t lanes)
        : at(static_cast<const float*>(operand.data) + l * operand.lane_stride),
          row_stride(operand.row_stride),
          lane_stride(operand.lane_stride),
          n(lanes),
          first(read(0)) {}
    HWY_INLINE VF read(std::int64_t row) const {
        const float* p = at + row * row_stride;
        return lane_stride == 0 ? hn::Set(DF(), *p) : load<kPartial>(p, n);
    }
    HWY_INLINE VF row(std::int64_t r) const { return row_stride == 0 ? first : read(r); }
};

template <bool kPartial, class D, class V>
HWY_INLINE void store(V v, D d, hn::TFromD<D>* p, std::size_t n) {
    if constexpr (kPartial)
        store_first(v, d, p, n);
    else
        hn::StoreU(v, d, p);
}

/// The type of a body's result in memory.
template <DType dtype>
using Stored = std::conditional_t<dtype == DType::f32, float, std::uint16_t>;

template <bool kPartial, DType dtype>
HWY_INLINE void store_rounded(VF v, Stored<dtype>* p, std::size_t n) {
    const DF d;
    if constexpr (dtype == DType::f32) {
        store<kPartial>(v, d, p, n);
    } else {
        store<kPartial>(narrow_bits<dtype>(d, v), hn::Rebind<std::uint16_t, DF>(), p, n);
    }
}

/// Rows r, r + 1, ... of a body.
template <class Body, int kCount>
HWY_INLINE void rows_of(Body& body, std::int64_t r, VF (&out)[kCount]) {
    if constexpr (Body::kRows == 1) {
        each<kCount>([&](int i) HWY_ATTR { out[i] = body.value(r + i); });
    } else {
        body.values(r, out);
    }
}

/// Stores kCount rows of the strip from r on, one vector of each, at lane l.
template <bool kPartial, int kCount, class Body>
HWY_INLINE void store_rows(const Strip& s, Body& body, std::int64_t r, std::int64_t l,
                           std::size_t n) {
    VF value[kCount];
    rows_of(body, r, value);
    auto* const out = static_cast<Stored<Body::kOut>*>(s.out) + r * s.out_row_stride + l;
    each<kCount>([&](int i) HWY_ATTR {
        store_rounded<kPartial, Body::kOut>(value[i], out + i * s.out_row_stride, n);
    });
}

/// One column of vectors: all rows of lanes [l, l + n). Body: constructed from (strip, l, n), it
/// has value(row), or values(row, kRows vectors) for interleaved rows; finish() ends the column.
template <bool kPartial, class Body>
HWY_INLINE void column(const Strip& s, std::int64_t l, std::size_t n) {
    constexpr int kStep = Body::kRows;
    Body body(s, l, n);
    std::int64_t r = 0;
    for (; r + kStep <= s.rows; r += kStep) store_rows<kPartial, kStep>(s, body, r, l, n);
    for (; r < s.rows; ++r) store_rows<kPartial, 1>(s, body, r, l, n);
    body.finish();
}

/// Two columns at once, for bodies without interleaved rows: twice the independent work within the
/// window of the scheduler.
template <class Body>
HWY_INLINE void two_columns(const Strip& s, std::int64_t l) {
    Body first(s, l, kLanes), second(s, l + kLanes, kLanes);
    for (std::int64_t r = 0; r < s.rows; ++r) {
        store_rows<false, 1>(s, first, r, l, kLanes);
        store_rows<false, 1>(s, second, r, l + kLanes, kLanes);
    }
    first.finish();
    second.finish();
}

/// Rows that stay in L1 while their columns are processed one after the other.
constexpr std::int64_t kColumnRows = 32;

/// The strip's rows from `first` on, at most kColumnRows of them.
Strip part_of(const Strip& s, std::int64_t first, std::int64_t out_bytes = sizeof(float)) {
    Strip part = s;
    part.rows = std::min(kColumnRows, s.rows - first);
    for (StripOperand& in : part.in) {
        if (in.data) in.data = static_cast<const float*>(in.data) + first * in.row_stride;
    }
    part.out = static_cast<std::byte*>(s.out) + first * s.out_row_stride * out_bytes;
    return part;
}

/// Rows innermost: statistics and lane operands of a column stay in registers.
template <template <bool> class Body>
HWY_INLINE void columns_of(const Strip& s) {
    std::int64_t l = 0;
    if constexpr (Body<false>::kRows == 1) {
        for (; l + 2 * kLanes <= s.lanes; l += 2 * kLanes) two_columns<Body<false>>(s, l);
    }
    for (; l + kLanes <= s.lanes; l += kLanes) column<false, Body<false>>(s, l, kLanes);
    if (l < s.lanes) {
        column<true, Body<true>>(s, l, static_cast<std::size_t>(s.lanes - l));
    }
}

template <template <bool> class Body>
void columns(const Strip& s) {
    for (std::int64_t first = 0; first < s.rows; first += kColumnRows) {
        columns_of<Body>(part_of(s, first, size_of(Body<false>::kOut)));
    }
}

/// The tile operand's rows from lane l on.
struct TileOperand {
    const float* at;
    std::int64_t row_stride;

    HWY_INLINE TileOperand(const StripOperand& operand, std::int64_t l)
        : at(static_cast<const float*>(operand.data) + l), row_stride(operand.row_stride) {}
};

template <bool kPartial, DType dtype>
struct Exp2SumTo {
    static constexpr DType kOut = dtype;
    static constexpr int kRows = kInStep;
    TileOperand x;
    LaneOperand<kPartial> shift;
    float constant;
    LaneOperand<kPartial> scale;
    VF sum = hn::Zero(DF());
    float* sums;
    std::size_t n;

    HWY_INLINE Exp2SumTo(const Strip& s, std::int64_t l, std::size_t lanes)
        : x(s.in[0], l),
          shift(s.in[1], l, lanes),
          constant(static_cast<float>(s.immediate[0])),
          scale(s.in[2].data != nullptr ? s.in[2] : StripOperand{&constant, 0, 0}, l, lanes),
          sums(static_cast<float*>(s.accumulator)),
          n(lanes) {
        if (sums != nullptr) sums += l;
    }
    template <int kCount>
    HWY_INLINE void values(std::int64_t r, VF (&p)[kCount]) {
        each<kCount>([&](int i) HWY_ATTR {
            const VF score = load<kPartial>(x.at + (r + i) * x.row_stride, n);
            p[i] = hn::MulSub(score, scale.row(r + i), shift.row(r + i));
        });
        fast_exp2(p);
        VF total = p[0];
        for (int i = 1; i < kCount; ++i) total = hn::Add(total, p[i]);
        sum = hn::Add(sum, total);
    }
    HWY_INLINE void finish() const {
        if (sums != nullptr) store<kPartial>(hn::Add(load<kPartial>(sums, n), sum), DF(), sums, n);
    }
};

template <bool kPartial>
using Exp2Sum = Exp2SumTo<kPartial, DType::f32>;
template <bool kPartial>
using Exp2SumBf16 = Exp2SumTo<kPartial, DType::bf16>;
template <bool kPartial>
using Exp2SumF16 = Exp2SumTo<kPartial, DType::f16>;

template <bool kPartial, DType dtype>
struct MulSubMulTo {
    static constexpr DType kOut = dtype;
    static constexpr int kRows = 1;
    TileOperand p, dp;
    LaneOperand<kPartial> delta;
    VF scale;
    std::size_t n;

    HWY_INLINE MulSubMulTo(const Strip& s, std::int64_t l, std::size_t lanes)
        : p(s.in[0], l),
          dp(s.in[1], l),
          delta(s.in[2], l, lanes),
          scale(hn::Set(DF(), static_cast<float>(s.immediate[0]))),
          n(lanes) {}
    HWY_INLINE VF value(std::int64_t r) const {
        const VF difference = hn::Sub(load<kPartial>(dp.at + r * dp.row_stride, n), delta.row(r));
        return hn::Mul(hn::Mul(load<kPartial>(p.at + r * p.row_stride, n), difference), scale);
    }
    HWY_INLINE void finish() const {}
};

template <bool kPartial>
using MulSubMul = MulSubMulTo<kPartial, DType::f32>;
template <bool kPartial>
using MulSubMulBf16 = MulSubMulTo<kPartial, DType::bf16>;
template <bool kPartial>
using MulSubMulF16 = MulSubMulTo<kPartial, DType::f16>;

void softcap(const Strip& s) {
    const auto outer = static_cast<float>(s.immediate[0]);
    const auto inner = static_cast<float>(s.immediate[1]);
    map_strip<float, 1>(s, [=](DF d, VF x) HWY_ATTR {
        return hn::Mul(hn::Set(d, outer), Tanh()(d, hn::Mul(x, hn::Set(d, inner))));
    });
}

/// First lane at which base + b * l >= 0 becomes true (b > 0) or false (b < 0), in [0, lanes].
std::int64_t crossing(std::int64_t base, std::int64_t b, std::int64_t lanes) {
    if (b == 0) return base >= 0 ? 0 : lanes;
    // b > 0: ceil(-base / b); b < 0: floor(base / -b) + 1.
    const std::int64_t size = b > 0 ? b : -b;
    const std::int64_t numerator = b > 0 ? -base + size - 1 : base + size;
    const std::int64_t lane = numerator < 0 ? 0 : numerator / size;
    return std::min(lane, lanes);
}

void affine_select(const Strip& s) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const VF value = hn::Set(d, static_cast<float>(s.immediate[3]));
    const bool from = b >= 0;  // lanes from the crossing on are kept, otherwise those before it
    for (std::int64_t r = 0; r < s.rows; ++r) {
        const float* in = static_cast<const float*>(s.in[0].data) + r * s.in[0].row_stride;
        float* out = static_cast<float*>(s.out) + r * s.out_row_stride;
        const std::int64_t cross = crossing(base + a * r, b, s.lanes);
        if (in == out && cross == (from ? 0 : s.lanes)) continue;
        const auto limit = hn::Set(di, static_cast<std::int32_t>(cross));
        auto lane = hn::Iota(di, 0);
        const auto select = [=](hn::Vec<decltype(di)> at, VF x) HWY_ATTR {
            const auto before = hn::RebindMask(d, hn::Lt(at, limit));
            return from ? hn::IfThenElse(before, value, x) : hn::IfThenElse(before, x, value);
        };
        std::int64_t l = 0;
        for (; l + kLanes <= s.lanes; l += kLanes) {
            hn::StoreU(select(lane, hn::LoadU(d, in + l)), d, out + l);
            lane = hn::Add(lane, hn::Set(di, static_cast<std::int32_t>(kLanes)));
        }
        if (l < s.lanes) {
            const auto n = static_cast<std::size_t>(s.lanes - l);
            store_first(select(lane, load_first(d, in + l, n)), d, out + l, n);
        }
    }
}

/// Lanes where a or b is NaN.
HWY_INLINE hn::Mask<DF> either_nan(VF a, VF b) {
#if HWY_TARGET == HWY_AVX2
    return hn::MaskFromVec(VF{_mm256_cmp_ps(a.raw, b.raw, _CMP_UNORD_Q)});
#elif HWY_TARGET == HWY_AVX3
    return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_UNORD_Q)};
#else
    return hn::Or(hn::IsNaN(a), hn::IsNaN(b));
#endif
}

/// A running maximum that propagates NaN; NaNs are detected in two vectors at a time.
struct RunningMax {
    VF maximum;
    hn::Mask<DF> nan = hn::MaskFromVec(hn::Zero(DF()));

    template <int kCount>
    HWY_INLINE void take(const VF (&x)[kCount]) {
        // Where x is NaN, the previous maximum stays.
        each<kCount>([&](int i) HWY_ATTR { maximum = max_or_second(x[i], maximum); });
        each<(kCount + 1) / 2>([&](int i) HWY_ATTR {
            nan = hn::Or(nan, either_nan(x[2 * i], x[std::min(2 * i + 1, kCount - 1)]));
        });
    }
    HWY_INLINE VF result() const {
        const VF none = hn::Set(DF(), std::numeric_limits<float>::quiet_NaN());
        return hn::IfThenElse(nan, none, maximum);
    }
};

/// For indices that are exact in f32.
template <bool kPartial, bool kScaled>
struct AffineAddOf {
    static constexpr DType kOut = DType::f32;
    static constexpr int kRows = kInStep;
    TileOperand x;
    LaneOperand<kPartial> slope;
    VF factor, index, steps[kInStep];
    float* maxima;
    std::size_t n;
    RunningMax maximum;

    HWY_INLINE AffineAddOf(const Strip& s, std::int64_t l, std::size_t lanes)
        : x(s.in[0], l),
          slope(s.in[1], l, lanes),
          factor(hn::Set(DF(), static_cast<float>(s.immediate[3]))),
          index(hn::MulAdd(hn::Iota(DF(), static_cast<float>(l)),
                           hn::Set(DF(), static_cast<float>(s.immediate[2])),
                           hn::Set(DF(), static_cast<float>(s.immediate[0])))),
          maxima(static_cast<float*>(s.accumulator)),
          n(lanes),
          maximum{hn::Set(DF(), -std::numeric_limits<float>::infinity())} {
        each<kInStep>([&](int i) HWY_ATTR {
            steps[i] = hn::Set(DF(), static_cast<float>((i + 1) * s.immediate[1]));
        });
        if (maxima == nullptr) return;
        maxima += l;
        maximum.maximum = load<kPartial>(maxima, n);
    }
    template <int kCount>
    HWY_INLINE void values(std::int64_t r, VF (&sum)[kCount]) {
        each<kCount>([&](int i) HWY_ATTR {
            VF scaled = load<kPartial>(x.at + (r + i) * x.row_stride, n);
            if constexpr (kScaled) scaled = hn::Mul(scaled, factor);
            const VF at = i == 0 ? index : hn::Add(index, steps[std::max(i - 1, 0)]);
            sum[i] = hn::MulAdd(slope.row(r + i), at, scaled);
        });
        index = hn::Add(index, steps[kCount - 1]);
        maximum.take(sum);
    }
    HWY_INLINE void finish() const {
        if (maxima != nullptr) store<kPartial>(maximum.result(), DF(), maxima, n);
    }
};
template <bool kPartial>
using AffineAdd = AffineAddOf<kPartial, false>;
template <bool kPartial>
using ScaledAffineAdd = AffineAddOf<kPartial, true>;

/// Element by element, for positions of 2^24 and more.
void affine_add_far(const Strip& s) {
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const auto factor = static_cast<float>(s.immediate[3]);
    auto* maxima = static_cast<float*>(s.accumulator);
    const auto at = [](const StripOperand& operand, std::int64_t r, std::int64_t l) {
        return static_cast<const float*>(
            operand.data)[r * operand.row_stride + l * operand.lane_stride];
    };
    const hn::CappedTag<float, 1> d1;
    for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t l = 0; l < s.lanes; ++l) {
            const float x = std::fma(at(s.in[1], r, l), static_cast<float>(base + a * r + b * l),
                                     at(s.in[0], r, l) * factor);
            static_cast<float*>(s.out)[r * s.out_row_stride + l] = x;
            if (maxima == nullptr) continue;
            maxima[l] = hn::GetLane(Max()(d1, hn::Set(d1, maxima[l]), hn::Set(d1, x)));
        }
    }
}

void affine_add(const Strip& s) {
    const double down = s.immediate[1] * static_cast<double>(s.rows - 1);
    const double across = s.immediate[2] * static_cast<double>(s.lanes);
    const double base = s.immediate[0];
    const double largest = std::max({std::abs(base), std::abs(base + down), std::abs(base + across),
                                     std::abs(base + down + across)});
    if (!(largest < 0x1p24) || std::abs(s.immediate[1]) > 0x1p20) return affine_add_far(s);
    for (std::int64_t first = 0; first < s.rows; first += kColumnRows) {
        Strip part = part_of(s, first);
        part.immediate[0] += s.immediate[1] * static_cast<double>(first);
        if (s.immediate[3] == 1) {
            columns_of<AffineAdd>(part);
        } else {
            columns_of<ScaledAffineAdd>(part);
        }
    }
}

constexpr Superinstructions kSuper = {
    .exp2_sum = columns<Exp2Sum>,
    .exp2_sum_bf16 = columns<Exp2SumBf16>,
    .exp2_sum_f16 = columns<Exp2SumF16>,
    .affine_select = affine_select,
    .affine_add = affine_add,
    .softcap = softcap,
    .mul_sub_mul = columns<MulSubMul>,
    .mul_sub_mul_bf16 = columns<MulSubMulBf16>,
    .mul_sub_mul_f16 = columns<MulSubMulF16>,
};

}  // namespace

const Superinstructions* superinstructions() {
    return &kSuper;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

const Superinstructions* vector_superinstructions(Target target) {
    TW_RETURN_FROM_TARGET(target, superinstructions())
}

}  // namespace tilewright::cpu
#endif
