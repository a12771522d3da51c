// Computes cheap values again where they are read, rather than keeping whole rows of them.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where a chain over wide rows keeps a value for later chains that costs no more to compute again
/// than to read, copies the ops that make it to those chains.
void rematerialise(Region& region, Program& program);

}  // namespace tilewright::cpu
