// Names of element types.
#include "tilewright/dtype.h"

#include <array>

namespace tilewright {
namespace {
constexpr std::array<std::string_view, kNumDTypes> kNames = {
    "bool", "i8",  "u8",   "i16", "u16", "i32",    "u32",   "i64",
    "u64",  "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"};
}  // namespace

std::string_view name(DType type) {
    return kNames[static_cast<std::size_t>(type)];
}

std::optional<DType> parse_dtype(std::string_view text) {
    for (int i = 0; i < kNumDTypes; ++i) {
        if (kNames[i] == text) return static_cast<DType>(i);
    }
    return std::nullopt;
}

}  // namespace tilewright
