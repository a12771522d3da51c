// Integer tiles as linear forms of scalars and of the positions of their elements.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// offset + sum of factor * scalar + sum of step * index along an axis.
struct TileForm {
    std::int64_t offset = 0;
    std::vector<std::pair<Value, std::int64_t>> terms;  ///< each scalar once, no factor 0
    std::vector<std::int64_t> steps;                    ///< one for each axis; none for a scalar

    bool is_constant() const;
};

/// Forms of a function's i32 and i64 values, to which values may still be added. They hold if no
/// operation wraps. Unlike `AffineAnalysis`, this keeps the axes of a tile apart and proves
/// nothing.
class TileForms {
  public:
    explicit TileForms(const Function& function) : function_(function) {}

    /// Adds an instruction whose operands have been added before.
    void define(const Instruction& instruction);

    /// nullopt for a tile that is not linear. A scalar that is not linear in others is a term.
    std::optional<TileForm> form(Value value) const;

  private:
    std::optional<TileForm> made_by(const Instruction& instruction) const;
    std::optional<TileForm> broadcast(const Instruction& instruction) const;
    std::optional<TileForm> regrouped(const Instruction& instruction) const;
    std::optional<TileForm> combined(const Instruction& instruction) const;

    const Function& function_;
    std::map<Value, TileForm> forms_;
};

}  // namespace tilewright::ir
