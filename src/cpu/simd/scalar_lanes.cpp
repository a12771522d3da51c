// Scalar reductions, interleaved rows and transposes.
#include <algorithm>
#include <cstring>

#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"

namespace tilewright::cpu {
namespace {

template <ir::Reduction kind, typename T>
T combine(T a, T b) {
    using enum ir::Reduction;
    if constexpr (kind == sum)
        return apply<ir::Op::add>(a, b);
    else if constexpr (kind == prod)
        return apply<ir::Op::mul>(a, b);
    else if constexpr (kind == max)
        return apply<ir::Op::max>(a, b);
    else if constexpr (kind == min)
        return apply<ir::Op::min>(a, b);
    else if constexpr (kind == any)
        return a || b;
    else if constexpr (kind == logsumexp)
        return ir::log_add_exp(a, b);
    else
        return a && b;
}

/// Reductions of narrow floats accumulate in f32.
constexpr DType accumulator_of(DType dtype) {
    return is_float(dtype) && size_of(dtype) <= 2 ? DType::f32 : dtype;
}

template <ir::Reduction kind, DType dtype, bool over_rows>
void reduce(const Strip& s) {
    using Accumulator = Element<accumulator_of(dtype)>;
    auto* out = static_cast<typename Accumulator::Storage*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            auto& slot = out[over_rows ? lane : row * s.out_row_stride];
            slot = Accumulator::store(
                combine<kind>(Accumulator::load(slot), load_element<dtype>(s.in[0], row, lane)));
        }
    }
}

template <bool over_rows>
StripFunction find_reduce(ir::Reduction kind, DType dtype) {
    using enum ir::Reduction;
    return with_dtype(dtype, [kind](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if constexpr (kIn == DType::boolean) {
            if (kind == any) return reduce<any, kIn, over_rows>;
            if (kind == all) return reduce<all, kIn, over_rows>;
        } else {
            if (kind == sum) return reduce<sum, kIn, over_rows>;
            if (kind == prod) return reduce<prod, kIn, over_rows>;
        }
        if (kind == max) return reduce<max, kIn, over_rows>;
        if (kind == min) return reduce<min, kIn, over_rows>;
        return nullptr;
    });
}

template <ir::Reduction kind, DType dtype, bool over_rows>
void scan(const Strip& s) {
    using E = Element<dtype>;
    using Storage = typename E::Storage;
    const bool reverse = s.immediate[0] != 0, exclusive = s.immediate[1] != 0;
    auto* carried = static_cast<Storage*>(s.accumulator);
    const std::int64_t steps = over_rows ? s.rows : s.lanes, lines = over_rows ? s.lanes : s.rows;
    const auto along = [&](std::int64_t line, std::int64_t step) {
        const std::int64_t at = reverse ? steps - 1 - step : step;
        const std::int64_t row = over_rows ? at : line, lane = over_rows ? line : at;
        Storage& carry = carried[line];
        const Storage before = carry;
        carry = E::store(combine<kind>(E::load(before), load_element<dtype>(s.in[0], row, lane)));
        static_cast<Storage*>(s.out)[row * s.out_row_stride + lane] = exclusive ? before : carry;
    };
    if constexpr (over_rows) {
        for (std::int64_t step = 0; step < steps; ++step)
            for (std::int64_t line = 0; line < lines; ++line) along(line, step);
    } else {
        for (std::int64_t line = 0; line < lines; ++line)
            for (std::int64_t step = 0; step < steps; ++step) along(line, step);
    }
}

template <bool over_rows>
StripFunction find_scan(ir::Reduction kind, DType dtype) {
    using enum ir::Reduction;
    return with_dtype(dtype, [kind](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if constexpr (kIn == DType::boolean) {
            if (kind == any) return scan<any, kIn, over_rows>;
            if (kind == all) return scan<all, kIn, over_rows>;
        } else {
            if (kind == sum) return scan<sum, kIn, over_rows>;
            if (kind == prod) return scan<prod, kIn, over_rows>;
        }
        if constexpr (kIn == DType::f32 || kIn == DType::f64) {
            if (kind == logsumexp) return scan<logsumexp, kIn, over_rows>;
        }
        if (kind == max) return scan<max, kIn, over_rows>;
        if (kind == min) return scan<min, kIn, over_rows>;
        return nullptr;
    });
}

// True when `x` replaces `best`, the best so far: strictly better, or the first NaN.
template <bool maximum, typename T>
bool beats(T x, T best) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(x)) return !std::isnan(best);
    }
    return maximum ? x > best : x < best;
}

template <bool maximum, DType dtype, bool over_rows>
void arg_reduce(const Strip& s) {
    auto* best = static_cast<typename Element<dtype>::Storage*>(s.out);
    auto* index = static_cast<std::int32_t*>(s.accumulator);
    const auto first = static_cast<std::int64_t>(s.immediate[0]);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            const std::int64_t slot = over_rows ? lane : row * s.out_row_stride;
            const auto x = load_element<dtype>(s.in[0], row, lane);
            if (index[slot] < 0 || beats<maximum>(x, Element<dtype>::load(best[slot]))) {
                best[slot] = Element<dtype>::store(x);
                index[slot] = static_cast<std::int32_t>(first + (over_rows ? row : lane));
            }
        }
    }
}

