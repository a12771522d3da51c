// Integer division and remainders by way of f64. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_DIVIDE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_DIVIDE_INL_H
#undef TILEWRIGHT_CPU_VECTOR_DIVIDE_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_DIVIDE_INL_H
#endif

#include "cpu/simd/scalar_ops.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace hn = hwy::HWY_NAMESPACE;

/// div, rem, floordiv or floormod of integers below 2^53. A quotient a / b that is not an integer
/// is at least 1 / b away from the next one, more than the rounding error of f64: truncation is
/// exact, and so is the remainder. Division by zero follows docs/reference/ir.md.
template <ir::Op op, class D, class V = hn::Vec<D>>
HWY_INLINE V divide_whole(D d, V a, V b) {
    constexpr bool kFloors = op == ir::Op::floordiv || op == ir::Op::floormod;
    constexpr bool kQuotient = op == ir::Op::div || op == ir::Op::floordiv;
    const V zero = hn::Zero(d), one = hn::Set(d, 1.0);
    const auto by_zero = hn::Eq(b, zero);
    const V divisor = hn::IfThenElse(by_zero, one, b);
    const V quotient = hn::Trunc(hn::Div(a, divisor));
    const V rest = hn::NegMulAdd(quotient, divisor, a);
    // Truncation rounded up where the remainder and the divisor differ in sign.
    const auto up = hn::Lt(hn::Mul(rest, divisor), zero);
    if constexpr (kQuotient) {
        const V result = kFloors ? hn::Sub(quotient, hn::IfThenElseZero(up, one)) : quotient;
        return hn::IfThenElse(by_zero, hn::Neg(one), result);
    } else {
        const V result = kFloors ? hn::Add(rest, hn::IfThenElseZero(up, divisor)) : rest;
        return hn::IfThenElse(by_zero, a, result);
    }
}

/// The op on vectors of i32 or i64.
template <ir::Op op>
struct IntegerDivision {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V a, V b) const {
        if constexpr (sizeof(hn::TFromD<D>) == 4) {
            const hn::Half<D> dh;
            return hn::Combine(d, half(hn::UpperHalf(dh, a), hn::UpperHalf(dh, b)),
                               half(hn::LowerHalf(dh, a), hn::LowerHalf(dh, b)));
        } else {
            // Adding 1.5 * 2^52 leaves an integer in the low bits of the sum.
            const hn::Rebind<double, D> dd;
            const hn::RebindToUnsigned<D> du;
            const V magic = hn::Set(d, 0x4338000000000000);
            const auto magic_sum = hn::Set(dd, 0x1.8p52);
            const V offset = hn::Set(d, std::int64_t{1} << 51);
            const auto beyond = hn::ShiftRight<52>(
                hn::Or(hn::BitCast(du, hn::Add(a, offset)), hn::BitCast(du, hn::Add(b, offset))));
            if (HWY_UNLIKELY(!hn::AllTrue(du, hn::Eq(beyond, hn::Zero(du))))) {
                return lane_by_lane(d, a, b);
            }
            const auto whole = [&](V x) HWY_ATTR {
                return hn::Sub(hn::BitCast(dd, hn::Add(x, magic)), magic_sum);
            };
            const auto result = divide_whole<op>(dd, whole(a), whole(b));
            return hn::Sub(hn::BitCast(d, hn::Add(result, magic_sum)), magic);
        }
    }

  private:
    template <class VH>
    static HWY_INLINE VH half(VH a, VH b) {
        const hn::DFromV<VH> dh;
        const hn::Rebind<double, decltype(dh)> dd;
        auto result = divide_whole<op>(dd, hn::PromoteTo(dd, a), hn::PromoteTo(dd, b));
        // The lowest value divided by -1 is itself.
        const auto beyond = hn::Ge(result, hn::Set(dd, 0x1p31));
        result = hn::IfThenElse(beyond, hn::Set(dd, -0x1p31), result);
        return hn::DemoteTo(dh, result);
    }

    template <class D, class V>
    static HWY_NOINLINE V lane_by_lane(D d, V a, V b) {
        using T = hn::TFromD<D>;
        HWY_ALIGN T x[hn::MaxLanes(d)];
        HWY_ALIGN T y[hn::MaxLanes(d)];
        hn::Store(a, d, x);
        hn::Store(b, d, y);
        for (std::size_t i = 0; i < hn::MaxLanes(d); ++i) x[i] = apply<op>(x[i], y[i]);
        return hn::Load(d, x);
    }
};

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
