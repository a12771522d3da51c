// Element types of tiles and tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// Type of one element. `boolean` takes one byte in memory, 0 or 1 (any non-zero byte reads as
/// true).
enum class DType : std::uint8_t {
    boolean,
    i8,
    u8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    f16,   ///< IEEE binary16
    bf16,  ///< bfloat16: the upper half of an f32
    f32,
    f64,
    f8e4m3,  ///< OCP FP8 E4M3 (no infinities, NaN = 0x7f/0xff; overflow casts to NaN)
    f8e5m2,  ///< OCP FP8 E5M2 (IEEE-like)
};

inline constexpr int kNumDTypes = 15;

inline constexpr DType boolean = DType::boolean;
inline constexpr DType i8 = DType::i8;
inline constexpr DType u8 = DType::u8;
inline constexpr DType i16 = DType::i16;
inline constexpr DType u16 = DType::u16;
inline constexpr DType i32 = DType::i32;
inline constexpr DType u32 = DType::u32;
inline constexpr DType i64 = DType::i64;
inline constexpr DType u64 = DType::u64;
inline constexpr DType f16 = DType::f16;
inline constexpr DType bf16 = DType::bf16;
inline constexpr DType f32 = DType::f32;
inline constexpr DType f64 = DType::f64;
inline constexpr DType f8e4m3 = DType::f8e4m3;
inline constexpr DType f8e5m2 = DType::f8e5m2;

namespace detail {
// Outside the function, where every call would build the table again.
inline constexpr int kSizes[kNumDTypes] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1};
}  // namespace detail

/// Bytes of one element in memory.
constexpr int size_of(DType type) {
    return detail::kSizes[static_cast<int>(type)];
}

constexpr bool is_float(DType type) {
    return type >= DType::f16;
}
constexpr bool is_integer(DType type) {
    return type >= DType::i8 && type <= DType::u64;
}
constexpr bool is_signed(DType type) {
    return type == DType::i8 || type == DType::i16 || type == DType::i32 || type == DType::i64 ||
           is_float(type);
}

/// The name in text: "bool", "i32", "bf16", ...
std::string_view name(DType type);

/// Inverse of `name`; nullopt for an unknown name.
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace tilewright
