// Random choices by seed, the same on every platform.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

#include "tests/support/googletest.h"

namespace tilewright::testing {

/// std distributions differ between standard libraries; the raw generator does not.
class Random {
  public:
    explicit Random(std::uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15u + 1) {}
    std::int64_t below(std::int64_t n) {
        return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
    }
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + below(high - low + 1);
    }
    bool chance(int percent) { return below(100) < percent; }
    std::uint64_t bits() { return engine_(); }
    template <typename Items>
    auto pick(const Items& items) {
        return items[static_cast<std::size_t>(below(static_cast<std::int64_t>(std::size(items))))];
    }

  private:
    std::mt19937_64 engine_;
};

}  // namespace tilewright::testing
