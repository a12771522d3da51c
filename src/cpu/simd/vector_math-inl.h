// Vector forms of min, max and the transcendental functions. Errors and ranges are in
// docs/explanation/numerics.md. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_MATH_INL_H
#undef TILEWRIGHT_CPU_VECTOR_MATH_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_MATH_INL_H
#endif

#include "cpu/simd/scalar_ops.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// The lesser and the greater of two floats, or b where either is NaN: x86's minps and maxps.
// Highway's functions do this on x86; on NEON they return the operand that is a number.
template <class V>
HWY_INLINE V min_or_second(V a, V b) {
#if HWY_ARCH_X86
    return hn::Min(a, b);
#else
    return hn::IfThenElse(hn::Lt(a, b), a, b);
#endif
}
template <class V>
HWY_INLINE V max_or_second(V a, V b) {
#if HWY_ARCH_X86
    return hn::Max(a, b);
#else
    return hn::IfThenElse(hn::Gt(a, b), a, b);
#endif
}

// NaN in either operand propagates: only the first operand must be checked for it.
struct Min {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        if constexpr (hwy::IsFloat<hn::TFromD<D>>())
            return hn::IfThenElse(hn::IsNaN(a), a, min_or_second(a, b));
        else
            return hn::Min(a, b);
    }
};
struct Max {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        if constexpr (hwy::IsFloat<hn::TFromD<D>>())
            return hn::IfThenElse(hn::IsNaN(a), a, max_or_second(a, b));
        else
            return hn::Max(a, b);
    }
};

/// f(0), f(1), ..., f(kCount - 1), unrolled.
template <int kCount, class F>
HWY_INLINE void each(F f) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) f(i);
}

/// c[0] + c[1] x + c[2] x^2 + ... by Horner's rule.
template <class D, int kTerms>
HWY_INLINE hn::Vec<D> polynomial(D d, hn::Vec<D> x, const float (&c)[kTerms]) {
    auto sum = hn::Set(d, c[kTerms - 1]);
    for (int i = kTerms - 2; i >= 0; --i) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
    return sum;
}

/// polynomial(x[i]), interleaved: the latency of one is hidden by the others.
template <class D, int kTerms, class V, int kCount>
HWY_INLINE void polynomials(D d, const V (&x)[kCount], const float (&c)[kTerms], V (&sum)[kCount]) {
    each<kCount>([&](int i) HWY_ATTR { sum[i] = hn::Set(d, c[kTerms - 1]); });
#pragma GCC unroll 8
    for (int k = kTerms - 2; k >= 0; --k) {
        const V term = hn::Set(d, c[k]);
        each<kCount>([&](int i) HWY_ATTR { sum[i] = hn::MulAdd(sum[i], x[i], term); });
    }
}

/// For 2^f with f in [-0.5, 0.5], relative error 6e-9 before rounding.
inline constexpr float kExp2Fraction[] = {1.0F,           0.693147188F,   0.240226508F,
                                          0.0555035711F,  0.00961808256F, 0.00133908634F,
                                          0.000154531629F};
template <class D>
HWY_INLINE hn::Vec<D> exp2_fraction(D d, hn::Vec<D> f) {
    return polynomial(d, f, kExp2Fraction);
}

/// Added to a small number, it leaves that number, rounded to an integer, in the low bits.
inline constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23

#if HWY_TARGET == HWY_AVX3
constexpr bool kScalesInOneStep = true;

/// p * 2^n for an integer n, given as n + kRounder.
template <class D>
HWY_INLINE hn::Vec<D> scale_by_rounded(D d, hn::Vec<D> p, hn::Vec<D> rounded) {
    const auto n = hn::Sub(rounded, hn::Set(d, kRounder));
    if constexpr (hn::MaxLanes(D()) == 16) {
        return hn::Vec<D>{_mm512_scalef_ps(p.raw, n.raw)};
    } else if constexpr (hn::MaxLanes(D()) == 8) {
        return hn::Vec<D>{_mm256_scalef_ps(p.raw, n.raw)};
    } else {
        return hn::Vec<D>{_mm_scalef_ps(p.raw, n.raw)};
    }
}
#else
constexpr bool kScalesInOneStep = false;

