// Gathers that do what is done with their elements, without a tile in between.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where all that is done with gathered elements is to store them, the gather writes them to the
/// array: a tile in between would be one more pass over memory.
void gather_into_arrays(Region& region, Program& program);

/// Where gathered elements are multiplied and summed along rows, as in a product with a sparse
/// matrix, the gather makes the sums: loads of elements then overlap with those of the factors.
void sum_gathers(Region& region, Program& program);

}  // namespace tilewright::cpu
