// What an element is sorted by: an unsigned integer in the order of the elements.
#pragma once

#include <cstdint>
#include <limits>

#include "tilewright/dtype.h"

namespace tilewright::cpu {

/// `Stored` is the element's bits, `Magnitude` the largest of a number without its sign (of floats)
/// and 0 otherwise: what is beyond is a NaN.
template <typename Stored, bool is_signed, std::uint64_t magnitude>
struct SortKeys {
    using Bits = Stored;
    /// Of narrow elements, too, so that there are two kinds of keys.
    using Key = std::conditional_t<sizeof(Stored) == 8, std::uint64_t, std::uint32_t>;
    static constexpr int kWidth = 8 * sizeof(Stored);
    static constexpr bool kFloat = magnitude != 0, kSigned = is_signed;
    static constexpr Key kMagnitude = static_cast<Key>(magnitude);
    static constexpr Key kSign = Key{1} << (kWidth - 1);
    static constexpr Key kLast = std::numeric_limits<Stored>::max();

    /// Equal for equal elements: zeros of both signs, and every NaN, which comes last.
    [[gnu::always_inline]] static constexpr Key key(Stored bits) {
        const Key x = bits;
        if constexpr (kFloat) {
            const Key size = x & ~kSign;
            const Key ordered = (x & kSign) != 0 ? kSign - size : x | kSign;
            return size > Key{magnitude} ? kLast : ordered;
        }
        return is_signed ? x ^ kSign : x;
    }
    /// False where other elements have the same key.
    [[gnu::always_inline]] static constexpr bool is_only(Stored bits) {
        const Key x = bits;
        return !kFloat || (x != kSign && (x & ~kSign) <= Key{magnitude});
    }
    /// The element of a key that has only one.
    [[gnu::always_inline]] static constexpr Stored element(Key key) {
        if constexpr (kFloat)
            return static_cast<Stored>(key >= kSign ? key & ~kSign : (kSign - key) | kSign);
        return static_cast<Stored>(is_signed ? key ^ kSign : key);
    }
};

/// Calls f(SortKeys<...>()) with those of a dtype.
template <typename F>
auto with_sort_keys(DType dtype, F&& f) {
    switch (dtype) {
        case DType::boolean:
        case DType::u8:
            return f(SortKeys<std::uint8_t, false, 0>());
        case DType::i8:
            return f(SortKeys<std::uint8_t, true, 0>());
        case DType::u16:
            return f(SortKeys<std::uint16_t, false, 0>());
        case DType::i16:
            return f(SortKeys<std::uint16_t, true, 0>());
        case DType::u32:
            return f(SortKeys<std::uint32_t, false, 0>());
        case DType::i32:
            return f(SortKeys<std::uint32_t, true, 0>());
        case DType::u64:
            return f(SortKeys<std::uint64_t, false, 0>());
        case DType::i64:
            return f(SortKeys<std::uint64_t, true, 0>());
        case DType::f8e4m3:
            return f(SortKeys<std::uint8_t, true, 0x7E>());
        case DType::f8e5m2:
            return f(SortKeys<std::uint8_t, true, 0x7C>());
        case DType::f16:
            return f(SortKeys<std::uint16_t, true, 0x7C00>());
        case DType::bf16:
            return f(SortKeys<std::uint16_t, true, 0x7F80>());
        case DType::f32:
            return f(SortKeys<std::uint32_t, true, 0x7F800000>());
        default:
            return f(SortKeys<std::uint64_t, true, 0x7FF0000000000000>());
    }
}

}  // namespace tilewright::cpu
