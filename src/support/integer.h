// Integer arithmetic that the standard library lacks.
#pragma once

#include <cstdint>

namespace tilewright {

/// a / b rounded up, for a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace tilewright
