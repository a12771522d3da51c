// Places tile buffers, scratch and strip temporaries in the arena of a thread.
#pragma once

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Gives every buffer its arena offset.
void assign_memory(Program& program);

}  // namespace tilewright::cpu
