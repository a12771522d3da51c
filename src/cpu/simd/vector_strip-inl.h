// The loop over a strip that the vector kernels share. Included once per target.
#if defined(TILEWRIGHT_CPU_VECTOR_STRIP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_STRIP_INL_H
#undef TILEWRIGHT_CPU_VECTOR_STRIP_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_STRIP_INL_H
#endif

#include <algorithm>

#include "cpu/simd/element.h"
#include "cpu/simd/kernels.h"
#include "cpu/simd/vector_lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace hn = hwy::HWY_NAMESPACE;

/// One operand along a row, as a pointer and its step per lane: 1, or 0 where one element, splatted
/// into a vector, is used for all lanes. All forms of operands thus share one loop.
template <typename T>
struct RowOperand {
    HWY_ALIGN T splat[HWY_MAX_BYTES / sizeof(T)];
    const T* at;
    std::int64_t step;

    HWY_INLINE RowOperand(const StripOperand& operand, std::int64_t row)
        : at(static_cast<const T*>(operand.data) + row * operand.row_stride),
          step(operand.lane_stride) {
        if (step == 0) {
            const hn::ScalableTag<T> d;
            hn::Store(hn::Set(d, *at), d, splat);
            at = splat;
        }
    }
};

/// The same by value: a vector store may alias anything, so members read through a reference would
/// be loaded again for every vector.
template <typename T>
struct RowCursor {
    const T* at;
    std::int64_t step;
    HWY_INLINE RowCursor(const RowOperand<T>& operand) : at(operand.at), step(operand.step) {}
};

/// A strip as the kernels walk it. Operands are not copied: copying a strip that has just been
/// written waits for its stores.
struct Walk {
    const StripOperand* in;
    void* out;
    std::int64_t out_row_stride;
    std::int64_t rows, lanes;
    bool padded;
};

/// A strip whose rows are contiguous in every operand is one long row.
HWY_INLINE Walk flattened(const Strip& s, int operands) {
    bool contiguous = s.rows > 1 && s.out_row_stride == s.lanes;
    for (int i = 0; i < operands; ++i) {
        const StripOperand& in = s.in[i];
        contiguous &= in.lane_stride == 0 ? in.row_stride == 0 : in.row_stride == s.lanes;
    }
    if (contiguous) return {s.in, s.out, s.out_row_stride, 1, s.lanes * s.rows, false};
    return {s.in, s.out, s.out_row_stride, s.rows, s.lanes, s.padded};
}

/// The rows of an operand that fit in one vector, one after the other.
template <typename T>
struct NarrowOperand {
    using D = hn::ScalableTag<T>;
    const T* at;
    std::int64_t row_stride;
    bool splat, whole;
    std::size_t lanes;

    HWY_INLINE NarrowOperand(const StripOperand& operand, std::int64_t n, bool padded)
        : at(static_cast<const T*>(operand.data)),
          row_stride(operand.row_stride),
          splat(operand.lane_stride == 0),
          whole(padded || n == static_cast<std::int64_t>(hn::MaxLanes(D()))),
          lanes(static_cast<std::size_t>(n)) {}

    HWY_INLINE hn::Vec<D> next() {
        const D d;
        const T* p = at;
        at += row_stride;
        if (splat) return hn::Set(d, *p);
        return whole ? hn::Vec<D>(hn::LoadU(d, p)) : hn::Vec<D>(load_first(d, p, lanes));
    }
};

/// store(row, f(d, in[0], in[1], ...)) for rows that fit in one vector, whose time is mostly the
/// overhead per row.
template <typename T, int kOperands, class F, class S>
HWY_INLINE void map_narrow(const Strip& s, const F& f, const S& store) {
    const hn::ScalableTag<T> d;
    const auto loop = [&](auto... operands) HWY_ATTR {
        for (std::int64_t row = 0; row < s.rows; ++row) store(row, f(d, operands.next()...));
    };
    const auto operand = [&](int k)
                             HWY_ATTR { return NarrowOperand<T>(s.in[k], s.lanes, s.padded); };
    if constexpr (kOperands == 1)
        loop(operand(0));
    else if constexpr (kOperands == 2)
        loop(operand(0), operand(1));
    else
        loop(operand(0), operand(1), operand(2));
}

