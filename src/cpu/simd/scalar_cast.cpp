// Scalar casts between all dtypes.
#include <cstring>

#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"

namespace tilewright::cpu {
namespace {

// An f64 that rounds to any narrower float exactly as the integer would: bits beyond the 53 are
// folded into one sticky bit.
template <typename T>
double to_double_sticky(T x) {
    const bool negative = x < T{0};
    std::uint64_t magnitude = negative ? -wide(x) : wide(x);
    if (magnitude >> 53 != 0) {
        const std::uint64_t lost = magnitude & 0x7ff;
        magnitude = (magnitude & ~std::uint64_t{0x7ff}) | (lost != 0 ? 0x800 : 0);
    }
    const auto result = static_cast<double>(magnitude);
    return negative ? -result : result;
}

// Narrows an f64 with a single rounding.
template <DType to>
auto narrow(double x) {
    if constexpr (to == DType::f16)
        return f64_to_f16(x);
    else if constexpr (to == DType::bf16)
        return f64_to_bf16(x);
    else if constexpr (to == DType::f8e4m3)
        return f64_to_f8e4m3(x);
    else
        return f64_to_f8e5m2(x);
}

template <DType from, DType to>
auto convert(typename Element<from>::Compute x) {
    using From = typename Element<from>::Compute;
    using To = typename Element<to>::Compute;
    constexpr bool kNarrow = is_float(to) && size_of(to) <= 2;
    if constexpr (to == DType::boolean) {
        return static_cast<std::uint8_t>(x != From{0});
    } else if constexpr (kNarrow && kIsInteger<From>) {
        return narrow<to>(to_double_sticky(x));
    } else if constexpr (kNarrow) {
        return narrow<to>(static_cast<double>(x));
    } else if constexpr (is_integer(to) && is_float(from)) {
        return truncate<To>(x);
    } else {
        return static_cast<To>(x);  // integers wrap; integers and f64 to f32/f64 round to even
    }
}

template <DType from, DType to>
void cast(const Strip& s) {
    using Out = typename Element<to>::Storage;
    auto* out = static_cast<Out*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            out[row * s.out_row_stride + lane] =
                convert<from, to>(load_element<from>(s.in[0], row, lane));
        }
    }
}

template <typename T>
void copy_bits(const Strip& s) {
    auto* out = static_cast<T*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            // memcpy: in and out are of different types.
            std::memcpy(out + row * s.out_row_stride + lane, element<T>(s.in[0], row, lane),
                        sizeof(T));
        }
    }
}

}  // namespace

StripFunction scalar_cast(DType in, DType out) {
    // The same dtype is a copy, except that bool is normalised.
    if (in == out && in != DType::boolean) return scalar_bitcast(in, out);
    return with_dtype(in, [out](auto from) {
        return with_dtype(out, [](auto to) -> StripFunction {
            return cast<decltype(from)::value, decltype(to)::value>;
        });
    });
}

StripFunction scalar_bitcast(DType in, DType out) {
    if (size_of(in) != size_of(out)) return nullptr;
    switch (size_of(in)) {
        case 1:
            return copy_bits<std::uint8_t>;
        case 2:
            return copy_bits<std::uint16_t>;
        case 4:
            return copy_bits<std::uint32_t>;
        default:
            return copy_bits<std::uint64_t>;
    }
}

}  // namespace tilewright::cpu
