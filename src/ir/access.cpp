// Splits loads, stores and atomics into their operands by role.
#include "ir/access.h"

#include "support/check.h"

namespace tilewright::ir {

bool is_access(Op op) {
    return info(op).op_class == OpClass::memory;
}

Access access(const Instruction& instruction) {
    const std::string_view op = name(instruction.op);
    TW_ASSERT(is_access(instruction.op));
    if (!std::holds_alternative<AccessAttributes>(instruction.attributes)) {
        user_error(op, "expected access attributes but got others");
    }
    const auto& attributes = instruction.get<AccessAttributes>();
    const std::span<const Value> operands = instruction.operands;
    const std::size_t num_indices = attributes.indices.size();
    const std::size_t num_values = instruction.op == Op::load         ? 0
                                   : instruction.op == Op::atomic_cas ? 2
                                                                      : 1;
    if (attributes.has_other && instruction.op != Op::load) {
        user_error(op, "expected no `other` but got one: only a load has it");
    }
    const std::size_t expected = 1 + num_indices + num_values + (attributes.has_mask ? 1 : 0) +
                                 (attributes.has_other ? 1 : 0);
    if (operands.size() != expected) {
        user_error(op, "expected {} operands (ref, {} indices, values, mask, other) but got {}",
                   expected, num_indices, operands.size());
    }
    Access result;
    result.ref = operands[0];
    result.indices = operands.subspan(1, num_indices);
    result.values = operands.subspan(1 + num_indices, num_values);
    std::size_t next = 1 + num_indices + num_values;
    if (attributes.has_mask) result.mask = operands[next++];
    if (attributes.has_other) result.other = operands[next];
    return result;
}

AccessShape access_shape(const Function& function, const Instruction& instruction) {
    const std::string_view op = name(instruction.op);
    const Access operands = access(instruction);
    const auto& indices = instruction.get<AccessAttributes>().indices;

    Shape joint;
    for (std::size_t i = 0; i < indices.size(); ++i) {
        if (indices[i].kind != Index::Kind::tile) continue;
        const Shape& shape = function.type(operands.indices[i]).shape;
        const auto next = joint_shape(joint, shape);
        if (!next) {
            user_error(op, "expected index tiles that broadcast together but got {} and {}",
                       to_string(joint), to_string(shape));
        }
        joint = *next;
    }

    AccessShape result;
    result.tile_rank = joint.rank();
    std::vector<std::int64_t> dims;
    int tile_axis = -1;
    for (const Index& index : indices) {
        if (index.kind == Index::Kind::scalar) {
            result.axis.push_back(-1);
        } else if (index.kind == Index::Kind::slice) {
            result.axis.push_back(static_cast<int>(dims.size()));
            dims.push_back(index.size);
        } else {
            if (tile_axis < 0) {
                tile_axis = static_cast<int>(dims.size());
                dims.insert(dims.end(), joint.dims().begin(), joint.dims().end());
            }
            result.axis.push_back(tile_axis);
        }
    }
    if (dims.size() > kMaxTileRank) {
        user_error(op, "expected an access of rank at most {} but got rank {}", kMaxTileRank,
                   dims.size());
    }
    result.shape = Shape(dims);
    return result;
}

}  // namespace tilewright::ir