/// An operand of rows of a few whole vectors.
template <typename T>
struct ShortOperand {
    using D = hn::ScalableTag<T>;
    const T* at;
    std::int64_t row_stride;
    bool splat;

    HWY_INLINE ShortOperand(const StripOperand& operand)
        : at(static_cast<const T*>(operand.data)),
          row_stride(operand.row_stride),
          splat(operand.lane_stride == 0) {}

    HWY_INLINE hn::Vec<D> at_lane(std::int64_t lane) const {
        return splat ? hn::Set(D(), *at) : hn::Vec<D>(hn::LoadU(D(), at + lane));
    }
    HWY_INLINE void next_row() { at += row_stride; }
};

/// out(r, l) = f(d, in[0](r, l), ...) for rows of a few whole vectors: what an operand is costs
/// less to ask for each vector than to prepare for each row.
template <typename T, class F, class... Operands>
HWY_INLINE void map_short(const Strip& s, const F& f, Operands... operands) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    T* out = static_cast<T*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row, out += s.out_row_stride) {
        for (std::int64_t l = 0; l < s.lanes; l += kLanes)
            hn::StoreU(f(d, operands.at_lane(l)...), d, out + l);
        (operands.next_row(), ...);
    }
}

/// out(r, l) = f(d, in[0](r, l), in[1](r, l), ...) on vectors of T, with kOperands operands of T.
template <typename T, int kOperands, class F>
void map_strip(const Strip& strip, const F& f) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    if (strip.lanes <= kLanes && strip.rows > 1) {
        T* const out = static_cast<T*>(strip.out);
        const std::int64_t stride = strip.out_row_stride;
        const auto lanes = static_cast<std::size_t>(strip.lanes);
        if (strip.padded || strip.lanes == kLanes) {
            return map_narrow<T, kOperands>(strip, f, [=](std::int64_t row, V v) HWY_ATTR {
                hn::StoreU(v, d, out + row * stride);
            });
        }
        return map_narrow<T, kOperands>(strip, f, [=](std::int64_t row, V v) HWY_ATTR {
            store_first(v, d, out + row * stride, lanes);
        });
    }
    const Walk s = flattened(strip, kOperands);
    constexpr std::int64_t kFewVectors = 4;
    if (s.rows > 1 && strip.lanes <= kFewVectors * kLanes && strip.lanes % kLanes == 0 &&
        strip.lanes > 0) {
        using Operand = ShortOperand<T>;
        if constexpr (kOperands == 1) {
            return map_short<T>(strip, f, Operand(strip.in[0]));
        } else if constexpr (kOperands == 2) {
            return map_short<T>(strip, f, Operand(strip.in[0]), Operand(strip.in[1]));
        } else {
            return map_short<T>(strip, f, Operand(strip.in[0]), Operand(strip.in[1]),
                                Operand(strip.in[2]));
        }
    }
    const std::int64_t lanes = s.padded ? (s.lanes + kLanes - 1) / kLanes * kLanes : s.lanes;
    const std::int64_t full = lanes / kLanes * kLanes;
    const auto tail = static_cast<std::size_t>(lanes - full);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        T* out = static_cast<T*>(s.out) + row * s.out_row_stride;
        const auto loop = [=](auto... in) HWY_ATTR {
            for (std::int64_t l = 0; l < full; l += kLanes) {
                hn::StoreU(f(d, V(hn::LoadU(d, in.at + l * in.step))...), d, out + l);
            }
            if (tail != 0) {
                store_first(f(d, V(load_first(d, in.at + full * in.step, tail))...), d, out + full,
                            tail);
            }
        };
        const RowOperand<T> a(s.in[0], row);
        if constexpr (kOperands == 1) {
            loop(RowCursor<T>(a));
        } else {
            const RowOperand<T> b(s.in[1], row);
            if constexpr (kOperands == 2) {
                loop(RowCursor<T>(a), RowCursor<T>(b));
            } else {
                const RowOperand<T> c(s.in[2], row);
                loop(RowCursor<T>(a), RowCursor<T>(b), RowCursor<T>(c));
            }
        }
    }
}

/// f on the strip as a StripFunction, for a stateless f.
template <typename T, int kOperands, class F>
void map_kernel(const Strip& strip) {
    map_strip<T, kOperands>(strip, F());
}

