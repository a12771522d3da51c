// The functions of scans as ops on rows.
#pragma once

#include <optional>
#include <string>

#include "ir/function.h"

namespace tilewright::cpu {

/// Why the function of a scan is no list of ops on rows, and where.
struct NoRows {
    std::string reason;
    ir::Location location;
};

/// The function of an `associative_scan`, simplified, if it is a list of elementwise ops that fits
/// a CombineScan; else nothing, and the reason in `why_not`.
std::optional<ir::Function> combine_rows(const ir::Instruction& scan, NoRows* why_not = nullptr);

}  // namespace tilewright::cpu
