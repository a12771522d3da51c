// Tile IR as the first level of the scheduled form.
#pragma once

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Translates the operations of a kernel one by one. Refused for those that the form lacks.
Program lower(const ir::Function& kernel, const Target& target);

}  // namespace tilewright::cuda::schedule
