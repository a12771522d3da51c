// Vector transposes with conversion, and the interleaving of bf16 rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_transpose.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/scalar.h"
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// Reads and writes four or more elements as the vector type of the transpose.
template <typename T>
struct SameBits {
    using In = T;
    using Out = T;
    using Work = T;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const T* p) {
        return hn::LoadU(d, p);
    }
    template <class D>
    static HWY_INLINE void store(hn::Vec<D> v, D d, T* p) {
        hn::StoreU(v, d, p);
    }
};
template <DType from>
struct ToF32 {
    using In = std::uint16_t;
    using Out = float;
    using Work = float;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* p) {
        return widen_bits<from>(d, hn::LoadU(hn::Rebind<std::uint16_t, D>(), p));
    }
    template <class D>
    static HWY_INLINE void store(hn::Vec<D> v, D d, float* p) {
        hn::StoreU(v, d, p);
    }
};
struct F32ToBf16 {
    using In = float;
    using Out = std::uint16_t;
    using Work = float;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const float* p) {
        return hn::LoadU(d, p);
    }
    template <class D>
    static HWY_INLINE void store(hn::Vec<D> v, D d, std::uint16_t* p) {
        hn::StoreU(narrow_bits<DType::bf16>(d, v), hn::Rebind<std::uint16_t, D>(), p);
    }
};

/// Stores the 128-bit blocks of `v` at `out`, `out + step`, ...
template <class Access, class D>
HWY_INLINE void store_blocks(hn::Vec<D> v, D d, typename Access::Out* out, std::int64_t step) {
    if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
        const hn::Half<D> half;
        constexpr std::int64_t kBlocks = hn::MaxLanes(half) * sizeof(hn::TFromD<D>) / 16;
        store_blocks<Access>(hn::LowerHalf(half, v), half, out, step);
        store_blocks<Access>(hn::UpperHalf(half, v), half, out + kBlocks * step, step);
    } else {
        Access::store(v, d, out);
    }
}

/// Transposes `rows` rows of the lanes of one vector, from lane `l` on. log2(n) riffles of n rows
/// transpose blocks of n x n elements, as many blocks as a vector holds: the shuffles stay within
/// 128 bits on every target.
template <class Access, class D>
HWY_INLINE void transpose_lanes(D d, const Strip& s, std::int64_t l, std::int64_t rows) {
    constexpr int n = 16 / sizeof(hn::TFromD<D>);
    using V = hn::Vec<D>;
    const auto* in = static_cast<const typename Access::In*>(s.in[0].data) + l;
    auto* out = static_cast<typename Access::Out*>(s.out) + l * s.out_row_stride;
    for (std::int64_t r = 0; r < rows; r += n) {
        V x[n];
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) x[i] = Access::load(d, in + (r + i) * s.in[0].row_stride);
#pragma GCC unroll 4
        for (int step = 1; step < n; step *= 2) {
            V y[n];
#pragma GCC unroll 8
            for (int i = 0; i < n / 2; ++i) {
                y[2 * i] = hn::InterleaveLower(d, x[i], x[i + n / 2]);
                y[2 * i + 1] = hn::InterleaveUpper(d, x[i], x[i + n / 2]);
            }
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) x[i] = y[i];
        }
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i)
            store_blocks<Access>(x[i], d, out + i * s.out_row_stride + r, n * s.out_row_stride);
    }
}

template <class Access>
void transpose_blocks(const Strip& s, StripFunction scalar) {
    using Work = typename Access::Work;
    constexpr int n = 16 / sizeof(Work);
    const hn::FixedTag<Work, n> block;
    const hn::ScalableTag<Work> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    if (s.in[0].lane_stride != 1) return scalar(s);
    const auto* in = static_cast<const typename Access::In*>(s.in[0].data);
    auto* out = static_cast<typename Access::Out*>(s.out);
    const std::int64_t rows = s.rows / n * n;
    const std::int64_t lanes = s.lanes / n * n;
    std::int64_t l = 0;
    for (; l + kLanes <= lanes; l += kLanes) transpose_lanes<Access>(d, s, l, rows);
    for (; l < lanes; l += n) transpose_lanes<Access>(block, s, l, rows);
    // The remaining rows of all lanes, and the remaining lanes of the finished rows.
    const auto rest = [&](std::int64_t row, std::int64_t count, std::int64_t lane,
                          std::int64_t width) {
        if (count <= 0 || width <= 0) return;
        Strip part = s;
        part.rows = count;
        part.lanes = width;
        part.in[0].data = in + row * s.in[0].row_stride + lane;
        part.out = out + lane * s.out_row_stride + row;
        scalar(part);
    };
    rest(rows, s.rows - rows, 0, s.lanes);
    rest(0, rows, lanes, s.lanes - lanes);
}

