// Makes products find the maxima of their results.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where a chain only finds the maximum of the rows of a product, lane by lane, the product does it
/// while its results are in registers, and the chain is removed.
void find_maxima(Region& region, const Program& program);

}  // namespace tilewright::cpu
