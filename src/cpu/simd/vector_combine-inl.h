// The operations by which reductions and scans combine lanes. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_COMBINE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_COMBINE_INL_H
#undef TILEWRIGHT_CPU_VECTOR_COMBINE_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_COMBINE_INL_H
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

struct Sum {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        return hn::Add(a, b);
    }
    template <typename T>
    static constexpr T kIdentity = 0;
};
struct Prod {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        return hn::Mul(a, b);
    }
    template <typename T>
    static constexpr T kIdentity = 1;
};
struct LeastIsIdentity {
    template <typename T>
    static constexpr T kIdentity = std::numeric_limits<T>::has_infinity
                                       ? -std::numeric_limits<T>::infinity()
                                       : std::numeric_limits<T>::lowest();
};
struct MostIsIdentity {
    template <typename T>
    static constexpr T kIdentity = std::numeric_limits<T>::has_infinity
                                       ? std::numeric_limits<T>::infinity()
                                       : std::numeric_limits<T>::max();
};
/// For floats among which is no NaN.
struct MaxWithoutNaN : LeastIsIdentity {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        return max_or_second(a, b);
    }
};
struct MinWithoutNaN : MostIsIdentity {
    template <class D, class V>
    HWY_INLINE V operator()(D, V a, V b) const {
        return min_or_second(a, b);
    }
};
struct MaxOf : Max, LeastIsIdentity {
    using WithoutNaN = MaxWithoutNaN;
};
struct MinOf : Min, MostIsIdentity {
    using WithoutNaN = MinWithoutNaN;
};

/// log(exp(a) + exp(b)) of floats, without overflow. NaN propagates.
struct LogAddExp {
    template <class D, class V>
    HWY_INLINE V operator()(D d, V a, V b) const {
        using T = hn::TFromD<D>;
        const V high = Max()(d, a, b);
        const V e = Exp()(d, hn::Neg(hn::Abs(hn::Sub(a, b))));
        // log(1 + e) is e where e is small; between equal infinities e is NaN.
        const V log = hn::IfThenElse(hn::Gt(e, hn::Set(d, T(1e-18))), hn::Log1p(d, e), e);
        return hn::IfThenElse(hn::IsFinite(high), hn::Add(high, log), high);
    }
    template <typename T>
    static constexpr T kIdentity = -std::numeric_limits<T>::infinity();
};

/// The kernel of F for a dtype: `Kernels::of<T, F>(rows)`, or `Kernels::others<F>(dtype, rows)` for
/// dtypes that need a conversion. nullptr: left to the scalar table.
template <class Kernels, class F>
StripFunction for_dtype(DType dtype, bool rows) {
    switch (dtype) {
        case DType::f32:
            return Kernels::template of<float, F>(rows);
        case DType::f64:
            return Kernels::template of<double, F>(rows);
        case DType::i32:
            return Kernels::template of<std::int32_t, F>(rows);
        case DType::i64:
            // A 64-bit product is emulated.
            if constexpr (std::is_same_v<F, Prod>)
                return nullptr;
            else
                return Kernels::template of<std::int64_t, F>(rows);
        default:
            return Kernels::template others<F>(dtype, rows);
    }
}

/// The same for the operation of a kind of reduction.
template <class Kernels>
StripFunction for_kind(ir::Reduction kind, DType dtype, bool rows) {
    switch (kind) {
        case ir::Reduction::sum:
            return for_dtype<Kernels, Sum>(dtype, rows);
        case ir::Reduction::prod:
            return for_dtype<Kernels, Prod>(dtype, rows);
        case ir::Reduction::max:
            return for_dtype<Kernels, MaxOf>(dtype, rows);
        case ir::Reduction::min:
            return for_dtype<Kernels, MinOf>(dtype, rows);
        default:
            return nullptr;
    }
}

}  // namespace
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
