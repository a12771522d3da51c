// Running logsumexp, by one exponential and one logarithm per element. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_LOG_SUM_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_LOG_SUM_EXP_INL_H
#undef TILEWRIGHT_CPU_VECTOR_LOG_SUM_EXP_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_LOG_SUM_EXP_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/simd/vector_combine-inl.h"
#include "cpu/simd/vector_lanes-inl.h"
#include "cpu/simd/vector_math-inl.h"
#include "cpu/simd/vector_scan-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// m + log(sum), where m is the largest element so far and `sum` that of exp(x - m). All lanes are
/// equal in scans along the lanes.
template <typename T>
struct LogSumExp {
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    V m, sum;

    explicit HWY_INLINE LogSumExp(V value)
        : m(value),
          sum(hn::IfThenZeroElse(hn::Eq(value, hn::Set(D(), LogAddExp::kIdentity<T>)),
                                 hn::Set(D(), T(1)))) {}
    HWY_INLINE V value() const { return hn::Add(m, Log()(D(), sum)); }
};

/// A row of vectors, in pieces: one pass for the exponentials and one for their running sums and
/// the logarithms of those, since vectors that do not depend on each other hide latencies.
template <typename T, bool kReverse>
class LogSumExpRow {
  public:
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static constexpr std::int64_t kLanes = hn::MaxLanes(D());
    static constexpr std::int64_t kPiece = 256;  ///< elements

    LogSumExpRow(T before, bool exclusive) : exclusive_(exclusive) {
        carry_on_from(hn::Set(D(), before));
    }
    T carried() const { return hn::GetLane(state_.value()); }

    /// The next `vectors` vectors, up to a piece.
    void run(const T* in, T* out, std::int64_t vectors) {
        if (HWY_LIKELY(in_sums(in, out, vectors))) return;
        if (vectors == 1) return exactly(in, out);
        for (std::int64_t v = 0; v < vectors; ++v) {
            const std::int64_t l = (kReverse ? vectors - 1 - v : v) * kLanes;
            run(in + l, out + l, 1);
        }
    }

  private:
    void carry_on_from(V before) {
        state_ = LogSumExp<T>(before);
        excess_ = hn::Zero(D());
        reciprocal_of_unit_ = log_of_unit_ = end_of_unit_ = hn::Zero(D());
    }

    /// step(l, number) for every vector in the order of the scan, by fours and then one by one; l
    /// is the element where the first of them in this order begins.
    template <class Step>
    static HWY_INLINE void each_vector(std::int64_t vectors, const Step& step) {
        std::int64_t v = 0;
        const auto at = [&] { return (kReverse ? vectors - 1 - v : v) * kLanes; };
        for (; v + 4 <= vectors; v += 4) step(at(), std::integral_constant<int, 4>());
        for (; v < vectors; ++v) step(at(), std::integral_constant<int, 1>());
    }
    template <int kCount>
    static HWY_INLINE void load(const T* from, V (&x)[kCount]) {
        each<kCount>([&](int i) HWY_ATTR { x[i] = hn::LoadU(D(), from + i * kNext); });
    }
    template <int kCount>
    static HWY_INLINE void store(const V (&x)[kCount], T* to) {
        each<kCount>([&](int i) HWY_ATTR { hn::StoreU(x[i], D(), to + i * kNext); });
    }

