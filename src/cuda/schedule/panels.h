// How the tiles of an epilogue are cut into panels.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

inline constexpr std::int64_t kPanelColumns = 64;

/// The cut of a product's accumulators, and of all that is computed from them, into panels of
/// kPanelColumns columns of wgmma and, where a warpgroup has more of them, kRows rows.
class PanelCut {
  public:
    explicit PanelCut(Program& program);
    /// Sets the shape of the accumulators.
    void set(const ir::Shape& accumulators);

    /// The axis of accumulators along the columns of wgmma, and how many columns they have.
    int axis() const { return axis_; }
    std::int64_t columns() const { return columns_; }
    /// Panels of rows of a warpgroup.
    std::int64_t halves() const { return halves_; }

    /// The axis of a value along which panels are cut, that of wgmma's columns; -1: none.
    int column_axis(Value value) const;
    /// That of rows, where panels are cut along them, too.
    int row_axis(Value value) const;
    bool is_cut(Value value) const { return column_axis(value) >= 0 || row_axis(value) >= 0; }

    /// A new value for a panel of this one.
    Value panel_value(Value value) const;

    /// The first column of a panel, and the first row where a warpgroup has two panels of rows.
    struct Offsets {
        Value columns;
        std::optional<Value> rows;
    };
    /// Appends the computation of the place of the panel with this number.
    Offsets offsets_of(Block& block, Value panel) const;

  private:
    Program& p_;
    int axis_;
    std::int64_t columns_ = 0, halves_ = 1;
};

/// The dimension of the Ref that an axis of the accessed tile lies along.
std::size_t accessed_dimension(const Instruction& access, int axis);

}  // namespace tilewright::cuda::schedule
