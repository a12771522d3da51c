// Machine code as text.
#pragma once

#include <string>

namespace tilewright::run {

/// The machine code of a cubin, by the CUDA toolkit's nvdisasm, with comments that name the lines
/// of its source where asked for. UserError where there is no nvdisasm.
std::string disassembled(const std::string& cubin, bool lines = false);

}  // namespace tilewright::run
