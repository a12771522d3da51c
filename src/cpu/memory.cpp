// Lanes of an access: from index operands to elements of an array.
#include "cpu/memory.h"

#include "ir/access.h"

namespace tilewright::cpu {

Lanes::Lanes(const ir::Function& function, const ir::Instruction& instruction, const Memory& memory,
             std::span<const TileValue* const> indices)
    : extents_(memory.extents), strides_(memory.strides) {
    const ir::AccessShape access_shape = ir::access_shape(function, instruction);
    const auto& attributes = instruction.get<ir::AccessAttributes>();
    shape_ = access_shape.shape;
    for (std::size_t d = 0; d < indices.size(); ++d) {
        const ir::Index& index = attributes.indices[d];
        const int first = access_shape.axis[d];
        Dimension dimension{index.kind, *indices[d], {}};
        if (index.kind == ir::Index::Kind::slice) {
            dimension.step[first] = index.stride;
        } else if (index.kind == ir::Index::Kind::tile) {
            const ir::Shape& tile = indices[d]->type.shape;
            std::int64_t stride = 1;
            for (int axis = tile.rank() - 1; axis >= 0; --axis) {
                // An axis of extent 1 is repeated along the joint axis.
                dimension.step[first + axis] = tile[axis] == 1 ? 0 : stride;
                stride *= tile[axis];
            }
        }
        dimensions_.push_back(std::move(dimension));
    }
}

Lanes::Lane Lanes::lane(std::int64_t number) const {
    std::array<std::int64_t, ir::kMaxTileRank> at{};
    for (int axis = shape_.rank() - 1; axis >= 0; --axis) {
        at[axis] = number % shape_[axis];
        number /= shape_[axis];
    }
    Lane lane;
    for (std::size_t d = 0; d < dimensions_.size(); ++d) {
        const Dimension& dimension = dimensions_[d];
        std::int64_t steps = 0;
        for (std::size_t axis = 0; axis < at.size(); ++axis)
            steps += at[axis] * dimension.step[axis];
        const bool tile = dimension.kind == ir::Index::Kind::tile;
        const std::size_t element = tile ? steps : 0;
        std::int64_t index = static_cast<std::int64_t>(dimension.operand.bits[element]);
        bool overflow = false;
        if (!tile) overflow = __builtin_add_overflow(index, steps, &index);
        lane.index[d] = index;
        lane.inside = lane.inside && !overflow && index >= 0 && index < extents_[d];
        if (lane.inside) lane.offset += index * strides_[d];
        if (lane.poison == 0) lane.poison = dimension.operand.poison_at(element);
    }
    return lane;
}

}  // namespace tilewright::cpu