    /// False, with nothing changed, where sums are too small to be exact or not finite.
    bool in_sums(const T* in, T* out, std::int64_t vectors) {
        const D d;
        V m = state_.m, before = state_.sum, excess = excess_, top = m;
        V reciprocal_of_unit = reciprocal_of_unit_, end_of_unit = end_of_unit_;
        each_vector(vectors, [&](std::int64_t l, auto count) HWY_ATTR {
            V x[count.value];
            load(in + l, x);
            each<count.value - 1>([&](int i) HWY_ATTR { x[0] = hn::Max(x[0], x[i + 1]); });
            top = hn::Max(top, x[0]);
        });
        if (!hn::AllFalse(d, hn::Gt(top, m))) {
            m = hn::MaxOfLanes(d, top);
            V factor[1] = {state_.m};
            exps_below(d, m, factor);
            before = hn::Mul(before, factor[0]);
            excess = hn::Mul(excess, factor[0]);
            // A product of 0 and infinity is NaN, which no sum is near to.
            reciprocal_of_unit = hn::Div(reciprocal_of_unit, factor[0]);
            end_of_unit = hn::Mul(end_of_unit, factor[0]);
        }
        HWY_ALIGN T terms[kPiece];
        V all = before;
        each_vector(vectors, [&](std::int64_t l, auto count) HWY_ATTR {
            V x[count.value];
            load(in + l, x);
            exps_below(d, m, x);
            store(x, terms + l);
            each<count.value - 1>([&](int i) HWY_ATTR { x[0] = hn::Add(x[0], x[i + 1]); });
            all = hn::Add(all, x[0]);
        });
        // Much larger than the exponentials that are not exact. NaN and infinities fail, too.
        const T least =
            hn::GetLane(before) + (exclusive_ ? T(0) : terms[kReverse ? vectors * kLanes - 1 : 0]);
        const V end = hn::SumOfLanes(d, hn::Sub(all, before));
        constexpr T kSmallest = sizeof(T) == 4 ? T(1e-25) : T(1e-280);
        if (!(least >= kSmallest) || !(hn::GetLane(end) < std::numeric_limits<T>::infinity()))
            return false;
        const bool near = hn::AllTrue(d, hn::Lt(hn::Add(before, end), end_of_unit));
        V added = hn::Zero(d);
        const auto sums = [&](std::int64_t l, auto count, const auto& logs) HWY_ATTR {
            V x[count.value], start[count.value];
            load(terms + l, x);
            Scan::scan(x);
            each<count.value>([&](int i) HWY_ATTR {
                start[i] = hn::Add(before, added);
                added = hn::Add(added, Scan::total(x[i]));
            });
            if (exclusive_) each<count.value>([&](int i) HWY_ATTR { x[i] = Scan::moved(x[i]); });
            each<count.value>([&](int i) HWY_ATTR { x[i] = hn::Add(x[i], start[i]); });
            logs(x);
            store(x, out + l);
        };
        if (kIsF32<D> && near) {
            each_vector(vectors, [&](std::int64_t l, auto count) HWY_ATTR {
                sums(l, count, [&](auto& x) HWY_ATTR {
                    add_logs_near(d, reciprocal_of_unit, log_of_unit_, x);
                });
            });
        } else {
            each_vector(vectors, [&](std::int64_t l, auto count) HWY_ATTR {
                sums(l, count, [&](auto& x) HWY_ATTR { add_logs(d, m, x); });
            });
        }
        // Kahan's summation: the error does not grow with the length of the row.
        const V corrected = hn::Sub(added, excess), after = hn::Add(before, corrected);
        state_.m = m;
        state_.sum = after;
        excess_ = hn::Sub(hn::Sub(after, before), corrected);
        reciprocal_of_unit_ = reciprocal_of_unit;
        end_of_unit_ = end_of_unit;
        if (kIsF32<D> && !near) {
            V log[1] = {after};
            add_logs(d, m, log);
            log_of_unit_ = log[0];
            reciprocal_of_unit_ = hn::Div(hn::Set(d, T(1)), after);
            end_of_unit_ = hn::Mul(after, hn::Set(d, T(1.5)));
        }
        return true;
    }

    void exactly(const T* in, T* out) {
        const D d;
        using Exact = VectorScan<T, LogAddExp, kReverse>;
        const V before = state_.value();
        V x[1] = {hn::LoadU(d, in)};
        Exact::scan(x);
        carry_on_from(LogAddExp()(d, before, Exact::total(x[0])));
        hn::StoreU(LogAddExp()(d, before, exclusive_ ? Exact::moved(x[0]) : x[0]), d, out);
    }

    using Scan = VectorScan<T, Sum, kReverse>;
    static constexpr std::int64_t kNext = kReverse ? -kLanes : kLanes;

    bool exclusive_;
    LogSumExp<T> state_ = LogSumExp<T>(hn::Zero(D()));
    V excess_;  ///< what rounding has added to the sum
    /// A sum and its logarithm, near which other logarithms take fewer operations.
    V reciprocal_of_unit_, log_of_unit_, end_of_unit_;
};

template <typename T, bool kReverse>
void log_sum_exp_along_lanes(const Strip& s) {
    using Row = LogSumExpRow<T, kReverse>;
    const bool splat = s.in[0].lane_stride == 0;
    const std::int64_t whole = splat ? 0 : s.lanes / Row::kPiece * Row::kPiece;
    HWY_ALIGN T piece[Row::kPiece];
    each_row<T, kReverse>(s, [&](const T* in, T* out, T& carry) HWY_ATTR {
        Row row(carry, s.immediate[1] != 0);
        // What is no whole piece is padded by lanes that come last and add nothing.
        const auto part = [&](std::int64_t first, std::int64_t count) HWY_ATTR {
            const std::int64_t vectors = (count + Row::kLanes - 1) / Row::kLanes;
            const std::int64_t padding = vectors * Row::kLanes - count;
            std::fill_n(piece, vectors * Row::kLanes, LogAddExp::kIdentity<T>);
            T* const inside = piece + (kReverse ? padding : 0);
            if (splat)
                std::fill_n(inside, count, *in);
            else
                std::copy_n(in + first, count, inside);
            row.run(piece, piece, vectors);
            std::copy_n(inside, count, out + first);
        };
        const auto parts = [&] {
            for (std::int64_t l = whole; l < s.lanes; l += Row::kPiece) {
                const std::int64_t count = std::min(Row::kPiece, s.lanes - l);
                part(kReverse ? s.lanes - (l - whole) - count : l, count);
            }
        };
        if (kReverse) parts();
        for (std::int64_t l = 0; l < whole; l += Row::kPiece) {
            const std::int64_t at = kReverse ? whole - Row::kPiece - l : l;
            row.run(in + at, out + at, Row::kPiece / Row::kLanes);
        }
        if (!kReverse) parts();
        carry = row.carried();
    });
}

