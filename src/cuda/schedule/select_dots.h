// Dots become products of warpgroups.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Assigns the dots of the program's loop to wgmma and chooses the warpgroups. Refused, with the
/// reason, for dots that wgmma has no shape for and loops that do more than accumulate.
void select_dots(Program& program);

}  // namespace tilewright::cuda::schedule
