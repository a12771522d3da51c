// Vector scans over rows (lane by lane) and along the lanes of each row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_scan.cpp"
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

/// Column by column: the running combination stays in registers over all rows.
template <typename T, class F>
void over_rows(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    const std::int64_t first = reverse ? s.rows - 1 : 0, step = reverse ? -1 : 1;
    const std::int64_t in_step = step * s.in[0].row_stride, out_step = step * s.out_row_stride;
    const std::int64_t lane_step = s.in[0].lane_stride;
    const T* in = static_cast<const T*>(s.in[0].data) + first * s.in[0].row_stride;
    T* out = static_cast<T*>(s.out) + first * s.out_row_stride;
    T* carried = static_cast<T*>(s.accumulator);
    const F f;
    std::int64_t l = 0;
    if (lane_step == 1) {
        for (; l + 4 * kLanes <= s.lanes; l += 4 * kLanes) {
            V a = hn::LoadU(d, carried + l), b = hn::LoadU(d, carried + l + kLanes);
            V c = hn::LoadU(d, carried + l + 2 * kLanes),
              e = hn::LoadU(d, carried + l + 3 * kLanes);
            const T* p = in + l;
            T* to = out + l;
            for (std::int64_t r = 0; r < s.rows; ++r, p += in_step, to += out_step) {
                const V next_a = f(d, a, hn::LoadU(d, p));
                const V next_b = f(d, b, hn::LoadU(d, p + kLanes));
                const V next_c = f(d, c, hn::LoadU(d, p + 2 * kLanes));
                const V next_e = f(d, e, hn::LoadU(d, p + 3 * kLanes));
                hn::StoreU(exclusive ? a : next_a, d, to);
                hn::StoreU(exclusive ? b : next_b, d, to + kLanes);
                hn::StoreU(exclusive ? c : next_c, d, to + 2 * kLanes);
                hn::StoreU(exclusive ? e : next_e, d, to + 3 * kLanes);
                a = next_a;
                b = next_b;
                c = next_c;
                e = next_e;
            }
            hn::StoreU(a, d, carried + l);
            hn::StoreU(b, d, carried + l + kLanes);
            hn::StoreU(c, d, carried + l + 2 * kLanes);
            hn::StoreU(e, d, carried + l + 3 * kLanes);
        }
    }
    for (; l < s.lanes; l += kLanes) {
        const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
        V sum = load_first(d, carried + l, n);
        const T* p = in + l * lane_step;
        T* to = out + l;
        for (std::int64_t r = 0; r < s.rows; ++r, p += in_step, to += out_step) {
            const V next = f(d, sum, lane_step == 0 ? hn::Set(d, *p) : load_first(d, p, n));
            store_first(exclusive ? sum : next, d, to, n);
            sum = next;
        }
        store_first(sum, d, carried + l, n);
    }
}

/// Running combinations of the lanes of one vector, from the first to the last or in reverse.
template <typename T, class F>
class VectorScan {
  public:
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static constexpr std::int64_t kLanes = hn::MaxLanes(D());

    explicit VectorScan(bool reverse) : last_(hn::Set(DI(), reverse ? 0 : kLanes - 1)) {
        const DI di;
        const auto lane = hn::Iota(di, 0);
        for (int k = 0; k < kSteps; ++k) {
            const auto shift = hn::Set(di, static_cast<TI>(1 << k));
            from_[k] = reverse ? hn::Add(lane, shift) : hn::Sub(lane, shift);
            const auto outside = reverse
                                     ? hn::Gt(from_[k], hn::Set(di, static_cast<TI>(kLanes - 1)))
                                     : hn::Lt(from_[k], hn::Zero(di));
            from_[k] = hn::And(from_[k], hn::Set(di, static_cast<TI>(kLanes - 1)));
            outside_[k] = hn::RebindMask(D(), outside);
        }
    }

    /// Lane l of the result combines lanes 0 to l; each step doubles the number combined.
    HWY_INLINE V scanned(V v) const {
        for (int k = 0; k < kSteps; ++k) v = F()(D(), shifted(v, k), v);
        return v;
    }
    /// Every lane moved one further, with the identity in the lane that becomes free.
    HWY_INLINE V next_lane(V v) const { return shifted(v, 0); }
    /// The lane that combines all, broadcast to every lane.
    HWY_INLINE V total(V scanned) const {
        return hn::TableLookupLanes(scanned, hn::IndicesFromVec(D(), last_));
    }

  private:
    using DI = hn::RebindToSigned<D>;
    using TI = hn::TFromD<DI>;
    static constexpr int kSteps = kLanes == 16 ? 4 : kLanes == 8 ? 3 : kLanes == 4 ? 2 : 1;
    static_assert(kLanes == 1 << kSteps);

    HWY_INLINE V shifted(V v, int k) const {
        const V moved = hn::TableLookupLanes(v, hn::IndicesFromVec(D(), from_[k]));
        return hn::IfThenElse(outside_[k], hn::Set(D(), F::template kIdentity<T>), moved);
    }

    hn::Vec<DI> from_[kSteps], last_;
    hn::Mask<D> outside_[kSteps];
};

