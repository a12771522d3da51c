// Vector casts between the dtypes that kernels convert in inner loops.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_cast.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// out = f(d, in) on vectors of the wider of the two types, or of an intermediate one; vectors of
/// the others have the same number of lanes.
template <typename In, typename Out, class F,
          typename Wide = std::conditional_t<(sizeof(In) > sizeof(Out)), In, Out>>
void cast(const Strip& strip) {
    const hn::ScalableTag<Wide> d;
    const hn::Rebind<In, decltype(d)> din;
    const hn::Rebind<Out, decltype(d)> dout;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const Walk s = flattened(strip, 1);
    const std::int64_t full = s.lanes / kLanes * kLanes;
    const auto tail = static_cast<std::size_t>(s.lanes - full);
    const F f;
    for (std::int64_t row = 0; row < s.rows; ++row) {
        const RowOperand<In> in(s.in[0], row);
        Out* out = static_cast<Out*>(s.out) + row * s.out_row_stride;
        for (std::int64_t l = 0; l < full; l += kLanes) {
            hn::StoreU(f(din, dout, hn::LoadU(din, in.at + l * in.step)), dout, out + l);
        }
        if (tail != 0) {
            store_first(f(din, dout, load_first(din, in.at + full * in.step, tail)), dout,
                        out + full, tail);
        }
    }
}

template <DType dtype>
struct Widen {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        return widen_bits<dtype>(d, x);
    }
};
template <DType dtype>
struct Narrow {
    template <class DI, class DO, class V>
    auto operator()(DI d, DO, V x) const {
        return narrow_bits<dtype>(d, x);
    }
};
/// Bytes of f8 to f32. f16 has the exponents of e5m2; those of e4m3 fit it after a shift.
template <DType dtype>
struct WidenF8 {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        const hn::Rebind<std::uint16_t, DO> d16;
        const auto bits = hn::PromoteTo(d16, x);
        if constexpr (dtype == DType::f8e5m2) {
            return widen_bits<DType::f16>(d, hn::ShiftLeft<8>(bits));
        } else {
            const auto size = hn::And(bits, hn::Set(d16, 0x7f));
            const auto sign = hn::ShiftLeft<8>(hn::Xor(bits, size));
            const auto nan = hn::Eq(size, hn::Set(d16, 0x7f));
            const auto f16 = hn::IfThenElse(nan, hn::Set(d16, 0x7e00), hn::ShiftLeft<7>(size));
            return hn::Mul(widen_bits<DType::f16>(d, hn::Or(f16, sign)), hn::Set(d, 256.0F));
        }
    }
};
/// Bytes of f8 to bf16, which has all their values.
template <DType dtype>
struct F8ToBf16 {
    template <class DI, class DO, class V>
    auto operator()(DI din, DO d16, V x) const {
        const hn::Rebind<float, DO> df;
        const hn::RebindToUnsigned<decltype(df)> d32;
        const auto wide = WidenF8<dtype>()(din, df, x);
        return hn::TruncateTo(d16, hn::ShiftRight<16>(hn::BitCast(d32, wide)));
    }
};
struct Promote {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        return hn::PromoteTo(d, x);
    }
};
struct Demote {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        return hn::DemoteTo(d, x);
    }
};
struct Convert {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        return hn::ConvertTo(d, x);
    }
};
/// f32 to i32: the conversion saturates, or gives INT_MIN on x86; NaN must become 0.
struct Truncate {
    template <class DI, class DO, class V>
    auto operator()(DI din, DO d, V x) const {
        const auto number = hn::IfThenElseZero(hn::Eq(x, x), x);
        const auto above = hn::Ge(number, hn::Set(din, 2147483648.0F));
        const auto whole = hn::ConvertTo(d, number);
        return hn::IfThenElse(hn::RebindMask(d, above), hn::Set(d, 2147483647), whole);
    }
};
/// 64-bit integers to 32 bits: the low half.
struct LowHalf {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        const hn::RebindToUnsigned<DI> du;
        const hn::RebindToUnsigned<DO> du32;
        return hn::BitCast(d, hn::TruncateTo(du32, hn::BitCast(du, x)));
    }
};
/// Anything to bool; `d` is the operand's tag.
struct NotZero {
    template <class D, class V>
    auto operator()(D d, V x) const {
        return hn::Not(hn::Eq(x, hn::Zero(d)));  // NaN is true
    }
};
/// bool to a 32-bit type.
struct FromBool {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        const hn::RebindToSigned<DO> di;
        const auto set = hn::Ne(hn::PromoteTo(di, x), hn::Zero(di));
        return hn::IfThenElseZero(hn::RebindMask(d, set), hn::Set(d, hn::TFromD<DO>(1)));
    }
};
struct ByteToFloat {
    template <class DI, class DO, class V>
    auto operator()(DI, DO d, V x) const {
        return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<DO>(), x));
    }
};