template <typename T>
void log_sum_exp_over_lanes(const Strip& s) {
    s.immediate[0] != 0 ? log_sum_exp_along_lanes<T, true>(s)
                        : log_sum_exp_along_lanes<T, false>(s);
}

/// Column by column.
template <typename T>
void log_sum_exp_over_rows(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    const std::int64_t first = reverse ? s.rows - 1 : 0, step = reverse ? -1 : 1;
    const std::int64_t in_step = step * s.in[0].row_stride, out_step = step * s.out_row_stride;
    const std::int64_t lane_step = s.in[0].lane_stride;
    const T* const in = static_cast<const T*>(s.in[0].data) + first * s.in[0].row_stride;
    T* const out = static_cast<T*>(s.out) + first * s.out_row_stride;
    T* const carried = static_cast<T*>(s.accumulator);
    // Four vectors side by side, or the first n lanes of one.
    const auto columns = [&](std::int64_t l, auto count, std::size_t n) HWY_ATTR {
        constexpr int kCount = count.value;
        const auto load = [&](const T* from, V(&x)[kCount]) HWY_ATTR {
            each<kCount>([&](int i) HWY_ATTR {
                x[i] = kCount > 1 ? hn::LoadU(d, from + i * kLanes) : load_first(d, from, n);
            });
        };
        const auto store = [&](const V(&x)[kCount], T* to) HWY_ATTR {
            each<kCount>([&](int i) HWY_ATTR {
                kCount > 1 ? hn::StoreU(x[i], d, to + i * kLanes) : store_first(x[i], d, to, n);
            });
        };
        V result[kCount], m[kCount], sum[kCount];
        const auto carry_on = [&]() HWY_ATTR {
            each<kCount>([&](int i) HWY_ATTR {
                const LogSumExp<T> state(result[i]);
                m[i] = state.m;
                sum[i] = state.sum;
            });
        };
        load(carried + l, result);
        carry_on();
        const T* p = in + l * lane_step;
        T* to = out + l;
        for (std::int64_t r = 0; r < s.rows; ++r, p += in_step, to += out_step) {
            V x[kCount], e[kCount];
            if (lane_step == 0)
                each<kCount>([&](int i) HWY_ATTR { x[i] = hn::Set(d, *p); });
            else
                load(p, x);
            if (exclusive) store(result, to);
            // Of m and x, the greater is the new m, and the other one adds exp(-|x - m|).
            auto numbers = hn::Eq(m[0], m[0]);
            each<kCount>([&](int i) HWY_ATTR {
                e[i] = hn::Neg(hn::Abs(hn::Sub(x[i], m[i])));
                numbers = hn::And(numbers, hn::Eq(e[i], e[i]));
            });
            if (HWY_LIKELY(hn::AllTrue(d, numbers))) {
                exps_below(d, hn::Zero(d), e);
                each<kCount>([&](int i) HWY_ATTR {
                    const V with_x = hn::MulAdd(sum[i], e[i], hn::Set(d, T(1)));
                    sum[i] = hn::IfThenElse(hn::Gt(x[i], m[i]), with_x, hn::Add(sum[i], e[i]));
                    m[i] = hn::Max(m[i], x[i]);
                    V log[1] = {sum[i]};
                    add_logs(d, m[i], log);
                    result[i] = log[0];
                });
            } else {  // NaN, or equal infinities
                each<kCount>([&](int i) HWY_ATTR { result[i] = LogAddExp()(d, result[i], x[i]); });
                carry_on();
            }
            if (!exclusive) store(result, to);
        }
        store(result, carried + l);
    };
    std::int64_t l = 0;
    for (; l + 4 * kLanes <= s.lanes; l += 4 * kLanes)
        columns(l, std::integral_constant<int, 4>(), 0);
    for (; l < s.lanes; l += kLanes) {
        const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
        columns(l, std::integral_constant<int, 1>(), n);
    }
}

}  // namespace
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
