// Functions on traced values that put elements in order, or take them from places along an axis.
#pragma once

#include <utility>

#include "tilewright/compiler.h"
#include "tilewright/lang/ops.h"

namespace TW_API tilewright {

// Sorting is stable in both directions: equal elements keep their order, and zeros of both signs
// are equal. A NaN is larger than every number. Negative axes count from the end. Keys and what is
// taken by place lie in scratch memory of the program meanwhile.

/// The elements along `axis` in ascending order: of any length on CPUs, and on GPUs of as many as
/// shared memory holds (UserError for more).
Tile sort(Operand x, int axis = -1, bool descending = false);
/// i32 places of the elements along `axis` in that order: take_along_axis(x, argsort(x)) is
/// sort(x).
Tile argsort(Operand x, int axis = -1, bool descending = false);
/// Keys in order, and values of their shape as the keys went.
std::pair<Tile, Tile> sort_by_key(Operand keys, Operand values, int axis = -1,
                                  bool descending = false);
/// The `count` largest elements along `axis`, the largest first, and their i32 places; among equals
/// the first comes first.
std::pair<Tile, Tile> top_k(Operand x, std::int64_t count, int axis = -1);
/// Elements of x at `places` along `axis`, as numpy.take_along_axis: the other extents are alike or
/// 1. A place outside of the axis, a negative one too, gives 0.
Tile take_along_axis(Operand x, Operand places, int axis = -1);
/// 1 where the new axis counts to the integer, else 0; integers outside of [0, depth) give zeros.
Tile one_hot(Operand places, std::int64_t depth, DType dtype = f32, int axis = -1);

}  // namespace tilewright