/// p * 2^n for an integer n in [-151, 129], given as n + kRounder, in two steps: the result may be
/// subnormal or infinite where a single power of two could not be represented.
template <class D>
HWY_INLINE hn::Vec<D> scale_by_rounded(D d, hn::Vec<D> p, hn::Vec<D> rounded) {
    const hn::RebindToSigned<D> di;
    constexpr std::int32_t kRounderBits = 0x4B400000, kTwoBiases = 254;
    const auto whole = hn::Sub(hn::BitCast(di, rounded), hn::Set(di, kRounderBits - kTwoBiases));
    const auto half = hn::ShiftRight<1>(whole);
    const auto first = hn::BitCast(d, hn::ShiftLeft<23>(half));
    const auto second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(whole, half)));
    return hn::Mul(hn::Mul(p, first), second);
}
#endif

/// The same where p is about 1 and the result normal.
template <class D>
HWY_INLINE hn::Vec<D> scale_to_normal(D d, hn::Vec<D> p, hn::Vec<D> rounded) {
    if constexpr (kScalesInOneStep) {
        return scale_by_rounded(d, p, rounded);
    } else {
        const hn::RebindToUnsigned<D> du;
        const auto biased = hn::Add(hn::BitCast(du, rounded), hn::Set(du, 127));
        return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(biased)));
    }
}

template <class D>
HWY_INLINE hn::Vec<D> scale_by_power(D d, hn::Vec<D> p, hn::Vec<D> n) {
    return scale_by_rounded(d, p, hn::Add(n, hn::Set(d, kRounder)));
}

/// x clamped to [low, high]; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> clamp_keeping_nan(D d, hn::Vec<D> x, float low, float high) {
    return min_or_second(hn::Set(d, high), max_or_second(hn::Set(d, low), x));
}

/// Lane by lane through the C library, for arguments outside a vector function's range.
template <class D, class V, class F>
HWY_NOINLINE V through_libm(D d, V x, F f) {
    using T = hn::TFromD<D>;
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    hn::Store(x, d, lanes);
    for (T& lane : lanes) lane = f(lane);
    return hn::Load(d, lanes);
}

/// `common`, the result of a vector function, except for lanes not `inside` its range, which go
/// through the C library. A lane never depends on its neighbours, some of which may be undefined.
template <class D, class V, class M, class Scalar>
HWY_INLINE V with_rare_lanes(D d, V x, M inside, V common, Scalar scalar) {
    if (HWY_LIKELY(hn::AllTrue(d, inside))) return common;
    return hn::IfThenElse(inside, common, through_libm(d, x, scalar));
}

/// vector(x) where low <= |x| <= high (NaN is outside), the C library elsewhere.
template <class D, class V, class F, class Scalar>
HWY_INLINE V guarded(D d, V x, double low, double high, F vector, Scalar scalar) {
    using T = hn::TFromD<D>;
    const auto size = hn::Abs(x);
    const auto inside = hn::And(hn::Ge(size, hn::Set(d, static_cast<T>(low))),
                                hn::Le(size, hn::Set(d, static_cast<T>(high))));
    return with_rare_lanes(d, x, inside, vector(x), scalar);
}

template <class D>
inline constexpr bool kIsF32 = sizeof(hn::TFromD<D>) == 4;

/// For f32 only.
struct Exp2 {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        const V clamped = clamp_keeping_nan(d, x, -151.0F, 129.0F);
        const V rounder = hn::Set(d, kRounder);
        const V rounded = hn::Add(clamped, rounder);
        const V fraction = hn::Sub(clamped, hn::Sub(rounded, rounder));
        return scale_by_rounded(d, exp2_fraction(d, fraction), rounded);
    }
};