/// Lanes where the byte is not zero.
template <class D>
HWY_INLINE hn::Mask<D> mask_of_bytes(D d, hn::Vec<hn::Rebind<std::uint8_t, D>> bytes) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
        return hn::Ne(bytes, hn::Zero(d));
    } else if constexpr (sizeof(hn::TFromD<D>) == 8) {
        const hn::Rebind<std::uint32_t, D> d32;
        return hn::Ne(hn::PromoteTo(d, hn::PromoteTo(d32, bytes)), hn::Zero(d));
    } else {
        return hn::Ne(hn::PromoteTo(d, bytes), hn::Zero(d));
    }
}

/// Stores the lanes of a mask as bytes 0 or 1; only `n` lanes when given.
template <class D, class M>
HWY_INLINE void store_mask(D d, M mask, std::uint8_t* out, std::size_t n = hn::MaxLanes(D())) {
    using T = hn::TFromD<D>;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto ones = hn::BitCast(du, hn::IfThenElseZero(hn::RebindMask(du, mask), hn::Set(du, 1)));
    (void)d;
    if constexpr (sizeof(T) == 1) {
        if (n == hn::MaxLanes(D())) {
            hn::StoreU(ones, d8, out);
        } else {
            store_first(ones, d8, out, n);
        }
    } else {
        if (n == hn::MaxLanes(D())) {
            hn::StoreU(hn::TruncateTo(d8, ones), d8, out);
        } else {
            store_first(hn::TruncateTo(d8, ones), d8, out, n);
        }
    }
}

/// bool out(r, l) = f(d, in...), where f returns a mask.
template <typename T, int kOperands, class F>
void mask_kernel(const Strip& strip) {
    const hn::ScalableTag<T> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const Walk s = flattened(strip, kOperands);
    const std::int64_t full = s.lanes / kLanes * kLanes;
    const auto tail = static_cast<std::size_t>(s.lanes - full);
    const F f;
    if (s.rows > 1 && (s.lanes == kLanes || (s.padded && s.lanes < kLanes))) {
        auto* const out = static_cast<std::uint8_t*>(s.out);
        return map_narrow<T, kOperands>(strip, f, [=](std::int64_t row, auto mask) HWY_ATTR {
            store_mask(d, mask, out + row * s.out_row_stride);
        });
    }
    for (std::int64_t row = 0; row < s.rows; ++row) {
        auto* out = static_cast<std::uint8_t*>(s.out) + row * s.out_row_stride;
        const auto loop = [=](auto... in) HWY_ATTR {
            for (std::int64_t l = 0; l < full; l += kLanes) {
                store_mask(d, f(d, V(hn::LoadU(d, in.at + l * in.step))...), out + l);
            }
            if (tail != 0) {
                store_mask(d, f(d, V(load_first(d, in.at + full * in.step, tail))...), out + full,
                           tail);
            }
        };
        const RowOperand<T> a(s.in[0], row);
        if constexpr (kOperands == 1) {
            loop(RowCursor<T>(a));
        } else {
            const RowOperand<T> b(s.in[1], row);
            loop(RowCursor<T>(a), RowCursor<T>(b));
        }
    }
}

/// f32 vectors of bf16 or f16 bits, and back, rounding to nearest even.
template <DType dtype, class DF>
HWY_INLINE hn::Vec<DF> widen_bits(DF df, hn::Vec<hn::Rebind<std::uint16_t, DF>> bits) {
    if constexpr (dtype == DType::bf16) {
        const hn::RebindToUnsigned<DF> du;
        return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
    } else {
        return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
    }
}

template <DType dtype, class DF>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, DF>> narrow_bits(DF df, hn::Vec<DF> x) {
    const hn::Rebind<std::uint16_t, DF> d16;
    if constexpr (dtype == DType::bf16) {
        const hn::RebindToUnsigned<DF> du;
        const auto bits = hn::BitCast(du, x);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
        const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
        // Rounding must not carry a NaN to infinity.
        const auto nan = hn::BitCast(du, hn::VecFromMask(df, hn::IsNaN(x)));
        return hn::TruncateTo(d16, hn::Or(rounded, hn::And(nan, hn::Set(du, 0x7fff))));
    } else {
        return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
    }
}

