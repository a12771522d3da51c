// Chains on small tiles, and the scalars between them, as machine code.
#pragma once

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Inserts MachineCode before instructions on tiles of a few vectors, whose time is that of finding
/// operands and calling kernels. Needs buffers with offsets. Only for AVX-512 and AVX2; elsewhere,
/// and with TILEWRIGHT_JIT=0, nothing changes.
void compile_small_tiles(Program& program);

}  // namespace tilewright::cpu
