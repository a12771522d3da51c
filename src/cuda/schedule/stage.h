// Brings operands of dots through a channel of shared memory.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Makes the loads of an iteration one channel that TMA fills, with as many slots as fit shared
/// memory beside the buffers for the program's stores. Refused, with the reason, where TMA cannot
/// do a load.
void stage(Program& program);

/// The buffer and the map of a load that becomes a TMA copy, reusing equal ones; `name` is the
/// buffer's. Refused where no map can have its box.
Buffer staged_buffer(const Program& program, const Instruction& load, std::string name);
Map staged_map(const Program& program, const Instruction& load, const Buffer& buffer);
/// Bytes of a block's shared memory that are left for slots of channels.
std::int64_t room_for_slots(const Program& program);

/// True when a store of the program goes through shared memory and TMA: whole 16-bit tiles in the
/// layout of an accumulator.
bool is_bulk_store(const Program& program, const Instruction& store);

/// Slots with which an iteration's product stays in flight: one is read, one waited for, one
/// loaded.
inline constexpr int kSlotsInFlight = 3;
/// Slots, of a panel of 64 columns each, for a load that TMA does ahead of the epilogue.
inline constexpr int kAheadSlots = 2;

}  // namespace tilewright::cuda::schedule
