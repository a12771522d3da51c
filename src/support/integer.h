// Integer arithmetic that the standard library lacks.
#pragma once

#include <cstdint>

namespace tilewright {

/// a / b rounded up, for b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return a / b + (a % b > 0 ? 1 : 0);
}

}  // namespace tilewright