StripFunction to_bool(DType in) {
    switch (in) {
        case DType::boolean:
            return mask_kernel<std::uint8_t, 1, NotZero>;
        case DType::u8:
            return mask_kernel<std::uint8_t, 1, NotZero>;
        case DType::i32:
            return mask_kernel<std::int32_t, 1, NotZero>;
        case DType::i64:
            return mask_kernel<std::int64_t, 1, NotZero>;
        case DType::f32:
            return mask_kernel<float, 1, NotZero>;
        case DType::f64:
            return mask_kernel<double, 1, NotZero>;
        default:
            return nullptr;
    }
}

}  // namespace

StripFunction cast(DType in, DType out) {
    using enum DType;
    using U16 = std::uint16_t;
    if (out == boolean) return to_bool(in);
    if (in == bf16 && out == f32) return cast<U16, float, Widen<bf16>>;
    if (in == f16 && out == f32) return cast<U16, float, Widen<f16>>;
    if (in == f32 && out == bf16) return cast<float, U16, Narrow<bf16>>;
    if (in == f32 && out == f16) return cast<float, U16, Narrow<f16>>;
    if (in == f8e4m3 && out == f32) return cast<std::uint8_t, float, WidenF8<f8e4m3>>;
    if (in == f8e5m2 && out == f32) return cast<std::uint8_t, float, WidenF8<f8e5m2>>;
    if (in == f8e4m3 && out == bf16) return cast<std::uint8_t, U16, F8ToBf16<f8e4m3>, float>;
    if (in == f8e5m2 && out == bf16) return cast<std::uint8_t, U16, F8ToBf16<f8e5m2>, float>;
    if (in == i8 && out == i16) return cast<std::int8_t, std::int16_t, Promote>;
    if (in == u8 && (out == i16 || out == u16)) return cast<std::uint8_t, U16, Promote>;
    if (in == i16 && out == i32) return cast<std::int16_t, std::int32_t, Promote>;
    if (in == u16 && (out == i32 || out == u32)) return cast<U16, std::uint32_t, Promote>;
    if (in == i32 && (out == i16 || out == u16)) return cast<std::uint32_t, U16, LowHalf>;
    if (in == f32 && out == f64) return cast<float, double, Promote>;
    if (in == f64 && out == f32) return cast<double, float, Demote>;
    if (in == i32 && out == f32) return cast<std::int32_t, float, Convert>;
    if (in == f32 && out == i32) return cast<float, std::int32_t, Truncate>;
    if (in == i32 && out == f64) return cast<std::int32_t, double, Promote>;
    if (in == i32 && (out == i64 || out == u64)) return cast<std::int32_t, std::int64_t, Promote>;
    if (in == u32 && (out == i64 || out == u64)) return cast<std::uint32_t, std::uint64_t, Promote>;
    if ((in == i64 || in == u64) && (out == i32 || out == u32)) {
        return cast<std::int64_t, std::int32_t, LowHalf>;
    }
    if (in == boolean && out == f32) return cast<std::uint8_t, float, FromBool>;
    if (in == boolean && out == i32) return cast<std::uint8_t, std::int32_t, FromBool>;
    if (in == u8 && out == f32) return cast<std::uint8_t, float, ByteToFloat>;
    if (in == u8 && out == i32) return cast<std::uint8_t, std::int32_t, Promote>;
    if (in == i8 && out == f32) return cast<std::int8_t, float, ByteToFloat>;
    if (in == i8 && out == i32) return cast<std::int8_t, std::int32_t, Promote>;
    return nullptr;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_cast(Target target, DType in, DType out) {
    TW_RETURN_FROM_TARGET(target, cast(in, out))
}

}  // namespace tilewright::cpu
#endif