/// Passes the vectors of a row to `step` in the order of the scan, padded with `identity`.
template <class V, class Step>
void each_vector(const Strip& s, std::int64_t row, V identity, const Step& step) {
    const hn::DFromV<V> d;
    using T = hn::TFromV<V>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const bool reverse = s.immediate[0] != 0;
    const std::int64_t lane_step = s.in[0].lane_stride;
    const std::int64_t vectors = s.lanes / kLanes, tail = s.lanes % kLanes;
    const T* in = static_cast<const T*>(s.in[0].data) + row * s.in[0].row_stride;
    T* out = static_cast<T*>(s.out) + row * s.out_row_stride;
    const auto do_tail = [&]() HWY_ATTR {
        if (tail == 0) return;
        const auto n = static_cast<std::size_t>(tail);
        const std::int64_t l = vectors * kLanes;
        const V x = lane_step == 0 ? hn::Set(d, *in) : load_first(d, in + l, n);
        store_first(step(hn::IfThenElse(hn::FirstN(d, n), x, identity)), d, out + l, n);
    };
    if (reverse) do_tail();
    for (std::int64_t i = 0; i < vectors; ++i) {
        const std::int64_t l = (reverse ? vectors - 1 - i : i) * kLanes;
        const V x = lane_step == 0 ? hn::Set(d, *in) : hn::LoadU(d, in + l);
        hn::StoreU(step(x), d, out + l);
    }
    if (!reverse) do_tail();
}

template <typename T, class F>
void over_lanes(const Strip& s) {
    using Scan = VectorScan<T, F>;
    const hn::ScalableTag<T> d;
    using V = typename Scan::V;
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    const Scan scan(reverse);
    const F f;
    const V identity = hn::Set(d, F::template kIdentity<T>);
    for (std::int64_t r = 0; r < s.rows; ++r) {
        V carry = hn::Set(d, static_cast<T*>(s.accumulator)[r]);
        const auto step = [&](V x) HWY_ATTR {
            const V prefix = scan.scanned(x), before = carry;
            carry = f(d, before, scan.total(prefix));
            return f(d, before, exclusive ? scan.next_lane(prefix) : prefix);
        };
        each_vector(s, r, identity, step);
        static_cast<T*>(s.accumulator)[r] = hn::GetLane(carry);
    }
}

/// Running logsumexp along the lanes. The carry is m + log(sum), where m is the largest element, so
/// one exponential and one logarithm per element do unless a sum is too small to be exact.
template <typename T>
void log_sum_exp_over_lanes(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr T kSmallest = sizeof(T) == 4 ? T(1e-30) : T(1e-290);
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    const VectorScan<T, Sum> sums(reverse);
    const VectorScan<T, LogAddExp> exact(reverse);
    const V lowest = hn::Set(d, LogAddExp::kIdentity<T>), smallest = hn::Set(d, kSmallest);
    for (std::int64_t r = 0; r < s.rows; ++r) {
        V m, sum;
        const auto carry_on_from = [&](V before) HWY_ATTR {
            m = before;
            sum = hn::IfThenElse(hn::Eq(before, lowest), hn::Zero(d), hn::Set(d, T(1)));
        };
        carry_on_from(hn::Set(d, static_cast<T*>(s.accumulator)[r]));
        const auto step = [&](V x) HWY_ATTR {
            V top = m, before = sum;
            if (!hn::AllFalse(d, hn::Gt(x, m))) {
                top = hn::MaxOfLanes(d, hn::Max(x, m));
                before = hn::Mul(sum, Exp()(d, hn::Sub(m, top)));
            }
            const V prefix = sums.scanned(Exp()(d, hn::Sub(x, top)));
            const V inclusive = hn::Add(before, prefix);
            const V result = exclusive ? hn::Add(before, sums.next_lane(prefix)) : inclusive;
            // Both: in an exclusive scan, only `inclusive` contains the last element.
            if (hn::AllTrue(d, hn::And(hn::Ge(result, smallest), hn::Ge(inclusive, smallest)))) {
                m = top;
                sum = sums.total(inclusive);
                return hn::Add(m, Log()(d, result));
            }
            const V carried = hn::Add(m, Log()(d, sum));
            const V scanned = exact.scanned(x);
            carry_on_from(LogAddExp()(d, carried, exact.total(scanned)));
            return LogAddExp()(d, carried, exclusive ? exact.next_lane(scanned) : scanned);
        };
        each_vector(s, r, lowest, step);
        static_cast<T*>(s.accumulator)[r] = hn::GetLane(hn::Add(m, Log()(d, sum)));
    }
}

StripFunction log_sum_exp(DType dtype, bool rows) {
    if (dtype == DType::f32)
        return rows ? over_rows<float, LogAddExp> : log_sum_exp_over_lanes<float>;
    if (dtype == DType::f64)
        return rows ? over_rows<double, LogAddExp> : log_sum_exp_over_lanes<double>;
    return nullptr;
}

struct Scans {
    template <typename T, class F>
    static StripFunction of(bool rows) {
        return rows ? over_rows<T, F> : over_lanes<T, F>;
    }
    template <class F>
    static StripFunction others(DType dtype, bool rows) {
        // Sums and products wrap around alike for signed and unsigned integers.
        if constexpr (std::is_same_v<F, Sum> || std::is_same_v<F, Prod>) {
            if (dtype == DType::u32) return for_dtype<Scans, F>(DType::i32, rows);
            if (dtype == DType::u64) return for_dtype<Scans, F>(DType::i64, rows);
        }
        return nullptr;
    }
};

}  // namespace

StripFunction scan(ir::Reduction kind, DType dtype, bool rows) {
    if (kind == ir::Reduction::logsumexp) return log_sum_exp(dtype, rows);
    return for_kind<Scans>(kind, dtype, rows);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_scan_rows(Target target, ir::Reduction kind, DType dtype){
    TW_RETURN_FROM_TARGET(target, scan(kind, dtype, true))} StripFunction
    vector_scan_lanes(Target target, ir::Reduction kind, DType dtype) {
    TW_RETURN_FROM_TARGET(target, scan(kind, dtype, false))
}

}  // namespace tilewright::cpu
#endif
