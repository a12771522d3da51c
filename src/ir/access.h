// Loads, stores and atomics: their operands by role, and the shape that they access.
#pragma once

#include <span>

#include "ir/function.h"

namespace tilewright::ir {

/// Operands of a load, store or atomic by role. The spans point into the instruction.
struct Access {
    Value ref;
    std::span<const Value> indices;  ///< one per dimension of the Ref
    std::span<const Value> values;   ///< store: value; cas: expected, desired; load: none
    Value mask;                      ///< none when unmasked
    Value other;                     ///< loads only; none means 0
};

bool is_access(Op op);

/// Splits the operands of an access. UserError when their number does not match the attributes.
Access access(const Instruction& instruction);

/// How the indices of an access map to the tile that it reads or writes.
struct AccessShape {
    Shape shape;  ///< of the tile
    /// For each index, the first axis of the tile that it spans, the same for all index tiles; -1
    /// for a scalar.
    std::vector<int> axis;
    int tile_rank = 0;  ///< axes spanned by the joint index tiles
};

/// UserError when the index tiles do not broadcast together or the rank exceeds 8.
AccessShape access_shape(const Function& function, const Instruction& instruction);

}  // namespace tilewright::ir
