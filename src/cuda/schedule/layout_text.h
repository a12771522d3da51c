// CUDA text of coordinates and registers, from a layout.
#pragma once

#include <string>

#include "cuda/codegen/layout.h"

namespace tilewright::cuda::schedule {

/// What lane and warp add to the position along an axis, in terms of `lane` and `group`'s warps.
std::string thread_coordinate(const Layout& layout, int axis,
                              const std::string& warp = "(threadIdx.x / 32)");

/// What register `index` (text) adds to it.
std::string register_coordinate(const Layout& layout, int axis, const std::string& index);

/// The register of `source` for register `index` of a view of it. The view's axis `dropped` is not
/// in the source; axes where the source has extent 1 are repeated.
std::string source_register(const Layout& view, const Layout& source, int dropped,
                            const std::string& index);

}  // namespace tilewright::cuda::schedule
