// Machine code as text.
#pragma once

#include <string>

namespace tilewright::run {

/// The machine code of a cubin, disassembled by the CUDA toolkit's nvdisasm; `lines` adds comments
/// that name source lines. UserError without nvdisasm.
std::string disassembled(const std::string& cubin, bool lines = false);

}  // namespace tilewright::run
