// Facts about a kernel's values that code generation asks for: uses, divisors, signs, places.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "ir/access.h"
#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::cuda {

/// What a call promised about one array, beyond its type.
struct RefFacts {
    /// The last dimension has stride 1; base address and all other strides are multiples of 16
    /// bytes.
    bool vectors = false;
    /// Row-major without gaps: strides follow from the extents.
    bool dense = false;
    /// TMA can address it: `vectors`, no extent is 0 or 2^30 and more, all strides are
    /// positive and below 2^40 bytes.
    bool tensor = false;
    bool operator==(const RefFacts&) const = default;
};

class Analysis {
  public:
    explicit Analysis(const ir::Function& function);

    /// The instruction that made a value; nullptr for parameters and block arguments.
    const ir::Instruction* definition(ir::Value value) const;
    const std::vector<const ir::Instruction*>& users(ir::Value value) const;
    /// The loop whose block argument a value is; nullptr for others.
    const ir::Instruction* loop_of(ir::Value value) const;

    /// A power of two that divides an integer scalar.
    std::int64_t divisor(ir::Value value) const;
    /// True when an integer scalar is known to be at least 0. Unlike ir's ranges it takes sums and
    /// products of positions not to wrap, since nothing bounds the extents that they are made of.
    bool non_negative(ir::Value value) const;
    /// Superset of an integer's values, of every element of a tile.
    ir::Interval range(ir::Value value) const;
    /// Is it a constant of this value in every element?
    bool is_constant(ir::Value value, std::uint64_t bits) const;
    const ir::Instruction* constant(ir::Value value) const;

    /// Cheap to compute again in any layout: made of constants, iotas, scalars and views of them.
    bool is_index_math(ir::Value value) const;
    /// broadcast, expand_dims, transpose, reshape: elements of another value under other names.
    static bool is_view(ir::Op op);

    /// Values made anywhere inside an instruction's blocks, block arguments included.
    static std::set<ir::Value> values_inside(const ir::Instruction& instruction);

    /// Refs that the kernel writes, by alias root.
    bool is_written(ir::Value ref) const { return written_.count(root(ref)) != 0; }
    /// One representative of all Refs that may share memory.
    ir::Value root(ir::Value ref) const;

  private:
    void visit(const ir::Block& block);
    int index_math_size(ir::Value value) const;

    const ir::Function& function_;
    std::map<ir::Value, const ir::Instruction*> definitions_, loops_;
    std::map<ir::Value, std::vector<const ir::Instruction*>> users_;
    std::set<ir::Value> written_;
    mutable std::map<ir::Value, int> index_math_;
    mutable std::map<ir::Value, ir::Interval> ranges_;
};

}  // namespace tilewright::cuda
