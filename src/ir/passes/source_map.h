// Where the values of a function come from and in which order: the facts retile walks back along.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// The instruction that gives a value, as result or as argument of one of its blocks; none for a
/// parameter of the function.
struct Definition {
    const Instruction* instruction = nullptr;
    std::size_t index = 0;  ///< among the results, or among the carries of the block
    bool is_argument = false;
    bool is_induction = false;  ///< the induction variable of a for_loop
};

/// Facts about a function that does not change while they are used.
class SourceMap {
  public:
    SourceMap(const Function& function, std::int64_t max_tile_elements);

    const Function& function() const { return function_; }
    const Definition& definition(Value value) const;
    /// True when the value, or anything it is computed from, is larger than a tile.
    bool oversized(Value value) const;
    /// True when a value of the instruction or inside its blocks is, or one of its operands.
    bool oversized(const Instruction& instruction) const;
    /// True when computing the value runs such an op.
    bool computed_by(Value value, Op op) const;

    /// A Ref that may share memory with `ref` and is written after `load` ran and before, or
    /// beside, `root`; none when the load may move there.
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
