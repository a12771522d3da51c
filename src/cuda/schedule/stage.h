// Operands of dots come through a channel of shared memory.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Makes the loads of a round one channel that TMA fills, with as many slots as shared
/// memory has room for beside what the stores of the program need. Refused, with the reason, where
/// TMA cannot make a load.
void stage(Program& program);

/// True when a store of the program goes through shared memory and TMA: whole 16-bit
/// tiles in the layout of an accumulator.
bool is_bulk_store(const Program& program, const Instruction& store);

}  // namespace tilewright::cuda::schedule
