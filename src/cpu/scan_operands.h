// What the ways to scan with the user's function share: the operands and results of a scan, copies
// of pieces of their rows, and the function applied to whole rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/resolve.h"

namespace tilewright::cpu {

/// Rows of one value, whose lanes follow each other.
struct Rows {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;  ///< from one row to the next

    Rows moved(std::int64_t rows) const { return {data + rows * bytes, bytes}; }
    Rows back() const { return {data, -bytes}; }
};
using AllRows = std::array<Rows, CombineScan::kMaxValues>;

/// One value of the tuples that are scanned: where it is read and stored, and memory to work in.
struct ScanValue {
    Resolved in, out;
    bool wanted = false, carried = false, streams = false;
    std::int64_t element = 4;
    // Work memory, in elements, with the constants of CombineScan.
    std::byte* rows = nullptr;     ///< kSteps + 2 rows of kSegments, or as many as fit
    std::byte* totals = nullptr;   ///< two times three rows of kSegments
    std::byte* line = nullptr;     ///< kLineElements
    std::byte* segment = nullptr;  ///< kSteps
    StripFunction transpose, stream;

    Rows row(std::int64_t r) const {
        return {rows + r * CombineScan::kSegments * element, CombineScan::kSegments * element};
    }
};

/// A scan while it runs, without the order in which rows are combined.
class ScanOperands {
  protected:
    ScanOperands(Frame& frame, const CombineScan& scan);

    /// out = what the function makes of `before` and `after`, row by row, so that a row may be
    /// before the next one. `out` may be `after`; only if it is not, lanes may be done twice.
    void combine(const Chain& chain, const AllRows& before, const AllRows& after,
                 const AllRows& out, std::int64_t rows, std::int64_t lanes, bool in_place,
                 std::int64_t rows_ahead = 0) const;

    /// The rows that `place` gives for each value.
    template <typename PlaceOf>
    AllRows each(PlaceOf&& place) const {
        AllRows result;
        for (std::size_t i = 0; i < n_; ++i) result[i] = place(values_[i]);
        return result;
    }

    // ---- Pieces of rows in memory.

    /// Do `count` lanes of a row follow each other in memory?
    bool follows(const Resolved& place, std::int64_t element, std::int64_t lane,
                 std::int64_t count) const {
        return place.panel_bytes == scan_.width * place.lane_stride * element ||
               lane / scan_.width == (lane + count - 1) / scan_.width;
    }
    /// The address of an element.
    std::byte* at(const Resolved& place, std::int64_t element, std::int64_t row,
                  std::int64_t lane) const {
        return place.at(lane / scan_.width, row) + lane % scan_.width * place.lane_stride * element;
    }

    /// Copies lanes of a row to `to`.
    void gather(const ScanValue& value, std::int64_t row, std::int64_t lane, std::int64_t count,
                std::byte* to) const;
    /// Copies lanes from `from` to a row of the results.
    void scatter(const ScanValue& value, std::int64_t row, std::int64_t lane, std::int64_t count,
                 const std::byte* from) const;
    /// Copies lanes to a place in the results, past the caches if they go there.
    static void store(const ScanValue& value, std::byte* to, const std::byte* from,
                      std::int64_t lanes);
    /// `rows` x `lanes` elements become `lanes` x `rows`; strides are in elements.
    static void transpose(const ScanValue& value, std::int64_t rows, std::int64_t lanes,
                          const std::byte* from, std::int64_t from_stride, std::byte* to,
                          std::int64_t to_stride);

    Frame& frame_;
    const CombineScan& scan_;
    std::size_t n_;  ///< values of the tuple that is scanned
    std::array<ScanValue, CombineScan::kMaxValues> values_;

  private:
    template <typename Place>
    void run_fused(const Chain& chain, const FusedRun& run, const Place& place, std::int64_t rows,
                   std::int64_t lanes, std::int64_t rows_ahead) const;
    template <typename Place>
    void run_ops(const Chain& chain, const Place& place, std::int64_t row, std::int64_t lane,
                 std::int64_t lanes) const;

    std::byte* temporaries_ = nullptr;  ///< of the function, op by op
};

}  // namespace tilewright::cpu