/// n elements of bf16 or f16 to f32 and back.
template <DType dtype>
HWY_INLINE void widen_row(const std::uint16_t* in, std::int64_t n, float* out) {
    const hn::ScalableTag<float> df;
    const hn::Rebind<std::uint16_t, decltype(df)> d16;
    constexpr std::int64_t kLanes = hn::MaxLanes(df);
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        hn::StoreU(widen_bits<dtype>(df, hn::LoadU(d16, in + i)), df, out + i);
    }
    if (i < n) {
        const auto tail = static_cast<std::size_t>(n - i);
        store_first(widen_bits<dtype>(df, load_first(d16, in + i, tail)), df, out + i, tail);
    }
}

template <DType dtype>
HWY_INLINE void narrow_row(const float* in, std::int64_t n, std::uint16_t* out) {
    const hn::ScalableTag<float> df;
    const hn::Rebind<std::uint16_t, decltype(df)> d16;
    constexpr std::int64_t kLanes = hn::MaxLanes(df);
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        hn::StoreU(narrow_bits<dtype>(df, hn::LoadU(df, in + i)), d16, out + i);
    }
    if (i < n) {
        const auto tail = static_cast<std::size_t>(n - i);
        store_first(narrow_bits<dtype>(df, load_first(df, in + i, tail)), d16, out + i, tail);
    }
}

/// The f32 kernel kF on f16 or bf16 operands: part of a row at a time is widened into L1, computed,
/// and rounded. kBoolOut: the result is bool and is stored directly.
template <StripFunction kF, DType dtype, int kOperands, bool kBoolOut>
void through_f32(const Strip& strip) {
    constexpr std::int64_t kStretch = 256;
    HWY_ALIGN float buffer[kOperands + 1][kStretch];
    const Walk s = flattened(strip, kOperands);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t l = 0; l < s.lanes; l += kStretch) {
            Strip part;
            part.rows = 1;
            part.lanes = std::min(kStretch, s.lanes - l);
            for (int i = 0; i < kOperands; ++i) {
                const StripOperand& in = s.in[i];
                widen_row<dtype>(static_cast<const std::uint16_t*>(in.data) + row * in.row_stride +
                                     l * in.lane_stride,
                                 in.lane_stride == 0 ? 1 : part.lanes, buffer[i]);
                part.in[i] = {buffer[i], 0, in.lane_stride};
            }
            const std::int64_t at = row * s.out_row_stride + l;
            if constexpr (kBoolOut) {
                part.out = static_cast<std::uint8_t*>(s.out) + at;
                kF(part);
            } else {
                part.out = buffer[kOperands];
                kF(part);
                narrow_row<dtype>(buffer[kOperands], part.lanes,
                                  static_cast<std::uint16_t*>(s.out) + at);
            }
        }
    }
}

/// The kernel of F for a float dtype.
template <class F, int kOperands, bool kDouble = true>
StripFunction float_kernel(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return map_kernel<float, kOperands, F>;
        case DType::f64:
            if constexpr (kDouble)
                return map_kernel<double, kOperands, F>;
            else
                return nullptr;
        case DType::f16:
            return through_f32<map_kernel<float, kOperands, F>, DType::f16, kOperands, false>;
        case DType::bf16:
            return through_f32<map_kernel<float, kOperands, F>, DType::bf16, kOperands, false>;
        default:
            return nullptr;
    }
}

// The vector forms named in rows of ir/ops.inl. An op without one is a scalar loop.

/// F for every float.
template <class F>
struct VectorFloats {
    template <int kOperands>
    static StripFunction kernel(DType dtype) {
        return float_kernel<F, kOperands>(dtype);
    }
};
/// F in f32, for f16 and bf16, too.
template <class F>
struct VectorF32 {
    template <int kOperands>
    static StripFunction kernel(DType dtype) {
        return float_kernel<F, kOperands, false>(dtype);
    }
};
/// F for f32 and f64 only, where rounding the f32 result is wrong for narrow floats.
template <class F>
struct VectorWide {
    template <int kOperands>
    static StripFunction kernel(DType dtype) {
        return size_of(dtype) < 4 ? nullptr : float_kernel<F, kOperands>(dtype);
    }
};
struct ScalarLoop {
    template <int kOperands>
    static StripFunction kernel(DType) {
        return nullptr;
    }
};

template <class Form, int kOperands>
StripFunction vector_form(DType dtype) {
    return Form::template kernel<kOperands>(dtype);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
