// Arithmetic of integers that the standard library leaves out.
#pragma once

#include <cstdint>

namespace tilewright {

/// a / b rounded up, for positive b and a not below 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace tilewright
