// The functions of scans as ops on rows.
#pragma once

#include <optional>

#include "ir/function.h"

namespace tilewright::cpu {

/// The function of an `associative_scan`, simplified, if it is a list of elementwise ops that fits
/// a CombineScan.
std::optional<ir::Function> combine_rows(const ir::Instruction& scan);

}  // namespace tilewright::cpu
