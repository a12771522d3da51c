// Gathers along an axis, built from existing operations of the tile IR.
#pragma once

#include "ir/builder.h"

namespace tilewright::lang {

/// Elements of `a` at the places that integers say along `axis`; a place outside gives 0. The other
/// extents are those of `a`.
ir::Value elements_at(ir::Builder& builder, ir::Value a, ir::Value places, int axis);

}  // namespace tilewright::lang
