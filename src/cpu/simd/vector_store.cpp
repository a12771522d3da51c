// Vector kernels that write strips to arrays: masked, and with non-temporal stores.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_store.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

#if HWY_ARCH_X86
/// Masked moves do not touch the lanes left out, which another thread may be writing.
template <typename T>
void store_masked(const Strip& s) {
    const hn::ScalableTag<T> d;
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        const RowOperand<T> in(s.in[0], row);
        const RowOperand<std::uint8_t> mask(s.in[1], row);
        T* out = static_cast<T*>(s.out) + row * s.out_row_stride;
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
            const auto bytes = load_first(d8, mask.at + l * mask.step, n);
            const auto chosen = hn::And(mask_of_bytes(d, bytes), hn::FirstN(d, n));
            hn::BlendedStore(load_first(d, in.at + l * in.step, n), chosen, d, out + l);
        }
    }
}
#endif

/// Whole cache lines are stored non-temporally, the ends of a row through the caches.
template <typename T>
void stream(const Strip& s) {
    constexpr std::size_t kLine = 64;
    const hn::ScalableTag<std::uint8_t> d;
    constexpr std::size_t kBytes = hn::MaxLanes(d);
    const std::size_t bytes = static_cast<std::size_t>(s.lanes) * sizeof(T);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        auto* out =
            reinterpret_cast<std::uint8_t*>(static_cast<T*>(s.out) + row * s.out_row_stride);
        const auto* first = static_cast<const T*>(s.in[0].data) + row * s.in[0].row_stride;
        if (s.in[0].lane_stride == 0) {
            std::fill_n(reinterpret_cast<T*>(out), s.lanes, *first);
            continue;
        }
        const auto* in = reinterpret_cast<const std::uint8_t*>(first);
        const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(out) % kLine;
        std::size_t at = misaligned == 0 ? 0 : std::min(kLine - misaligned, bytes);
        if (at > 0) std::memcpy(out, in, at);
        for (; at + kLine <= bytes; at += kLine) {
            for (std::size_t i = 0; i < kLine; i += kBytes) {
                hn::Stream(hn::LoadU(d, in + at + i), d, out + at + i);
            }
        }
        if (at < bytes) std::memcpy(out + at, in + at, bytes - at);
    }
}

}  // namespace

StripFunction store_masked(DType dtype) {
#if HWY_ARCH_X86
    if (size_of(dtype) == 4) return store_masked<std::uint32_t>;
    if (size_of(dtype) == 8) return store_masked<std::uint64_t>;
#endif
    (void)dtype;
    return nullptr;
}

StripFunction stream(DType dtype) {
    switch (size_of(dtype)) {
        case 1:
            return stream<std::uint8_t>;
        case 2:
            return stream<std::uint16_t>;
        case 4:
            return stream<std::uint32_t>;
        default:
            return stream<std::uint64_t>;
    }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_store_masked(Target target, DType dtype){
    TW_RETURN_FROM_TARGET(target, store_masked(dtype))} StripFunction
    vector_stream(Target target, DType dtype) {
    TW_RETURN_FROM_TARGET(target, stream(dtype))
}

}  // namespace tilewright::cpu
#endif
