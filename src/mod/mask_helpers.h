// Checks of the arguments that library masks take.
#pragma once

#include <cstdint>

#include "mod/traced.h"
#include "support/check.h"

namespace tilewright::mod {

inline void at_least(const char* op, const char* what, std::int64_t value, std::int64_t least) {
    if (value < least) user_error(op, "expected {} of at least {} but got {}", what, least, value);
}

/// UserError unless the array has integers and a rank of `low` to `high`; `wanted` says so in
/// words.
inline void expect_array(const char* op, const char* wanted, const Capture& array, int low,
                         int high) {
    const Tensor& tensor = array.tensor();
    if (!is_integer(tensor.dtype()) || tensor.rank() < low || tensor.rank() > high)
        user_error(op, "expected {} but got {}", wanted, tensor.type_name());
}

inline void expect_mask(const char* op, const Mod& mask) {
    expect_kind(op, "mask", mask, Mod::Kind::mask);
}

}  // namespace tilewright::mod
