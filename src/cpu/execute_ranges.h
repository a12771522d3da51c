// Ranges of lanes in which the conditions of a fused run have the same results.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Divides rows into ranges of whole blocks.
class RangeRows {
  public:
    static constexpr std::size_t kMostTests = 8, kMostConditions = 2, kMostResults = 4;

    /// Lanes to which one run applies: the one for these results, or, where they differ within a
    /// block, the run as it is, whose number follows the others.
    struct Range {
        std::int64_t lane, lanes;
        std::size_t which;
    };

    /// `bases`: the forms of the run's tests at the first row and lane. Lanes that fill no block
    /// are in one that ends with the last lane.
    RangeRows(const FusedRun& run, const std::array<std::int64_t, kMostTests>& bases,
              std::int64_t lanes, std::int64_t block);

    /// Valid until the next call.
    std::span<const Range> of_row(std::int64_t row);

  private:
    /// Two lanes for each test, the first lane and the end.
    static constexpr std::size_t kMostCuts = 2 * kMostTests + 2;

    void cut(std::int64_t lane);
    std::size_t results(std::int64_t row, std::int64_t lane) const;
    void add(std::int64_t first_block, std::int64_t end_block, std::size_t which);

    /// A test of a condition, as small as rows need it.
    struct Test {
        ir::Op op;
        std::int64_t base, row, lane;
    };

    std::array<Test, kMostTests> tests_;               ///< those of all conditions
    std::array<std::size_t, kMostConditions> ends_{};  ///< of each condition's
    std::size_t num_tests_ = 0, num_conditions_, undecided_;
    std::int64_t lanes_, block_;
    std::array<std::int64_t, kMostCuts> cuts_{};
    std::size_t num_cuts_ = 0;
    std::array<Range, 2 * kMostCuts> ranges_{};
    std::size_t num_ranges_ = 0;
};

}  // namespace tilewright::cpu