template <typename T, DType dtype>
void transpose_same(const Strip& s) {
    transpose_blocks<SameBits<T>>(s, scalar_transpose(dtype, dtype));
}
template <DType from>
void transpose_widen(const Strip& s) {
    transpose_blocks<ToF32<from>>(s, scalar_transpose(from, DType::f32));
}
void transpose_narrow(const Strip& s) {
    transpose_blocks<F32ToBf16>(s, scalar_transpose(DType::f32, DType::bf16));
}

/// Bits of bf16 in 32-bit lanes.
template <bool kFromF32, class D32, typename T>
HWY_INLINE hn::Vec<D32> bf16_bits(D32 d32, const T* p, std::size_t n) {
    const hn::Rebind<float, D32> df;
    const hn::Rebind<std::uint16_t, D32> d16;
    const bool full = n >= hn::MaxLanes(d32);
    if constexpr (kFromF32) {
        return hn::PromoteTo(
            d32, narrow_bits<DType::bf16>(df, full ? hn::LoadU(df, p) : load_first(df, p, n)));
    } else {
        return hn::PromoteTo(d32, full ? hn::LoadU(d16, p) : load_first(d16, p, n));
    }
}

template <bool kFromF32>
void interleave_pairs(const Strip& s) {
    using T = std::conditional_t<kFromF32, float, std::uint16_t>;
    const hn::ScalableTag<std::uint32_t> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const StripOperand& in = s.in[0];
    if (in.lane_stride != 1) {
        return scalar_interleave_pairs(kFromF32 ? DType::f32 : DType::i16)(s);
    }
    for (std::int64_t r = 0; r < s.rows; r += 2) {
        const T* low = static_cast<const T*>(in.data) + r * in.row_stride;
        const T* high = low + in.row_stride;
        auto* out = static_cast<std::uint32_t*>(s.out) + r / 2 * s.out_row_stride;
        const bool paired = r + 1 < s.rows;
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
            auto pair = bf16_bits<kFromF32>(d, low + l, n);
            if (paired) {
                pair = hn::Or(pair, hn::ShiftLeft<16>(bf16_bits<kFromF32>(d, high + l, n)));
            }
            if (n == static_cast<std::size_t>(kLanes))
                hn::StoreU(pair, d, out + l);
            else
                store_first(pair, d, out + l, n);
        }
    }
}

void interleave_quads(const Strip& s) {
    const hn::ScalableTag<std::uint32_t> d;
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const StripOperand& in = s.in[0];
    if (in.lane_stride != 1) return scalar_interleave_quads()(s);
    for (std::int64_t r = 0; r < s.rows; r += 4) {
        const auto* rows = static_cast<const std::uint8_t*>(in.data) + r * in.row_stride;
        auto* out = static_cast<std::uint32_t*>(s.out) + r / 4 * s.out_row_stride;
        for (std::int64_t l = 0; l < s.lanes; l += kLanes) {
            const auto n = static_cast<std::size_t>(std::min(kLanes, s.lanes - l));
            const bool full = n == static_cast<std::size_t>(kLanes);
            const auto bytes = [&](std::int64_t row) HWY_ATTR {
                const std::uint8_t* p = rows + row * in.row_stride + l;
                return hn::PromoteTo(d, full ? hn::LoadU(d8, p) : load_first(d8, p, n));
            };
            const auto low = hn::Or(bytes(0), hn::ShiftLeft<8>(bytes(1)));
            const auto high = hn::Or(bytes(2), hn::ShiftLeft<8>(bytes(3)));
            const auto quad = hn::Or(low, hn::ShiftLeft<16>(high));
            if (full)
                hn::StoreU(quad, d, out + l);
            else
                store_first(quad, d, out + l, n);
        }
    }
}

}  // namespace

StripFunction transpose(DType in, DType out) {
    using enum DType;
    if (in == out) {
        switch (size_of(in)) {
            case 1:
                return transpose_same<std::uint8_t, u8>;
            case 2:
                return transpose_same<std::uint16_t, u16>;
            case 4:
                return transpose_same<std::uint32_t, u32>;
            default:
                return transpose_same<std::uint64_t, u64>;
        }
    }
    if (in == f16 && out == f32) return transpose_widen<f16>;
    if (in == bf16 && out == f32) return transpose_widen<bf16>;
    if (in == f32 && out == bf16) return transpose_narrow;
    return nullptr;
}

StripFunction interleave(DType in) {
    if (in == DType::f32) return interleave_pairs<true>;
    if (in == DType::bf16 || in == DType::i16) return interleave_pairs<false>;
    return nullptr;
}
StripFunction interleaved_quads() {
    return interleave_quads;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_transpose(Target target, DType in, DType out){
    TW_RETURN_FROM_TARGET(target, transpose(in, out))} StripFunction
    vector_interleave_pairs(Target target,
                            DType in){TW_RETURN_FROM_TARGET(target, interleave(in))} StripFunction
    vector_interleave_quads(Target target) {
    TW_RETURN_FROM_TARGET(target, interleaved_quads())
}

}  // namespace tilewright::cpu
#endif
