// Sorting, and gathers along an axis, built from existing operations of the tile IR.
#pragma once

#include "ir/builder.h"

namespace tilewright::lang {

/// i32 places of the elements of `a` along `axis` in ascending or descending order. Equal elements
/// keep their order, zeros of both signs are equal, and a NaN is larger than every number. Runs of
/// up to 64 elements that divide the axis are ordered by counting, and runs of twice, 4 times, ...
/// the length are merged: each element finds its place among those of the other run by bisection.
/// The keys lie in scratch memory of the program meanwhile.
ir::Value sorted_places(ir::Builder& builder, ir::Value a, int axis, bool descending);

/// Elements of `a` at the places that integers say along `axis`; a place outside gives 0. The other
/// extents are those of `a`.
ir::Value elements_at(ir::Builder& builder, ir::Value a, ir::Value places, int axis);

/// i32 places of the `count` largest elements along `axis`, the largest first, among equals in
/// their order; a NaN is larger than every number. 1 <= count <= extent.
ir::Value largest_places(ir::Builder& builder, ir::Value a, std::int64_t count, int axis);

}  // namespace tilewright::lang
