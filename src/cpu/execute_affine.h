// Affine forms of a running program.
#pragma once

#include <cstdint>

#include "cpu/execute.h"

namespace tilewright::cpu {

/// The form at row and lane 0; where that does not fit 64 bits, a number of the same sign.
std::int64_t base_of(const Frame& frame, const Affine& affine);

/// True when none of the form's words wraps around on so many rows and lanes: the form then says
/// what is computed.
bool words_fit(const Frame& frame, const Affine& affine, std::int64_t rows, std::int64_t lanes);

/// Runs an affine superinstruction on a strip that starts at this row and lane, element by element,
/// with words that may wrap around.
void run_wrapping(const Frame& frame, const StripOp& op, const Strip& strip, std::int64_t row,
                  std::int64_t lane);

}  // namespace tilewright::cpu
