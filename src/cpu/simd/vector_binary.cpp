// Vector kernels of the ops with two operands, and of comparisons.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_binary.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_divide-inl.h"
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
struct Floordiv { template <class D, class V> V operator()(D, V a, V b) const { return hn::Floor(hn::Div(a, b)); } };
// clang-format on

// For bool, any non-zero byte is true, and the result is 0 or 1.
struct LogicalAnd {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        return hn::Min(hn::Min(a, hn::Set(d, 1)), b);
    }
};
struct LogicalOr {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        return hn::Min(hn::Or(a, b), hn::Set(d, 1));
    }
};
struct LogicalXor {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        const auto one = hn::Set(d, 1);
        return hn::Xor(hn::Min(a, one), hn::Min(b, one));
    }
};

/// a shifted by counts below the width. Bytes are shifted in words of two, whose halves are joined.
template <bool kLeft, class D, class V>
HWY_INLINE V shifted_by(D d, V a, V counts) {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) > 1) {
        return kLeft ? hn::Shl(a, counts) : hn::Shr(a, counts);
    } else {
        using Word = std::conditional_t<hwy::IsSigned<T>(), std::int16_t, std::uint16_t>;
        const hn::Repartition<Word, D> words;
        const auto low_byte = hn::Set(words, 0xFF);
        const auto pairs = hn::BitCast(words, a), both = hn::BitCast(words, counts);
        const auto one = [&](auto value, auto count) HWY_ATTR {
            return kLeft ? hn::Shl(value, count) : hn::Shr(value, count);
        };
        const auto low = one(hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs)), hn::And(both, low_byte));
        const auto high = one(hn::ShiftRight<8>(pairs), hn::ShiftRight<8>(both));
        return hn::BitCast(d, hn::Or(hn::And(low, low_byte), hn::ShiftLeft<8>(high)));
    }
}

// Counts of the width or more: 0, or the sign for a signed right shift.
struct ShiftLeft {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        const hn::RebindToUnsigned<D> du;
        const auto count = hn::BitCast(du, b);
        const auto last = hn::Set(du, sizeof(hn::TFromD<D>) * 8 - 1);
        const auto shifted = shifted_by<true>(du, hn::BitCast(du, a), hn::Min(count, last));
        return hn::BitCast(d, hn::IfThenZeroElse(hn::Gt(count, last), shifted));
    }
};
struct ShiftRight {
    template <class D, class V>
    V operator()(D d, V a, V b) const {
        const hn::RebindToUnsigned<D> du;
        const auto count = hn::BitCast(du, b);
        const auto last = hn::Set(du, sizeof(hn::TFromD<D>) * 8 - 1);
        const auto shifted = shifted_by<false>(d, a, hn::BitCast(d, hn::Min(count, last)));
        if constexpr (hwy::IsSigned<hn::TFromD<D>>())
            return shifted;
        else
            return hn::IfThenZeroElse(hn::Gt(count, last), shifted);
    }
};

template <class F>
StripFunction small_integer_kernel(DType dtype) {
    switch (dtype) {
        case DType::i8:
            return map_kernel<std::int8_t, 2, F>;
        case DType::u8:
            return map_kernel<std::uint8_t, 2, F>;
        case DType::i16:
            return map_kernel<std::int16_t, 2, F>;
        case DType::u16:
            return map_kernel<std::uint16_t, 2, F>;
        default:
            return nullptr;
    }
}

template <class F>
StripFunction large_integer_kernel(DType dtype) {
    switch (dtype) {
        case DType::i32:
            return map_kernel<std::int32_t, 2, F>;
        case DType::u32:
            return map_kernel<std::uint32_t, 2, F>;
        case DType::i64:
            return map_kernel<std::int64_t, 2, F>;
        case DType::u64:
            return map_kernel<std::uint64_t, 2, F>;
        default:
            return nullptr;
    }
}

template <class F>
StripFunction integer_kernel(DType dtype) {
    const StripFunction large = large_integer_kernel<F>(dtype);
    return large != nullptr ? large : small_integer_kernel<F>(dtype);
}

template <class F>
StripFunction any_kernel(DType dtype) {
    return is_float(dtype) ? float_kernel<F, 2>(dtype) : integer_kernel<F>(dtype);
}

template <class F>
StripFunction comparison_kernel(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return mask_kernel<float, 2, F>;
        case DType::f64:
            return mask_kernel<double, 2, F>;
        case DType::f16:
            return through_f32<mask_kernel<float, 2, F>, DType::f16, 2, true>;
        case DType::bf16:
            return through_f32<mask_kernel<float, 2, F>, DType::bf16, 2, true>;
        case DType::u8:
            return mask_kernel<std::uint8_t, 2, F>;
        case DType::i32:
            return mask_kernel<std::int32_t, 2, F>;
        case DType::u32:
            return mask_kernel<std::uint32_t, 2, F>;
        case DType::i64:
            return mask_kernel<std::int64_t, 2, F>;
        default:
            return nullptr;
    }
}

/// For i32 and i64, the types of positions.
template <ir::Op op>
StripFunction division_kernel(DType dtype) {
    if (dtype == DType::i32) return map_kernel<std::int32_t, 2, IntegerDivision<op>>;
    if (dtype == DType::i64) return map_kernel<std::int64_t, 2, IntegerDivision<op>>;
    return nullptr;
}

template <class Bits, class Logical>
StripFunction logical_kernel(DType dtype) {
    if (dtype == DType::boolean) return map_kernel<std::uint8_t, 2, Logical>;
    return integer_kernel<Bits>(dtype);
}

