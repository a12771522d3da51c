// Scans: of a kind of reduction, and with a function of the user's.
#pragma once

#include <string>

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

void lower_scan(Lowering& cx, const ir::Instruction& made);
void lower_associative_scan(Lowering& cx, const ir::Instruction& made);
/// Why the function of an `associative_scan` has no text; empty: it has one.
std::string no_combine_text(const ir::Instruction& scan);

}  // namespace tilewright::cuda
