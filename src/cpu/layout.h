// Chooses the lane axis of every tile value.
#pragma once

#include <vector>

#include "cpu/bytecode.h"
#include "ir/function.h"

namespace tilewright::cpu {

/// How a tile value is stored: panels of `width` lanes along `axis`.
struct LaneChoice {
    int axis = 0;
    std::int64_t width = kPanelLanes;
    bool operator==(const LaneChoice&) const = default;
};

/// True when at most one axis has more than one element: storage is the same whatever the lane
/// axis.
bool is_vector(const ir::Shape& shape);

/// The axis with more than one element of a vector; the last axis when there is none, -1 for rank
/// 0.
int long_axis(const ir::Shape& shape);

/// One choice per value id; scalars and Refs get the default.
std::vector<LaneChoice> assign_lanes(const ir::Function& function);

}  // namespace tilewright::cpu
