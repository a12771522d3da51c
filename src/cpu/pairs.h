// Makes strip chains write the pairs of rows that dots of bf16 read.
#pragma once

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Where an op of a chain makes a tile only for one Interleave and can round it to bf16, it writes
/// the pairs itself and the Interleave is removed.
void write_pairs(Region& region, const Program& program);

}  // namespace tilewright::cpu