/// Both halves of the products of 32-bit lanes with one factor.
struct WideProduct {
    using D32 = hn::ScalableTag<std::uint32_t>;
    hn::Vec<D32> high, low;

    HWY_INLINE WideProduct(hn::Vec<D32> x, hn::Vec<D32> factor) {
        const D32 d;
        const hn::Repartition<std::uint64_t, D32> wide;
        const auto odd_lanes = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x)));
        const auto even = hn::MulEven(x, factor), odd = hn::MulEven(odd_lanes, factor);
        high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
        low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
    }
};

/// First word of philox4x32-10 (ir::philox): in[0] is the key for all elements, in[1] the counters.
void random_bits(const Strip& s) {
    const hn::ScalableTag<std::uint32_t> d;
    const hn::Repartition<std::uint64_t, decltype(d)> wide;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const auto key = *static_cast<const std::uint64_t*>(s.in[0].data);
    const auto philox = [&](const std::uint64_t* counters) HWY_ATTR {
        const auto first = hn::BitCast(d, hn::LoadU(wide, counters));
        const auto second = hn::BitCast(d, hn::LoadU(wide, counters + kLanes / 2));
        auto w0 = hn::ConcatEven(d, second, first), w1 = hn::ConcatOdd(d, second, first);
        auto w2 = hn::Zero(d), w3 = hn::Zero(d);
        auto key_low = static_cast<std::uint32_t>(key);
        auto key_high = static_cast<std::uint32_t>(key >> 32);
        for (int round = 0; round < 10; ++round) {
            const WideProduct p0(w0, hn::Set(d, 0xD2511F53U)), p1(w2, hn::Set(d, 0xCD9E8D57U));
            w0 = hn::Xor(hn::Xor(p1.high, w1), hn::Set(d, key_low));
            w2 = hn::Xor(hn::Xor(p0.high, w3), hn::Set(d, key_high));
            w1 = p1.low;
            w3 = p0.low;
            key_low += 0x9E3779B9U;
            key_high += 0xBB67AE85U;
        }
        return w0;
    };
    HWY_ALIGN std::uint64_t counters[kLanes];
    for (std::int64_t row = 0; row < s.rows; ++row) {
        const auto* in = static_cast<const std::uint64_t*>(s.in[1].data) + row * s.in[1].row_stride;
        auto* out = static_cast<std::uint32_t*>(s.out) + row * s.out_row_stride;
        const bool contiguous = s.in[1].lane_stride == 1;
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const std::int64_t n = std::min(kLanes, s.lanes - l);
            if (contiguous && n == kLanes) {
                hn::StoreU(philox(in + l), d, out + l);
                continue;
            }
            std::fill_n(counters, kLanes, 0);
            for (std::int64_t i = 0; i < n; ++i) counters[i] = in[(l + i) * s.in[1].lane_stride];
            store_first(philox(counters), d, out + l, static_cast<std::size_t>(n));
        }
    }
}

}  // namespace

StripFunction binary(ir::Op op, DType dtype) {
    using enum ir::Op;
    switch (op) {
        case add:
            return any_kernel<Add>(dtype);
        case sub:
            return any_kernel<Sub>(dtype);
        case mul:
            // Bytes have no vector product.
            return size_of(dtype) == 1   ? nullptr
                   : dtype == DType::i16 ? map_kernel<std::int16_t, 2, Mul>
                   : dtype == DType::u16 ? map_kernel<std::uint16_t, 2, Mul>
                   : is_float(dtype)     ? float_kernel<Mul, 2>(dtype)
                                         : large_integer_kernel<Mul>(dtype);
        case div:
            return is_float(dtype) ? float_kernel<Div, 2>(dtype) : division_kernel<div>(dtype);
        case floordiv:
            return is_float(dtype) ? float_kernel<Floordiv, 2>(dtype)
                                   : division_kernel<floordiv>(dtype);
        case rem:
            return division_kernel<rem>(dtype);
        case floormod:
            return division_kernel<floormod>(dtype);
#define TW_BINARY(row, function, value, vector, ...) \
    case row:                                        \
        return vector_form<vector, 2>(dtype);
#include "ir/ops.inl"
        case min:
            return any_kernel<Min>(dtype);
        case max:
            return any_kernel<Max>(dtype);
        case bitwise_and:
            return logical_kernel<And, LogicalAnd>(dtype);
        case bitwise_or:
            return logical_kernel<Or, LogicalOr>(dtype);
        case bitwise_xor:
            return logical_kernel<Xor, LogicalXor>(dtype);
        case ir::Op::random_bits:
            return dtype == DType::u64 ? HWY_NAMESPACE::random_bits : nullptr;
        case shift_left:
            return integer_kernel<ShiftLeft>(dtype);
        case shift_right:
            return integer_kernel<ShiftRight>(dtype);
        case eq:
            return comparison_kernel<Eq>(dtype);
        case ne:
            return comparison_kernel<Ne>(dtype);
        case lt:
            return comparison_kernel<Lt>(dtype);
        case le:
            return comparison_kernel<Le>(dtype);
        case gt:
            return comparison_kernel<Gt>(dtype);
        case ge:
            return comparison_kernel<Ge>(dtype);
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

StripFunction vector_binary(Target target, ir::Op op, DType in) {
    TW_RETURN_FROM_TARGET(target, binary(op, in))
}

}  // namespace tilewright::cpu
#endif
