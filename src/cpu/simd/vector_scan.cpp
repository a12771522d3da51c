// Vector scans over rows (lane by lane) and along the lanes of each row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_scan.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_combine-inl.h"
#include "cpu/simd/vector_log_sum_exp-inl.h"
#include "cpu/simd/vector_scan-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// Stores a vector, past the caches if it `streams`.
template <bool kStreams, class D, class V, typename T>
HWY_INLINE void put(V v, D d, T* p) {
    if constexpr (kStreams)
        hn::Stream(v, d, p);
    else
        hn::StoreU(v, d, p);
}

/// Rows from the first to the last that the scan meets.
template <typename T>
struct RowsInTurn {
    const T* in;
    std::int64_t in_step;
    T* out;
    std::int64_t out_step, count;
};

/// `kRows` rows at once while there are as many, which are removed: lane by lane, towards falling
/// addresses in reverse. The running combination is kept in memory.
template <int kRows, bool kStreams, bool kExclusive, typename T, class F>
void scan_along_rows(const Strip& s, RowsInTurn<T>& rows) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const bool reverse = s.immediate[0] != 0;
    const std::int64_t vectors = s.lanes / kLanes, tail = s.lanes % kLanes;
    const auto n = static_cast<std::size_t>(tail);
    T* const carried = static_cast<T*>(s.accumulator);
    const std::int64_t in_step = rows.in_step, out_step = rows.out_step;
    const F f;
    for (; rows.count >= kRows; rows.count -= kRows) {
        const T* const in = rows.in;
        T* const out = rows.out;
        const auto combine = [&](const auto& load, const auto& store, std::int64_t l) HWY_ATTR {
            auto now = load(carried + l);
            each<kRows>([&](int r) HWY_ATTR {
                const auto before = now;
                now = f(d, before, load(in + r * in_step + l));
                store(kExclusive ? before : now, out + r * out_step + l,
                      std::bool_constant<kStreams>());
            });
            store(now, carried + l, std::false_type());
        };
        const auto last_lanes = [&]() HWY_ATTR {
            if (tail == 0) return;
            combine([&](const T* p) HWY_ATTR { return load_first(d, p, n); },
                    [&](auto v, T* p, auto) HWY_ATTR { store_first(v, d, p, n); },
                    vectors * kLanes);
        };
        const auto vector = [&](std::int64_t l) HWY_ATTR {
            combine([&](const T* p) HWY_ATTR { return hn::LoadU(d, p); },
                    [&](auto v, T* p, auto streams)
                        HWY_ATTR { put<decltype(streams)::value>(v, d, p); },
                    l);
        };
        if (reverse) {
            last_lanes();
            for (std::int64_t l = (vectors - 1) * kLanes; l >= 0; l -= kLanes) vector(l);
        } else {
            for (std::int64_t l = 0; l < vectors * kLanes; l += kLanes) vector(l);
            last_lanes();
        }
        rows.in += kRows * in_step;
        rows.out += kRows * out_step;
    }
}

/// Lanes that fill cache lines, down all rows, past the caches; returns the lanes done. Rows are
/// prefetched, since they are far from each other.
template <bool kExclusive, typename T, class F>
std::int64_t scan_columns(const Strip& s, const RowsInTurn<T>& rows) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d), kRowsAhead = 8;
    constexpr int kVectors = 8;
    T* const carried = static_cast<T*>(s.accumulator);
    const F f;
    std::int64_t l = 0;
    for (; l + kVectors * kLanes <= s.lanes; l += kVectors * kLanes) {
        V now[kVectors];
        each<kVectors>([&](int i) HWY_ATTR { now[i] = hn::LoadU(d, carried + l + i * kLanes); });
        const T* p = rows.in + l;
        T* to = rows.out + l;
        for (std::int64_t r = 0; r < rows.count; ++r, p += rows.in_step, to += rows.out_step) {
            each<kVectors>([&](int i) HWY_ATTR {
                __builtin_prefetch(reinterpret_cast<const char*>(p + i * kLanes) +
                                   kRowsAhead * rows.in_step *
                                       static_cast<std::int64_t>(sizeof(T)));
                const V before = now[i];
                now[i] = f(d, before, hn::LoadU(d, p + i * kLanes));
                hn::Stream(kExclusive ? before : now[i], d, to + i * kLanes);
            });
        }
        each<kVectors>([&](int i) HWY_ATTR { hn::StoreU(now[i], d, carried + l + i * kLanes); });
    }
    return l;
}