/// exp of f32 vectors, interleaved.
template <class D, class V, int kCount>
HWY_INLINE void exps(D d, V (&x)[kCount]) {
    static constexpr float kC[] = {0.5F, 0.166665759F, 0.0416665488F, 0.00836335483F,
                                   0.00139269002F};
    V rounded[kCount], p[kCount];
    bool normal = false;  // true, as usual, where one step can scale all results
    if constexpr (!kScalesInOneStep) {
        auto all = hn::Le(hn::Abs(x[0]), hn::Set(d, 86.0F));
        each<kCount - 1>([&](int i) HWY_ATTR {
            all = hn::And(all, hn::Le(hn::Abs(x[i + 1]), hn::Set(d, 86.0F)));
        });
        normal = hn::AllTrue(d, all);
    }
    each<kCount>([&](int i) HWY_ATTR {
        x[i] = clamp_keeping_nan(d, x[i], -105.0F, 90.0F);
        rounded[i] = hn::MulAdd(x[i], hn::Set(d, 1.442695041F), hn::Set(d, kRounder));
    });
    each<kCount>([&](int i) HWY_ATTR {
        const V n = hn::Sub(rounded[i], hn::Set(d, kRounder));
        // x - n ln 2, with ln 2 in two parts: n times the first is exact.
        x[i] = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x[i]);
        x[i] = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), x[i]);
    });
    polynomials(d, x, kC, p);
    each<kCount>([&](int i) HWY_ATTR {
        p[i] = hn::MulAdd(p[i], hn::Mul(x[i], x[i]), hn::Add(x[i], hn::Set(d, 1.0F)));
    });
    if (HWY_LIKELY(normal)) {
        // Adds n to the exponent: the other bits of `rounded` are shifted out.
        const hn::RebindToUnsigned<D> du;
        each<kCount>([&](int i) HWY_ATTR {
            const auto power = hn::ShiftLeft<23>(hn::BitCast(du, rounded[i]));
            x[i] = hn::BitCast(d, hn::Add(hn::BitCast(du, p[i]), power));
        });
    } else {
        each<kCount>([&](int i) HWY_ATTR { x[i] = scale_by_rounded(d, p[i], rounded[i]); });
    }
}

struct Exp {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        if constexpr (kIsF32<D>) {
            V one[] = {x};
            exps(d, one);
            return one[0];
        } else {
            return guarded(
                d, x, 0, 700, [d](V v) HWY_ATTR { return hn::Exp(d, v); },
                [](double v) { return std::exp(v); });
        }
    }
};

/// x[i] becomes exp(x[i] - m) where x[i] <= m; NaN stays NaN. What is below exp(-87) in f32, below
/// exp(-700) in f64, becomes about that.
template <class D, class V, int kCount>
HWY_INLINE void exps_below(D d, V m, V (&x)[kCount]) {
    using T = hn::TFromD<D>;
    const V low = hn::Set(d, kIsF32<D> ? T(-87) : T(-700));
    each<kCount>([&](int i) HWY_ATTR { x[i] = max_or_second(low, hn::Sub(x[i], m)); });
    if constexpr (kIsF32<D>) {
        const V log2_e = hn::Set(d, 1.442695041F), rounder = hn::Set(d, kRounder);
        V rounded[kCount], fraction[kCount];
        each<kCount>([&](int i) HWY_ATTR {
            rounded[i] = hn::MulAdd(x[i], log2_e, rounder);
            fraction[i] = hn::MulSub(x[i], log2_e, hn::Sub(rounded[i], rounder));
        });
        polynomials(d, fraction, kExp2Fraction, x);
        each<kCount>([&](int i) HWY_ATTR { x[i] = scale_to_normal(d, x[i], rounded[i]); });
    } else {
        // Highway's exponential of NaN is 0.
        each<kCount>([&](int i)
                         HWY_ATTR { x[i] = hn::MulAdd(x[i], hn::Zero(d), hn::Exp(d, x[i])); });
    }
}

/// For log(1 + f) / f where 1 + f is in [sqrt(1/2), sqrt(2)]: 6.5e-9 from log(1 + f).
inline constexpr float kLogFraction[] = {1.0F,          -0.499999821F, 0.333342254F,
                                         -0.250024915F, 0.19953613F,   -0.16552335F,
                                         0.149792865F,  -0.144418716F, 0.0873362496F};
/// The same for f in [0, 1/2]: 4.6e-9.
inline constexpr float kLogNearOne[] = {1.0F,         -0.499989092F, 0.333020151F, -0.246590674F,
                                        0.181184307F, -0.108164027F, 0.0351787321F};

