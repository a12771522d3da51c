// Vector kernels of the ops with one operand.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_unary.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_math-inl.h"
#include "cpu/simd/vector_ops-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

// clang-format off
struct IsNan { template <class D, class V> auto operator()(D, V x) const { return hn::IsNaN(x); } };
// clang-format on

struct Sign {
    template <class D, class V>
    V operator()(D d, V x) const {
        using T = hn::TFromD<D>;
        // Zeros and NaN are neither above nor below zero, so they stay.
        const V positive = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Set(d, T(1)), x);
        return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, T(-1)), positive);
    }
};

/// bool: any non-zero byte is true.
struct LogicalNot {
    template <class D, class V>
    V operator()(D d, V x) const {
        return hn::IfThenElseZero(hn::Eq(x, hn::Zero(d)), hn::Set(d, 1));
    }
};

template <class F>
StripFunction signed_integer_kernel(DType dtype) {
    switch (dtype) {
        case DType::i8:
            return map_kernel<std::int8_t, 1, F>;
        case DType::i16:
            return map_kernel<std::int16_t, 1, F>;
        case DType::i32:
            return map_kernel<std::int32_t, 1, F>;
        case DType::i64:
            return map_kernel<std::int64_t, 1, F>;
        default:
            return nullptr;
    }
}

template <class F>
StripFunction signed_kernel(DType dtype) {
    return is_float(dtype) ? float_kernel<F, 1>(dtype) : signed_integer_kernel<F>(dtype);
}

StripFunction bitwise_not_kernel(DType dtype) {
    if (dtype == DType::boolean) return map_kernel<std::uint8_t, 1, LogicalNot>;
    switch (is_integer(dtype) ? size_of(dtype) : 0) {
        case 1:
            return map_kernel<std::uint8_t, 1, Not>;
        case 2:
            return map_kernel<std::uint16_t, 1, Not>;
        case 4:
            return map_kernel<std::uint32_t, 1, Not>;
        case 8:
            return map_kernel<std::uint64_t, 1, Not>;
        default:
            return nullptr;
    }
}

StripFunction isnan_kernel(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return mask_kernel<float, 1, IsNan>;
        case DType::f64:
            return mask_kernel<double, 1, IsNan>;
        case DType::f16:
            return through_f32<mask_kernel<float, 1, IsNan>, DType::f16, 1, true>;
        case DType::bf16:
            return through_f32<mask_kernel<float, 1, IsNan>, DType::bf16, 1, true>;
        default:
            return nullptr;
    }
}

}  // namespace

StripFunction unary(ir::Op op, DType dtype) {
    using enum ir::Op;
    switch (op) {
        case neg:
            return signed_kernel<Neg>(dtype);
        case abs:
            return signed_kernel<Abs>(dtype);
        case sign:
            return signed_kernel<Sign>(dtype);
#define TW_UNARY(row, function, value, vector, ...) \
    case row:                                       \
        return vector_form<vector, 1>(dtype);
#define TW_APPROXIMABLE TW_UNARY
#include "ir/ops.inl"
        case isnan:
            return isnan_kernel(dtype);
        case bitwise_not:
            return bitwise_not_kernel(dtype);
        default:
            return nullptr;
    }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_unary(Target target, ir::Op op, DType in) {
    TW_RETURN_FROM_TARGET(target, unary(op, in))
}

}  // namespace tilewright::cpu
#endif