/// From array to array. Memory is as fast as it can be along rows that follow each other; where
/// they are far apart, two at once make up for a part of that, and stores past the caches, which do
/// not read what they write first, for the rest.
template <bool kExclusive, typename T, class F>
void along_rows(const Strip& strip) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kElement = sizeof(T), kFewRows = 128;
    constexpr std::size_t kBytes = hn::MaxLanes(d) * sizeof(T);
    Strip s = strip;
    const bool reverse = s.immediate[0] != 0;
    const std::int64_t first = reverse ? s.rows - 1 : 0, step = reverse ? -1 : 1;
    RowsInTurn<T> rows{static_cast<const T*>(s.in[0].data) + first * s.in[0].row_stride,
                       step * s.in[0].row_stride, static_cast<T*>(s.out) + first * s.out_row_stride,
                       step * s.out_row_stride, s.rows};
    const bool aligned = (reinterpret_cast<std::uintptr_t>(rows.out) |
                          static_cast<std::uintptr_t>(rows.out_step * kElement)) %
                             kBytes ==
                         0;
    const bool streams = s.immediate[3] != 0 && aligned;
    if (s.in[0].row_stride == s.lanes && s.out_row_stride == s.lanes) {
        return streams ? scan_along_rows<1, true, kExclusive, T, F>(s, rows)
                       : scan_along_rows<1, false, kExclusive, T, F>(s, rows);
    }
    if (streams && s.rows > kFewRows) {
        const std::int64_t done = scan_columns<kExclusive, T, F>(s, rows);
        rows.in += done;
        rows.out += done;
        s.lanes -= done;
        s.accumulator = static_cast<T*>(s.accumulator) + done;
        if (s.lanes == 0) return;
    }
    streams ? scan_along_rows<2, true, kExclusive, T, F>(s, rows)
            : scan_along_rows<2, false, kExclusive, T, F>(s, rows);
    scan_along_rows<1, false, kExclusive, T, F>(s, rows);
}

/// Column by column: the running combination stays in registers over all rows.
template <bool kExclusive, typename T, class F>
void along_columns(const Strip& s) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const bool reverse = s.immediate[0] != 0;
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
                hn::StoreU(kExclusive ? a : next_a, d, to);
                hn::StoreU(kExclusive ? b : next_b, d, to + kLanes);
                hn::StoreU(kExclusive ? c : next_c, d, to + 2 * kLanes);
                hn::StoreU(kExclusive ? e : next_e, d, to + 3 * kLanes);
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
            store_first(kExclusive ? sum : next, d, to, n);
            sum = next;
        }
        store_first(sum, d, carried + l, n);
    }
}

template <bool kExclusive, typename T, class F>
void scan_over_rows(const Strip& s) {
    // What fits the caches twice needs no order.
    constexpr std::int64_t kFewElements = (std::int64_t{256} << 10) / sizeof(T);
    if (s.immediate[2] != 0 && s.in[0].lane_stride == 1 && s.rows * s.lanes > kFewElements)
        return along_rows<kExclusive, T, F>(s);
    along_columns<kExclusive, T, F>(s);
}

template <typename T, class F>
void over_rows(const Strip& s) {
    s.immediate[1] != 0 ? scan_over_rows<true, T, F>(s) : scan_over_rows<false, T, F>(s);
}

/// Elements in memory as they are combined.
template <typename T>
struct AsTheyAre {
    using Stored = T;
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static HWY_INLINE V set(const T* p) { return hn::Set(D(), *p); }
    static HWY_INLINE V load(const T* p) { return hn::LoadU(D(), p); }
    static HWY_INLINE V load(const T* p, std::size_t n) { return load_first(D(), p, n); }
    static HWY_INLINE void store(V v, T* p) { hn::StoreU(v, D(), p); }
    static HWY_INLINE void store(V v, T* p, std::size_t n) { store_first(v, D(), p, n); }
};

/// f16 or bf16 in memory, combined in f32.
template <DType dtype>
struct InF32 {
    using Stored = std::uint16_t;
    using D = hn::ScalableTag<float>;
    using V = hn::Vec<D>;
    using D16 = hn::Rebind<std::uint16_t, D>;
    static HWY_INLINE V set(const Stored* p) { return widen_bits<dtype>(D(), hn::Set(D16(), *p)); }
    static HWY_INLINE V load(const Stored* p) {
        return widen_bits<dtype>(D(), hn::LoadU(D16(), p));
    }
    static HWY_INLINE V load(const Stored* p, std::size_t n) {
        return widen_bits<dtype>(D(), load_first(D16(), p, n));
    }
    static HWY_INLINE void store(V v, Stored* p) {
        hn::StoreU(narrow_bits<dtype>(D(), v), D16(), p);
    }
    static HWY_INLINE void store(V v, Stored* p, std::size_t n) {
        store_first(narrow_bits<dtype>(D(), v), D16(), p, n);
    }
};