/// x[i] becomes m + log(x[i]) for positive normal numbers x[i].
template <class D, class V, int kCount>
HWY_INLINE void add_logs(D d, V m, V (&x)[kCount]) {
    if constexpr (kIsF32<D>) {
        const hn::RebindToSigned<D> di;
        const auto half_root = hn::Set(di, 0x3F3504F3);  // sqrt(1/2)
        V f[kCount], sum[kCount];
        each<kCount>([&](int i) HWY_ATTR {
            const auto above = hn::Sub(hn::BitCast(di, x[i]), half_root);
            const V exponent = hn::ConvertTo(d, hn::ShiftRight<23>(above));
            const auto fraction = hn::And(above, hn::Set(di, 0x7FFFFF));
            f[i] = hn::Sub(hn::BitCast(d, hn::Add(fraction, half_root)), hn::Set(d, 1.0F));
            sum[i] = hn::MulAdd(exponent, hn::Set(d, 0.693147181F), m);
        });
        polynomials(d, f, kLogFraction, x);
        each<kCount>([&](int i) HWY_ATTR { x[i] = hn::MulAdd(f[i], x[i], sum[i]); });
    } else {
        each<kCount>([&](int i) HWY_ATTR { x[i] = hn::Add(m, hn::Log(d, x[i])); });
    }
}

/// x[i] becomes log_of_unit + log(x[i] / unit) for x[i] from `unit` to 1.5 times that, in f32.
template <class D, class V, int kCount>
HWY_INLINE void add_logs_near(D d, V reciprocal_of_unit, V log_of_unit, V (&x)[kCount]) {
    V f[kCount];
    each<kCount>([&](int i)
                     HWY_ATTR { f[i] = hn::MulSub(x[i], reciprocal_of_unit, hn::Set(d, 1.0F)); });
    polynomials(d, f, kLogNearOne, x);
    each<kCount>([&](int i) HWY_ATTR { x[i] = hn::MulAdd(f[i], x[i], log_of_unit); });
}

#define TW_GUARDED_FUNCTION(Name, vector_name, scalar_name, f32_low, f32_high, f64_low, f64_high) \
    struct Name {                                                                                 \
        template <class D, class V>                                                               \
        HWY_INLINE V operator()(D d, V x) const {                                                 \
            return guarded(                                                                       \
                d, x, kIsF32<D> ? f32_low : f64_low, kIsF32<D> ? f32_high : f64_high,             \
                [d](V v) HWY_ATTR { return hn::vector_name(d, v); },                              \
                [](hn::TFromD<D> v) { return std::scalar_name(v); });                             \
        }                                                                                         \
    };
TW_GUARDED_FUNCTION(Expm1, Expm1, expm1, 1e-30, 80, 1e-300, 700)
TW_GUARDED_FUNCTION(Sin, Sin, sin, 1e-30, 39000, 1e-300, 39000)
TW_GUARDED_FUNCTION(Cos, Cos, cos, 0, 39000, 0, 39000)
#undef TW_GUARDED_FUNCTION

// Logarithms: positive normal numbers in vectors, the rest (zero, negatives, NaN...) in libm.
#define TW_LOGARITHM(Name, vector_name, scalar_name)                                      \
    struct Name {                                                                         \
        template <class D, class V>                                                       \
        HWY_INLINE V operator()(D d, V x) const {                                         \
            using T = hn::TFromD<D>;                                                      \
            const auto inside =                                                           \
                hn::And(hn::Ge(x, hn::Set(d, kLow<T>)), hn::Le(x, hn::Set(d, kHigh<T>))); \
            return with_rare_lanes(d, x, inside, hn::vector_name(d, x),                   \
                                   [](T v) { return std::scalar_name(v); });              \
        }                                                                                 \
        template <typename T>                                                             \
        static constexpr T kLow = std::numeric_limits<T>::min();                          \
        template <typename T>                                                             \
        static constexpr T kHigh = std::numeric_limits<T>::max();                         \
    };
TW_LOGARITHM(Log, Log, log)
TW_LOGARITHM(Log2, Log2, log2)
#undef TW_LOGARITHM

struct Log1p {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        using T = hn::TFromD<D>;
        const auto inside =
            hn::And(hn::Ge(x, hn::Set(d, T(-0.999))), hn::Le(x, hn::Set(d, T(1e30))));
        const auto tiny = hn::Lt(hn::Abs(x), hn::Set(d, T(1e-30)));
        return with_rare_lanes(d, x, hn::AndNot(tiny, inside), hn::Log1p(d, x),
                               [](T v) { return std::log1p(v); });
    }
};

