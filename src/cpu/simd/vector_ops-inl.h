// Operations of one or a few vector instructions, on lanes of any type. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_OPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_OPS_INL_H
#undef TILEWRIGHT_CPU_VECTOR_OPS_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_OPS_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET

namespace hn = hwy::HWY_NAMESPACE;

// clang-format off
struct Add { template <class D, class V> V operator()(D, V a, V b) const { return hn::Add(a, b); } };
struct Sub { template <class D, class V> V operator()(D, V a, V b) const { return hn::Sub(a, b); } };
struct Div { template <class D, class V> V operator()(D, V a, V b) const { return hn::Div(a, b); } };
struct And { template <class D, class V> V operator()(D, V a, V b) const { return hn::And(a, b); } };
struct Or { template <class D, class V> V operator()(D, V a, V b) const { return hn::Or(a, b); } };
struct Xor { template <class D, class V> V operator()(D, V a, V b) const { return hn::Xor(a, b); } };
struct Neg { template <class D, class V> V operator()(D, V x) const { return hn::Neg(x); } };
struct Abs { template <class D, class V> V operator()(D, V x) const { return hn::Abs(x); } };
struct Not { template <class D, class V> V operator()(D, V x) const { return hn::Not(x); } };
struct Sqrt { template <class D, class V> V operator()(D, V x) const { return hn::Sqrt(x); } };
struct Floor { template <class D, class V> V operator()(D, V x) const { return hn::Floor(x); } };
struct Ceil { template <class D, class V> V operator()(D, V x) const { return hn::Ceil(x); } };
struct Round { template <class D, class V> V operator()(D, V x) const { return hn::Round(x); } };
struct Rsqrt { template <class D, class V> V operator()(D d, V x) const { return hn::Div(hn::Set(d, hn::TFromD<D>(1)), hn::Sqrt(x)); } };
// clang-format on

struct Mul {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        if constexpr (!hwy::IsFloat<hn::TFromD<D>>() && sizeof(hn::TFromD<D>) == 8) {
            // Below AVX-512 there is no 64-bit product: the low halves, and the cross products.
            const hn::Repartition<std::uint32_t, D> d32;
            const auto a32 = hn::BitCast(d32, a);
            const auto b32 = hn::BitCast(d32, b);
            const auto high = [&](auto x) HWY_ATTR {
                return hn::BitCast(d32,
                                   hn::ShiftRight<32>(hn::BitCast(hn::RebindToUnsigned<D>(), x)));
            };
            const auto cross = hn::Add(hn::MulEven(high(a), b32), hn::MulEven(a32, high(b)));
            return hn::BitCast(d, hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(cross)));
        } else {
            return hn::Mul(a, b);
        }
    }
};

// clang-format off
struct Eq { template <class D, class V> auto operator()(D, V a, V b) const { return hn::Eq(a, b); } };
// Highway's Ne may be false for NaN.
struct Ne { template <class D, class V> auto operator()(D, V a, V b) const { return hn::Not(hn::Eq(a, b)); } };
struct Lt { template <class D, class V> auto operator()(D, V a, V b) const { return hn::Lt(a, b); } };
struct Gt { template <class D, class V> auto operator()(D, V a, V b) const { return hn::Gt(a, b); } };
// clang-format on

// Integer vectors have only lt and gt; for floats their negation would be true for NaN.
struct Le {
    template <class D, class V>
    auto operator()(D, V a, V b) const {
        if constexpr (hwy::IsFloat<hn::TFromD<D>>())
            return hn::Le(a, b);
        else
            return hn::Not(hn::Gt(a, b));
    }
};
struct Ge {
    template <class D, class V>
    auto operator()(D, V a, V b) const {
        if constexpr (hwy::IsFloat<hn::TFromD<D>>())
            return hn::Ge(a, b);
        else
            return hn::Not(hn::Lt(a, b));
    }
};

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