/// Scans a vector. Without NaN in it, maxima and minima take fewer instructions.
template <typename T, class F, bool kReverse, class V>
HWY_INLINE void scan_vector(V (&v)[1]) {
    if constexpr (requires { typename F::WithoutNaN; } && hwy::IsFloat<T>()) {
        const hn::ScalableTag<T> d;
        if (HWY_LIKELY(hn::AllFalse(d, hn::IsNaN(v[0]))))
            return VectorScan<T, typename F::WithoutNaN, kReverse>::scan(v);
    }
    VectorScan<T, F, kReverse>::scan(v);
}

/// Combines the lanes of each row, of which there may be any number.
template <typename T, class F, bool kReverse, bool kExclusive, class Elements>
void along_lanes(const Strip& s) {
    using Stored = typename Elements::Stored;
    using Scan = VectorScan<T, F, kReverse>;
    using V = typename Scan::V;
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = Scan::kLanes;
    const F f;
    const std::int64_t lane_step = s.in[0].lane_stride;
    const std::int64_t vectors = s.lanes / kLanes, tail = s.lanes % kLanes;
    const auto n = static_cast<std::size_t>(tail);
    each_row<Stored, kReverse, T>(s, [&](const Stored* in, Stored* out, T& carried) HWY_ATTR {
        // By value: a carry in memory would wait for its store.
        const auto step = [&](V x, V& before) HWY_ATTR {
            V scanned[1] = {x};
            scan_vector<T, F, kReverse>(scanned);
            const V prefix = kExclusive ? Scan::moved(scanned[0]) : scanned[0];
            const V result = f(d, before, prefix);
            before = f(d, before, Scan::total(scanned[0]));
            return result;
        };
        const auto after_tail = [&](V before) HWY_ATTR {
            if (tail == 0) return before;
            const std::int64_t l = vectors * kLanes;
            const V x = lane_step == 0 ? Elements::set(in) : Elements::load(in + l, n);
            const V identity = hn::Set(d, F::template kIdentity<T>);
            const V padded = hn::IfThenElse(hn::FirstN(d, n), x, identity);
            Elements::store(step(padded, before), out + l, n);
            return before;
        };
        V carry = hn::Set(d, carried);
        if constexpr (kReverse) carry = after_tail(carry);
        for (std::int64_t i = 0; i < vectors; ++i) {
            const std::int64_t l = (kReverse ? vectors - 1 - i : i) * kLanes;
            const V x = lane_step == 0 ? Elements::set(in) : Elements::load(in + l);
            Elements::store(step(x, carry), out + l);
        }
        if constexpr (!kReverse) carry = after_tail(carry);
        carried = hn::GetLane(carry);
    });
}

template <typename T, class F, class Elements = AsTheyAre<T>>
void over_lanes(const Strip& s) {
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    if (reverse)
        exclusive ? along_lanes<T, F, true, true, Elements>(s)
                  : along_lanes<T, F, true, false, Elements>(s);
    else
        exclusive ? along_lanes<T, F, false, true, Elements>(s)
                  : along_lanes<T, F, false, false, Elements>(s);
}

StripFunction log_sum_exp(DType dtype, bool rows) {
    if (dtype == DType::f32)
        return rows ? log_sum_exp_over_rows<float> : log_sum_exp_over_lanes<float>;
    if (dtype == DType::f64)
        return rows ? log_sum_exp_over_rows<double> : log_sum_exp_over_lanes<double>;
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

template <DType dtype>
StripFunction scan_in_f32(ir::Reduction kind) {
    switch (kind) {
        case ir::Reduction::sum:
            return over_lanes<float, Sum, InF32<dtype>>;
        case ir::Reduction::prod:
            return over_lanes<float, Prod, InF32<dtype>>;
        case ir::Reduction::max:
            return over_lanes<float, MaxOf, InF32<dtype>>;
        case ir::Reduction::min:
            return over_lanes<float, MinOf, InF32<dtype>>;
        default:
            return nullptr;
    }
}

}  // namespace

StripFunction scan_in_f32(ir::Reduction kind, DType dtype) {
    if (dtype == DType::f16) return scan_in_f32<DType::f16>(kind);
    if (dtype == DType::bf16) return scan_in_f32<DType::bf16>(kind);
    return nullptr;
}

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
    vector_scan_lanes(Target target, ir::Reduction kind, DType dtype){
        TW_RETURN_FROM_TARGET(target, scan(kind, dtype, false))} StripFunction
    vector_scan_lanes_in_f32(Target target, ir::Reduction kind, DType dtype) {
    TW_RETURN_FROM_TARGET(target, scan_in_f32(kind, dtype))
}

}  // namespace tilewright::cpu
#endif
