// Tile IR as the first level of the scheduled form.
#pragma once

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The operations of a kernel one by one. Refused for those that the form does not have yet.
Program lower(const ir::Function& kernel, const Target& target);

}  // namespace tilewright::cuda::schedule
