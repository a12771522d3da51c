// Operands of dots come through a channel of shared memory.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Makes the loads of an iteration one channel that TMA fills, with as many slots as shared
/// memory has room for beside what the stores of the program need. Refused, with the reason, where
/// TMA cannot make a load.
void stage(Program& program);

/// The buffer and the map, known ones where they are equal, of a load that becomes a copy by TMA;
/// `name` is the buffer's. Refused where no map can have its box.
Buffer staged_buffer(const Program& program, const Instruction& load, std::string name);
Map staged_map(const Program& program, const Instruction& load, const Buffer& buffer);
/// Shared memory of a block that slots of channels may take.
std::int64_t room_for_slots(const Program& program);

/// True when a store of the program goes through shared memory and TMA: whole 16-bit
/// tiles in the layout of an accumulator.
bool is_bulk_store(const Program& program, const Instruction& store);

}  // namespace tilewright::cuda::schedule