struct Tanh {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        if constexpr (kIsF32<D>) {
            // x P(x^2) / Q(x^2), both 1 at 0. Terms of one sign lose little to rounding, and the
            // quotient of no float is beyond 1.
            constexpr float kLimit = 8.10849476F;
            static constexpr float kP[] = {1.0F, 0.134525582F, 0.00358127709F, 2.20605689e-05F,
                                           1.54799267e-08F};
            static constexpr float kQ[] = {1.0F, 0.46785894F, 0.0262009632F, 0.000342737214F,
                                           8.61994124e-07F};
            const V c = clamp_keeping_nan(d, x, -kLimit, kLimit);
            const V square = hn::Mul(c, c);
            return hn::Div(hn::Mul(c, polynomial(d, square, kP)), polynomial(d, square, kQ));
        } else {
            return guarded(
                d, x, 1e-300, 1e300, [d](V v) HWY_ATTR { return hn::Tanh(d, v); },
                [](double v) { return std::tanh(v); });
        }
    }
};

struct Logistic {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        const auto one = hn::Set(d, hn::TFromD<D>(1));
        const V e = Exp()(d, hn::Neg(hn::Abs(x)));
        return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
    }
};

/// For f32 only.
struct Erf {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        const V size = hn::Abs(x);
        const V square = hn::Mul(x, x);
        static constexpr float kSmall[] = {0.128379167F,   -0.376126267F,  0.112835947F,
                                           -0.026854212F,  0.00518908742F, -0.000801686429F,
                                           7.87587506e-05F};
        const V near = hn::MulAdd(polynomial(d, square, kSmall), x, x);
        // 1 - erfc(|x|), with erfc as 2^-Q: its error hardly counts where erfc is below 0.16.
        static constexpr float kLarge[] = {-0.000463784656F, 1.63059049F,     0.911517377F,
                                           0.158826582F,     -0.038126165F,   0.00686970584F,
                                           -0.000861670436F, 6.65268722e-05F, -2.36593044e-06F};
        const V q = polynomial(d, min_or_second(size, hn::Set(d, 4.0F)), kLarge);
        const V n = hn::Round(q);
        const V erfc = scale_by_power(d, exp2_fraction(d, hn::Sub(n, q)), hn::Neg(n));
        const V far = hn::CopySign(hn::Sub(hn::Set(d, 1.0F), erfc), x);
        // The polynomial in x^2 does not overflow where it is selected; NaN selects it.
        return hn::IfThenElse(hn::Gt(size, hn::Set(d, 1.0F)), far, near);
    }
};

/// For f32 only.
struct Erfc {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        const V one = hn::Set(d, 1.0F);
        const V square = hn::Mul(x, x);
        // 1 - erf(x) as (1 - x) - x p(x^2): p is small, and so is its error.
        static constexpr float kSmall[] = {0.128379167F,   -0.376126267F,  0.112835947F,
                                           -0.026854212F,  0.00518908742F, -0.000801686429F,
                                           7.87587506e-05F};
        const V near = hn::NegMulAdd(polynomial(d, square, kSmall), x, hn::Sub(one, x));
        // exp(-s^2) / s times a polynomial in 1 / s^2 (Cephes), with the rounding error of s^2. It
        // is 0 beyond 11.
        static constexpr float kMiddle[] = {0.563825943F,  -0.274112703F, 0.340487994F,
                                            -0.494451532F, 0.621000462F,  -0.582473303F,
                                            0.368742467F,  -0.138703939F, 0.0232681997F};
        static constexpr float kLarge[] = {0.564189507F, -0.282076774F, 0.421846336F, -1.01526528F,
                                           2.92101902F,  -7.49551872F,  12.9771996F,  -10.4776640F};
        const V s = min_or_second(hn::Abs(x), hn::Set(d, 11.0F));
        const V rounded = hn::Mul(s, s);
        const V e = Exp()(d, hn::Neg(rounded));
        const V exact = hn::NegMulAdd(e, hn::MulSub(s, s, rounded), e);
        const V inverse = hn::Div(one, rounded);
        const V series =
            hn::IfThenElse(hn::Lt(s, hn::Set(d, 2.0F)), polynomial(d, inverse, kMiddle),
                           polynomial(d, inverse, kLarge));
        const V tail = hn::Div(hn::Mul(exact, series), s);
        const V far = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Sub(hn::Set(d, 2.0F), tail), tail);
        // NaN selects the polynomial in x^2.
        return hn::IfThenElse(hn::Gt(hn::Abs(x), one), far, near);
    }
};

