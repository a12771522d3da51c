// Functions on traced values that sort elements or gather them along an axis.
#pragma once

#include <utility>

#include "tilewright/compiler.h"
#include "tilewright/lang/ops.h"

namespace TW_API tilewright {

// Sorting is stable in both directions: equal elements keep their order, and zeros of both signs
// are equal. A NaN is larger than every number. Negative axes count from the end. Keys, and tiles
// that are gathered from, are kept in the program's scratch memory meanwhile.

/// The elements along `axis` in ascending order: of any length on CPUs, and on GPUs of as many as
/// shared memory holds (UserError for more).
Tile sort(Operand x, int axis = -1, bool descending = false);
/// i32 indices of the elements along `axis` in that order: take_along_axis(x, argsort(x)) is
/// sort(x).
Tile argsort(Operand x, int axis = -1, bool descending = false);
/// The sorted keys, and the values, of the same shape, in the order of their keys.
std::pair<Tile, Tile> sort_by_key(Operand keys, Operand values, int axis = -1,
                                  bool descending = false);
/// The `count` largest elements along `axis`, largest first, and their i32 indices; equal elements
/// keep their order.
std::pair<Tile, Tile> top_k(Operand x, std::int64_t count, int axis = -1);
/// Elements of x at the indices `places` along `axis`, like numpy.take_along_axis: other extents
/// are equal or 1. An index outside the axis, negative ones included, gives 0.
Tile take_along_axis(Operand x, Operand places, int axis = -1);
/// 1 where the index along the new axis equals the integer, else 0; integers outside [0, depth)
/// give all zeros.
Tile one_hot(Operand places, std::int64_t depth, DType dtype = f32, int axis = -1);

}  // namespace tilewright
