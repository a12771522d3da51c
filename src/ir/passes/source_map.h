// Where a function's values are defined, and in which order: what retile needs to walk back.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// The instruction that defines a value, as a result or as an argument of one of its blocks; none
/// for a parameter of the function.
struct Definition {
    const Instruction* instruction = nullptr;
    std::size_t index = 0;  ///< among the results, or among the carries of the block
    bool is_argument = false;
    bool is_induction = false;  ///< the induction variable of a for_loop
};

/// Facts about a function, valid while it does not change.
class SourceMap {
  public:
    SourceMap(const Function& function, std::int64_t max_tile_elements);

    const Function& function() const { return function_; }
    const Definition& definition(Value value) const;
    /// True if the value, or anything that it is computed from, is larger than a tile.
    bool oversized(Value value) const;
    /// True if a result or operand of the instruction, or a value inside its blocks, is.
    bool oversized(const Instruction& instruction) const;
    /// True if computing the value involves this op.
    bool computed_by(Value value, Op op) const;

    /// True if memory that `load` reads may be written between it and `root`, or in a loop with
    /// `root`; else the load may move there.
    bool written_between(const Instruction& load, const Instruction& root) const;

  private:
    struct Site {
        const Block* block = nullptr;
        std::size_t index = 0;
        const Instruction* parent = nullptr;
    };
    void visit(const Block& block, const Instruction* parent);
    std::vector<Site> chain(const Instruction& instruction) const;

    const Function& function_;
    std::int64_t max_tile_elements_;
    std::map<Value, Definition> definitions_;
    std::unordered_map<const Instruction*, Site> sites_;
    std::map<Value, bool> oversized_;
};

}  // namespace tilewright::ir
