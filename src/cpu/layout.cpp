// Chooses the lane axis of every tile value.
#include "cpu/layout.h"

namespace tilewright::cpu {

bool is_vector(const ir::Shape& shape) {
    int long_axes = 0;
    for (const std::int64_t dim : shape.dims()) long_axes += dim != 1;
    return long_axes <= 1;
}

int long_axis(const ir::Shape& shape) {
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        if (shape[axis] != 1) return axis;
    }
    return shape.rank() - 1;
}

std::vector<LaneChoice> assign_lanes(const ir::Function& function) {
    std::vector<LaneChoice> choices(function.num_values());
    for (std::uint32_t id = 0; id < function.num_values(); ++id) {
        const ir::Value value{id};
        if (function.is_ref(value)) continue;
        choices[id].axis = long_axis(function.type(value).shape);
    }
    return choices;
}

}  // namespace tilewright::cpu
