// Computes cheap values again where they are read, rather than storing whole rows of them.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where a chain over wide rows stores a value for later chains that is as cheap to recompute as to
/// read, copies the ops that make it to those chains.
void rematerialise(Region& region, Program& program);

}  // namespace tilewright::cpu
