// Finds products whose results are read in part, because a mask hides the rest.
#pragma once

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Sets Dot::unread where a select replaces elements of the result, by comparisons of positions,
/// before anything reads them. Called before buffers share memory.
void find_unread(Program& program);

}  // namespace tilewright::cpu
