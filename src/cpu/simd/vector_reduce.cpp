// Vector reductions over rows (lane by lane) and over the lanes of each row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_reduce.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_combine-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// Elements of storage type S, read as vectors of T.
template <typename T>
struct Direct {
    using Storage = T;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const T* p) {
        return hn::LoadU(d, p);
    }
    template <class D>
    static HWY_INLINE hn::Vec<D> load_first(D d, const T* p, std::size_t n) {
        return HWY_NAMESPACE::load_first(d, p, n);
    }
};
template <DType dtype>
struct Widened {
    using Storage = std::uint16_t;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* p) {
        return widen_bits<dtype>(d, hn::LoadU(hn::Rebind<std::uint16_t, D>(), p));
    }
    template <class D>
    static HWY_INLINE hn::Vec<D> load_first(D d, const std::uint16_t* p, std::size_t n) {
        return widen_bits<dtype>(d,
                                 HWY_NAMESPACE::load_first(hn::Rebind<std::uint16_t, D>(), p, n));
    }
};

/// Column by column: four vectors of lanes stay in registers over all rows.
template <typename T, class Read, class F>
void over_rows(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const StripOperand& in = s.in[0];
    const auto* first = static_cast<const typename Read::Storage*>(in.data);
    T* out = static_cast<T*>(s.out);
    const F f;
    if (in.lane_stride == 0) {  // one element per row, for every lane
        V sum = hn::Set(d, F::template kIdentity<T>);
        for (std::int64_t r = 0; r < s.rows; ++r) {
            sum = f(d, sum,
                    hn::Set(d, hn::GetLane(Read::load_first(d, first + r * in.row_stride, 1))));
        }
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
            store_first(f(d, load_first(d, out + l, n), sum), d, out + l, n);
        }
        return;
    }
    std::int64_t l = 0;
    for (; l + 4 * kLanes <= s.lanes; l += 4 * kLanes) {
        V a = hn::LoadU(d, out + l), b = hn::LoadU(d, out + l + kLanes);
        V c = hn::LoadU(d, out + l + 2 * kLanes), e = hn::LoadU(d, out + l + 3 * kLanes);
        const auto* p = first + l;
        for (std::int64_t r = 0; r < s.rows; ++r, p += in.row_stride) {
            a = f(d, a, Read::load(d, p));
            b = f(d, b, Read::load(d, p + kLanes));
            c = f(d, c, Read::load(d, p + 2 * kLanes));
            e = f(d, e, Read::load(d, p + 3 * kLanes));
        }
        hn::StoreU(a, d, out + l);
        hn::StoreU(b, d, out + l + kLanes);
        hn::StoreU(c, d, out + l + 2 * kLanes);
        hn::StoreU(e, d, out + l + 3 * kLanes);
    }
    for (; l < s.lanes; l += kLanes) {
        const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
        V sum = load_first(d, out + l, n);
        const auto* p = first + l;
        for (std::int64_t r = 0; r < s.rows; ++r, p += in.row_stride) {
            sum = f(d, sum, Read::load_first(d, p, n));
        }
        store_first(sum, d, out + l, n);
    }
}

/// The lower half of the lanes combined with the upper one, until one lane is left.
template <class D, class F>
HWY_INLINE hn::TFromD<D> combine_halves([[maybe_unused]] D d, hn::Vec<D> v, const F& f) {
    constexpr std::size_t kLanes = hn::MaxLanes(D());
    if constexpr (kLanes == 1) {
        return hn::GetLane(v);
    } else {
        const hn::Half<D> half;
        return combine_halves(half, f(half, hn::LowerHalf(half, v), hn::UpperHalf(half, v)), f);
    }
}

/// Row by row: four partial results by vector position, then a fixed tree over their lanes.
template <typename T, class Read, class F>
void over_lanes(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const StripOperand& in = s.in[0];
    const V identity = hn::Set(d, F::template kIdentity<T>);
    const F f;
    for (std::int64_t r = 0; r < s.rows; ++r) {
        const auto* p = static_cast<const typename Read::Storage*>(in.data) + r * in.row_stride;
        V a = identity, b = identity, c = identity, e = identity;
        std::int64_t l = 0;
        if (in.lane_stride == 0) {  // one element for all lanes
            const auto x = hn::Set(d, hn::GetLane(Read::load_first(d, p, 1)));
            for (; l < s.lanes; l += kLanes) {
                const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
                a = f(d, a, hn::IfThenElse(hn::FirstN(d, n), x, identity));
            }
        }
        for (; l + 4 * kLanes <= s.lanes; l += 4 * kLanes, p += 4 * kLanes) {
            a = f(d, a, Read::load(d, p));
            b = f(d, b, Read::load(d, p + kLanes));
            c = f(d, c, Read::load(d, p + 2 * kLanes));
            e = f(d, e, Read::load(d, p + 3 * kLanes));
        }
        for (; l + kLanes <= s.lanes; l += kLanes, p += kLanes) a = f(d, a, Read::load(d, p));
        if (l < s.lanes) {
            const auto n = static_cast<std::size_t>(s.lanes - l);
            b = f(d, b, hn::IfThenElse(hn::FirstN(d, n), Read::load_first(d, p, n), identity));
        }
        const T combined = combine_halves(d, f(d, f(d, a, b), f(d, c, e)), f);
        const hn::CappedTag<T, 1> d1;
        T& out = static_cast<T*>(s.out)[r * s.out_row_stride];
        out = hn::GetLane(f(d1, hn::Set(d1, out), hn::Set(d1, combined)));
    }
}

struct Reductions {
    template <typename T, class F, class Read = Direct<T>>
    static StripFunction of(bool rows) {
        return rows ? over_rows<T, Read, F> : over_lanes<T, Read, F>;
    }
    template <class F>
    static StripFunction others(DType dtype, bool rows) {
        if (dtype == DType::f16) return of<float, F, Widened<DType::f16>>(rows);
        if (dtype == DType::bf16) return of<float, F, Widened<DType::bf16>>(rows);
        return nullptr;
    }
};

}  // namespace

StripFunction reduce(ir::Reduction kind, DType dtype, bool rows) {
    return for_kind<Reductions>(kind, dtype, rows);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_reduce_rows(Target target, ir::Reduction kind, DType dtype){
    TW_RETURN_FROM_TARGET(target, reduce(kind, dtype, true))} StripFunction
    vector_reduce_lanes(Target target, ir::Reduction kind, DType dtype) {
    TW_RETURN_FROM_TARGET(target, reduce(kind, dtype, false))
}

}  // namespace tilewright::cpu
#endif
