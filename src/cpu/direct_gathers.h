// Gathers that write to the array that their elements are stored to.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where all that is done with gathered elements is to store them, the gather writes them to the
/// array: a tile in between would be one more pass over memory.
void gather_into_arrays(Region& region, Program& program);

}  // namespace tilewright::cpu
