// Running combinations within vectors. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_SCAN_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#undef TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#endif

#include <array>
#include <cstdint>

#include "cpu/simd/kernels.h"
#include "cpu/simd/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// Running combinations of the lanes of one vector, from the first to the last or in reverse.
template <typename T, class F, bool kReverse>
struct VectorScan {
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static constexpr int kLanes = hn::MaxLanes(D());

    /// Lane l of each result combines lanes 0 to l; each step doubles the number combined.
    template <int kBy = 1, int kCount>
    static HWY_INLINE void scan(V (&v)[kCount]) {
        if constexpr (kBy < kLanes) {
            each<kCount>([&](int i) HWY_ATTR { v[i] = F()(D(), moved<kBy>(v[i]), v[i]); });
            scan<2 * kBy>(v);
        }
    }
    /// Every lane moved `kBy` further, with the identity in the lanes that become free.
    template <int kBy = 1>
    static HWY_INLINE V moved(V v) {
        const D d;
        const V identity = hn::Set(d, F::template kIdentity<T>);
#if HWY_TARGET == HWY_AVX3
        const auto first = bits(kReverse ? identity : v), second = bits(kReverse ? v : identity);
        constexpr int kFrom = kReverse ? kBy : kLanes - kBy;
        if constexpr (sizeof(T) == 4)
            return of_bits(_mm512_alignr_epi32(first, second, kFrom));
        else
            return of_bits(_mm512_alignr_epi64(first, second, kFrom));
#else
        using TI = hn::TFromD<hn::RebindToSigned<D>>;
        HWY_ALIGN static constexpr std::array<TI, kLanes> kFrom = [] {
            std::array<TI, kLanes> from = {};
            for (int l = 0; l < kLanes; ++l)
                from[l] = static_cast<TI>((kReverse ? l + kBy : l - kBy) & (kLanes - 1));
            return from;
        }();
        const V turned = hn::TableLookupLanes(v, hn::SetTableIndices(d, kFrom.data()));
        if constexpr (kReverse)
            return hn::IfThenElse(hn::FirstN(d, kLanes - kBy), turned, identity);
        else
            return hn::IfThenElse(hn::FirstN(d, kBy), identity, turned);
#endif
    }
    /// The lane that combines all, broadcast to every lane.
    static HWY_INLINE V total(V scanned) {
        const hn::RebindToSigned<D> di;
        const auto last = hn::Set(di, kReverse ? 0 : kLanes - 1);
        return hn::TableLookupLanes(scanned, hn::IndicesFromVec(D(), last));
    }

#if HWY_TARGET == HWY_AVX3
  private:
    static HWY_INLINE __m512i bits(V v) {
        return hn::BitCast(hn::ScalableTag<std::int32_t>(), v).raw;
    }
    static HWY_INLINE V of_bits(__m512i v) {
        return hn::BitCast(D(), hn::Vec<hn::ScalableTag<std::int32_t>>{v});
    }
#endif
};

/// Calls scan(in, out, carry) for each row, with the row's places in the strip. Reverse scans begin
/// with the last row: hardware prefetchers follow falling addresses, but not from the start of a
/// row to the end of the next one.
template <typename T, bool kReverse, typename Carry = T, class Scan>
HWY_INLINE void each_row(const Strip& s, const Scan& scan) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
        const std::int64_t r = kReverse ? s.rows - 1 - i : i;
        scan(static_cast<const T*>(s.in[0].data) + r * s.in[0].row_stride,
             static_cast<T*>(s.out) + r * s.out_row_stride, static_cast<Carry*>(s.accumulator)[r]);
    }
}

}  // namespace
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
