// How one element of each dtype is stored, and the C++ type it is computed in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "support/small_float.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu {

/// Plain elements are computed in the type they are stored in.
template <typename T>
struct PlainElement {
    using Storage = T;
    using Compute = T;
    static T load(T x) { return x; }
    static T store(T x) { return x; }
};

/// Narrow floats are computed in f32 and rounded to nearest even.
template <typename Bits, float (*widen)(Bits), Bits (*narrow)(float)>
struct NarrowElement {
    using Storage = Bits;
    using Compute = float;
    static float load(Bits x) { return widen(x); }
    static Bits store(float x) { return narrow(x); }
};

/// Element<dtype>: Storage, Compute, load and store.
template <DType dtype>
struct Element;

template <>
struct Element<DType::boolean> {
    using Storage = std::uint8_t;
    using Compute = bool;
    static bool load(std::uint8_t x) { return x != 0; }
    static std::uint8_t store(bool x) { return x; }
};
// clang-format off
template <> struct Element<DType::i8> : PlainElement<std::int8_t> {};
template <> struct Element<DType::u8> : PlainElement<std::uint8_t> {};
template <> struct Element<DType::i16> : PlainElement<std::int16_t> {};
template <> struct Element<DType::u16> : PlainElement<std::uint16_t> {};
template <> struct Element<DType::i32> : PlainElement<std::int32_t> {};
template <> struct Element<DType::u32> : PlainElement<std::uint32_t> {};
template <> struct Element<DType::i64> : PlainElement<std::int64_t> {};
template <> struct Element<DType::u64> : PlainElement<std::uint64_t> {};
template <> struct Element<DType::f32> : PlainElement<float> {};
template <> struct Element<DType::f64> : PlainElement<double> {};
template <> struct Element<DType::f16> : NarrowElement<std::uint16_t, f16_to_f32, f32_to_f16> {};
template <> struct Element<DType::bf16> : NarrowElement<std::uint16_t, bf16_to_f32, f32_to_bf16> {};
template <> struct Element<DType::f8e4m3> : NarrowElement<std::uint8_t, f8e4m3_to_f32, f32_to_f8e4m3> {};
template <> struct Element<DType::f8e5m2> : NarrowElement<std::uint8_t, f8e5m2_to_f32, f32_to_f8e5m2> {};
// clang-format on

/// A dtype as a type, for generic lambdas over dtypes.
template <DType dtype>
using DTypeTag = std::integral_constant<DType, dtype>;

/// Calls f(DTypeTag<dtype>{}) for the run-time `dtype`.
template <typename F>
auto with_dtype(DType dtype, F&& f) {
    switch (dtype) {
        case DType::boolean:
            return f(DTypeTag<DType::boolean>{});
        case DType::i8:
            return f(DTypeTag<DType::i8>{});
        case DType::u8:
            return f(DTypeTag<DType::u8>{});
        case DType::i16:
            return f(DTypeTag<DType::i16>{});
        case DType::u16:
            return f(DTypeTag<DType::u16>{});
        case DType::i32:
            return f(DTypeTag<DType::i32>{});
        case DType::u32:
            return f(DTypeTag<DType::u32>{});
        case DType::i64:
            return f(DTypeTag<DType::i64>{});
        case DType::u64:
            return f(DTypeTag<DType::u64>{});
        case DType::f16:
            return f(DTypeTag<DType::f16>{});
        case DType::bf16:
            return f(DTypeTag<DType::bf16>{});
        case DType::f64:
            return f(DTypeTag<DType::f64>{});
        case DType::f8e4m3:
            return f(DTypeTag<DType::f8e4m3>{});
        case DType::f8e5m2:
            return f(DTypeTag<DType::f8e5m2>{});
        case DType::f32:
            break;
    }
    return f(DTypeTag<DType::f32>{});
}

}  // namespace tilewright::cpu