template <bool over_rows>
StripFunction find_arg_reduce(ir::Reduction kind, DType dtype) {
    return with_dtype(dtype, [kind](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if (kind == ir::Reduction::argmax) return arg_reduce<true, kIn, over_rows>;
        if (kind == ir::Reduction::argmin) return arg_reduce<false, kIn, over_rows>;
        return nullptr;
    });
}

template <typename T, bool masked>
void store(const Strip& s) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
        T* out = static_cast<T*>(s.out) + row * s.out_row_stride;
        const T* in = element<T>(s.in[0], row, 0);
        if constexpr (masked) {
            for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
                if (*element<std::uint8_t>(s.in[1], row, lane) == 0) continue;
                out[lane] = in[lane * s.in[0].lane_stride];
            }
        } else if (s.in[0].lane_stride == 0) {
            std::fill_n(out, s.lanes, *in);
        } else {
            std::memmove(out, in, static_cast<std::size_t>(s.lanes) * sizeof(T));
        }
    }
}

template <bool masked>
StripFunction find_store(DType dtype) {
    switch (size_of(dtype)) {
        case 1:
            return store<std::uint8_t, masked>;
        case 2:
            return store<std::uint16_t, masked>;
        case 4:
            return store<std::uint32_t, masked>;
        default:
            return store<std::uint64_t, masked>;
    }
}

template <DType in>
void interleave_pairs(const Strip& s) {
    auto* out = static_cast<std::uint16_t*>(s.out);
    const auto at = [&](std::int64_t row, std::int64_t lane) -> std::uint16_t {
        return row < s.rows ? f32_to_bf16(load_element<in>(s.in[0], row, lane)) : 0;
    };
    for (std::int64_t row = 0; row < s.rows; row += 2) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            std::uint16_t* pair = out + (row / 2 * s.out_row_stride + lane) * 2;
            pair[0] = at(row, lane);
            pair[1] = at(row + 1, lane);
        }
    }
}

/// Combines groups of `count` rows of T into rows of 32-bit words.
template <typename T>
void interleave_bits(const Strip& s) {
    constexpr std::int64_t kCount = 4 / sizeof(T);
    auto* out = static_cast<T*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            out[(row / kCount * s.out_row_stride + lane) * kCount + row % kCount] =
                *element<T>(s.in[0], row, lane);
        }
    }
}

template <typename T>
void transpose_bits(const Strip& s) {
    auto* out = static_cast<T*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            out[lane * s.out_row_stride + row] = *element<T>(s.in[0], row, lane);
        }
    }
}

template <DType in, DType out_dtype>
void transpose_convert(const Strip& s) {
    auto* out = static_cast<typename Element<out_dtype>::Storage*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            out[lane * s.out_row_stride + row] =
                Element<out_dtype>::store(load_element<in>(s.in[0], row, lane));
        }
    }
}

}  // namespace

StripFunction scalar_reduce_rows(ir::Reduction kind, DType dtype) {
    return find_reduce<true>(kind, dtype);
}
StripFunction scalar_reduce_lanes(ir::Reduction kind, DType dtype) {
    return find_reduce<false>(kind, dtype);
}
StripFunction scalar_scan_rows(ir::Reduction kind, DType dtype) {
    return find_scan<true>(kind, dtype);
}
StripFunction scalar_scan_lanes(ir::Reduction kind, DType dtype) {
    return find_scan<false>(kind, dtype);
}
StripFunction scalar_arg_reduce_rows(ir::Reduction kind, DType dtype) {
    return find_arg_reduce<true>(kind, dtype);
}
StripFunction scalar_arg_reduce_lanes(ir::Reduction kind, DType dtype) {
    return find_arg_reduce<false>(kind, dtype);
}

StripFunction scalar_store(DType dtype, bool masked) {
    return masked ? find_store<true>(dtype) : find_store<false>(dtype);
}

StripFunction scalar_interleave_pairs(DType in) {
    if (in == DType::f32) return interleave_pairs<DType::f32>;
    if (in == DType::bf16) return interleave_pairs<DType::bf16>;
    if (in == DType::i16) return interleave_bits<std::uint16_t>;
    return nullptr;
}
StripFunction scalar_interleave_quads() {
    return interleave_bits<std::uint8_t>;
}

StripFunction scalar_transpose(DType in, DType out) {
    using enum DType;
    if (in == out) {
        switch (size_of(in)) {
            case 1:
                return transpose_bits<std::uint8_t>;
            case 2:
                return transpose_bits<std::uint16_t>;
            case 4:
                return transpose_bits<std::uint32_t>;
            default:
                return transpose_bits<std::uint64_t>;
        }
    }
    if (in == f16 && out == f32) return transpose_convert<f16, f32>;
    if (in == bf16 && out == f32) return transpose_convert<bf16, f32>;
    if (in == f32 && out == bf16) return transpose_convert<f32, bf16>;
    if (in == f16 && out == bf16) return transpose_convert<f16, bf16>;
    return nullptr;
}

}  // namespace tilewright::cpu
