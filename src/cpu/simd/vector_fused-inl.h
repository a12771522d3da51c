// The building blocks of fused runs: the block of lanes and operations on its vectors. Included
// once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_FUSED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_FUSED_INL_H
#undef TILEWRIGHT_CPU_VECTOR_FUSED_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_FUSED_INL_H
#endif

#include "cpu/simd/fused.h"
#include "cpu/simd/vector_math-inl.h"
#include "cpu/simd/vector_ops-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
constexpr std::int64_t kLanes = hn::MaxLanes(D());
constexpr int kVectors = HWY_TARGET == HWY_AVX3 ? 4 : 8;
constexpr std::int64_t kBlock = kVectors * kLanes;

// ---- Operations on vectors of f32, on the bits of i32, and on masks.

/// F on the bits as i32.
template <class F>
struct OnIntegers {
    template <class... W>
    HWY_INLINE V operator()(D d, W... x) const {
        const DI di;
        return hn::BitCast(d, F()(di, hn::BitCast(di, x)...));
    }
};
/// A comparison whose result is a mask in a vector.
template <class F>
struct Compare {
    HWY_INLINE V operator()(D d, V a, V b) const { return hn::VecFromMask(d, F()(d, a, b)); }
};
template <class F>
struct CompareIntegers {
    HWY_INLINE V operator()(D d, V a, V b) const {
        const DI di;
        return hn::BitCast(d, hn::VecFromMask(di, F()(di, hn::BitCast(di, a), hn::BitCast(di, b))));
    }
};
template <DType dtype>
struct RoundTo {
    HWY_INLINE V operator()(D d, V x) const {
        return widen_bits<dtype>(d, narrow_bits<dtype>(d, x));
    }
};
struct IntegerToFloat {
    HWY_INLINE V operator()(D d, V x) const { return hn::ConvertTo(d, hn::BitCast(DI(), x)); }
};
struct MaskToFloat {
    HWY_INLINE V operator()(D d, V x) const { return hn::And(x, hn::Set(d, 1.0F)); }
};
struct MaskToInteger {
    HWY_INLINE V operator()(D d, V x) const {
        const DI di;
        return hn::BitCast(d, hn::And(hn::BitCast(di, x), hn::Set(di, 1)));
    }
};
struct Keep {
    HWY_INLINE V operator()(D, V x) const { return x; }
};

struct FmaOf {
    HWY_INLINE V operator()(D, V a, V b, V c) const { return hn::MulAdd(a, b, c); }
};
struct SelectOf {
    HWY_INLINE V operator()(D, V mask, V yes, V no) const {
        return hn::IfThenElse(hn::MaskFromVec(mask), yes, no);
    }
};
struct ClampOf {
    HWY_INLINE V operator()(D d, V x, V low, V high) const {
        return Min()(d, Max()(d, x, low), high);
    }
};

/// Elements of a dtype in memory, as values of the block.
template <DType dtype>
HWY_INLINE V widened(const void* p, std::int64_t lane) {
    const D d;
    if constexpr (dtype == DType::boolean) {
        const hn::Rebind<std::uint8_t, D> d8;
        const DI di;
        const auto bytes = hn::LoadU(d8, static_cast<const std::uint8_t*>(p) + lane);
        return hn::BitCast(d, hn::VecFromMask(di, mask_of_bytes(di, bytes)));
    } else if constexpr (dtype == DType::f32) {
        return hn::LoadU(d, static_cast<const float*>(p) + lane);
    } else {
        const hn::Rebind<std::uint16_t, D> d16;
        return widen_bits<dtype>(d, hn::LoadU(d16, static_cast<const std::uint16_t*>(p) + lane));
    }
}

/// Stores a vector of the block as elements of a dtype; `streams`: with non-temporal stores.
template <DType dtype>
HWY_INLINE void store_widened(V v, void* p, std::int64_t lane, bool streams) {
    const D d;
    if constexpr (dtype == DType::boolean) {
        store_mask(d, hn::MaskFromVec(v), static_cast<std::uint8_t*>(p) + lane);
    } else if constexpr (dtype == DType::f32) {
        auto* out = static_cast<float*>(p) + lane;
        streams ? hn::Stream(v, d, out) : hn::StoreU(v, d, out);
    } else {
        const hn::Rebind<std::uint16_t, D> d16;
        auto* out = static_cast<std::uint16_t*>(p) + lane;
        const auto bits = narrow_bits<dtype>(d, v);
        streams ? hn::Stream(bits, d16, out) : hn::StoreU(bits, d16, out);
    }
}

/// Prefetches data of the next iteration of a loop while this one computes.
HWY_INLINE void prefetch(const char* at, std::int64_t bytes) {
    constexpr int kRead = 0, kIntoL2 = 2;
    constexpr std::int64_t kLine = 64;
    for (std::int64_t line = 0; line < bytes; line += kLine) {
        __builtin_prefetch(at + line, kRead, kIntoL2);
    }
}

/// Combines halves of the lanes until one is left.
template <class F, class DN>
HWY_INLINE float across([[maybe_unused]] DN d, hn::Vec<DN> lanes) {
    if constexpr (hn::MaxLanes(DN()) == 1) {
        return hn::GetLane(lanes);
    } else {
        const hn::Half<DN> half;
        return across<F>(half, F()(half, hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
    }
}

template <class F>
void end_reduction(const float* partial, float& out) {
    const D d;
    const hn::CappedTag<float, 1> d1;
    const float row = across<F>(d, hn::Load(d, partial));
    out = hn::GetLane(F()(d1, hn::Set(d1, out), hn::Set(d1, row)));
}

}  // namespace
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
