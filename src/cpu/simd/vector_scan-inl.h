// Running combinations within vectors. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_SCAN_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#undef TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_SCAN_INL_H
#endif

#include <algorithm>
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

constexpr std::uintptr_t kPage = 4096;

/// Where to begin in a buffer of more than a page, in bytes: loads wait for stores with nearly the
/// same page offset, so that it is a quarter of a page from both.
inline std::uintptr_t apart(const void* buffer, const void* in, const void* out) {
    const auto from_buffer = [&](const void* p) {
        return reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(buffer);
    };
    const std::uintptr_t half = (from_buffer(out) + kPage / 2) % kPage;
    const std::uintptr_t distance = (from_buffer(in) - half) % kPage;
    const std::uintptr_t quarter = kPage / 4;
    const std::uintptr_t away = distance < quarter           ? kPage - quarter
                                : distance > kPage - quarter ? quarter
                                                             : 0;
    return (half + away) % kPage & ~std::uintptr_t{63};
}

/// Calls scan(in, out, carry) for each row, where the first two are the row's places in the strip,
/// or for reverse scans of short rows a buffer: hardware prefetchers follow falling addresses, but
/// not from the start of a row to the end of the next one, so that such rows are read and written
/// upwards.
template <typename T, bool kReverse, typename Carry = T, class Scan>
HWY_INLINE void each_row(const Strip& s, const Scan& scan) {
    constexpr std::int64_t kLeast = 1024, kMost = 1 << 14;
    const std::int64_t bytes = s.lanes * static_cast<std::int64_t>(sizeof(T));
    const bool whole_rows = s.immediate[2] != 0;
    const bool buffered =
        kReverse && whole_rows && s.in[0].lane_stride == 1 && bytes >= kLeast && bytes <= kMost;
    const T* in = static_cast<const T*>(s.in[0].data);
    T* out = static_cast<T*>(s.out);
    for (std::int64_t r = 0; r < s.rows; ++r, in += s.in[0].row_stride, out += s.out_row_stride) {
        Carry& carry = static_cast<Carry*>(s.accumulator)[r];
        if (buffered) {
            alignas(64) std::byte buffer[kMost + kPage];
            T* const row = reinterpret_cast<T*>(buffer + apart(buffer, in, out));
            std::copy_n(in, s.lanes, row);
            scan(row, row, carry);
            std::copy_n(row, s.lanes, out);
        } else {
            scan(in, out, carry);
        }
    }
}

}  // namespace
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