/// For f32 only: divides the exponent by 3 in integer arithmetic, then two of Halley's iterations.
struct Cbrt {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x) const {
        const hn::RebindToSigned<D> di;
        const V size = hn::Abs(x);
        const V third = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, size)), hn::Set(d, 1.0F / 3));
        constexpr std::int32_t kTwoThirdsOfTheBias = 709958130;  // shifted and tuned: within 3.5%
        V root =
            hn::BitCast(d, hn::Add(hn::ConvertTo(di, third), hn::Set(di, kTwoThirdsOfTheBias)));
        for (int i = 0; i < 2; ++i) {
            const V cube = hn::Mul(hn::Mul(root, root), root);
            const V below = hn::MulAdd(hn::Set(d, 2.0F), cube, size);
            root = hn::MulAdd(root, hn::Div(hn::Sub(size, cube), below), root);
        }
        const auto zero = hn::Eq(x, hn::Zero(d));
        const auto normal = hn::And(hn::Ge(size, hn::Set(d, std::numeric_limits<float>::min())),
                                    hn::Le(size, hn::Set(d, 1e38F)));
        return with_rare_lanes(d, x, hn::Or(zero, normal),
                               hn::IfThenElse(zero, x, hn::CopySign(root, x)),
                               [](float v) { return std::cbrt(v); });
    }
};

/// For f32 and f64.
struct NextAfter {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x, V y) const {
        const hn::RebindToSigned<D> di;
        using Bits = hn::TFromD<decltype(di)>;
        const V zero = hn::Zero(d);
        // Sign and magnitude: towards zero the bits count down.
        const auto inwards = hn::RebindMask(di, hn::Xor(hn::Lt(x, y), hn::Gt(x, zero)));
        const auto step = hn::IfThenElse(inwards, hn::Set(di, Bits{-1}), hn::Set(di, Bits{1}));
        const V beside = hn::BitCast(d, hn::Add(hn::BitCast(di, x), step));
        const V least = hn::CopySign(hn::BitCast(d, hn::Set(di, Bits{1})), y);
        const V other = hn::IfThenElse(hn::Eq(x, zero), least, beside);
        const V number = hn::IfThenElse(hn::Eq(x, y), y, other);
        return hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::IsNaN(y)), hn::Add(x, y), number);
    }
};

/// For f32 only: exp(y log x) in f64 where no special case applies.
struct Pow {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V x, V y) const {
        const auto limit = hn::Set(d, 1e30F);
        const auto plain = hn::And(hn::And(hn::Ge(x, hn::Set(d, 1e-30F)), hn::Le(x, limit)),
                                   hn::Le(hn::Abs(y), limit));
        const hn::Half<D> dh;
        const V common = hn::Combine(d, half(hn::UpperHalf(dh, x), hn::UpperHalf(dh, y)),
                                     half(hn::LowerHalf(dh, x), hn::LowerHalf(dh, y)));
        if (HWY_LIKELY(hn::AllTrue(d, plain))) return common;
        HWY_ALIGN float bases[hn::MaxLanes(d)];
        HWY_ALIGN float exponents[hn::MaxLanes(d)];
        hn::Store(x, d, bases);
        hn::Store(y, d, exponents);
        for (std::size_t i = 0; i < hn::MaxLanes(d); ++i)
            bases[i] = std::pow(bases[i], exponents[i]);
        return hn::IfThenElse(plain, common, hn::Load(d, bases));
    }

  private:
    template <class VH>
    static HWY_INLINE VH half(VH x, VH y) {
        const hn::DFromV<VH> dh;
        const hn::Rebind<double, decltype(dh)> dd;
        const auto product = hn::Mul(hn::Log(dd, hn::PromoteTo(dd, x)), hn::PromoteTo(dd, y));
        // Beyond these bounds the f32 result is infinite or zero anyway.
        const auto bounded =
            min_or_second(hn::Set(dd, 200.0), max_or_second(hn::Set(dd, -200.0), product));
        return hn::DemoteTo(dh, hn::Exp(dd, bounded));
    }
};

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
