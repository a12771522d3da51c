// The seeds of a random test: TILEWRIGHT_TEST_SEED only, or the first TILEWRIGHT_TEST_PROGRAMS.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/support/googletest.h"

namespace tilewright::testing {

struct Seeds {
    std::uint64_t begin = 0, end = 0;
    bool normal = true;  ///< the environment sets neither
};

/// [0, count) unless the environment says otherwise.
inline Seeds seeds(std::uint64_t count) {
    if (const char* seed = std::getenv("TILEWRIGHT_TEST_SEED")) {
        const std::uint64_t first = std::stoull(seed);
        return {first, first + 1, false};
    }
    if (const char* programs = std::getenv("TILEWRIGHT_TEST_PROGRAMS"))
        return {0, std::stoull(programs), false};
    return {0, count, true};
}

}  // namespace tilewright::testing
