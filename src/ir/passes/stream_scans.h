// Scans of axes that are too long for a tile, piece by piece.
#pragma once

#include <cstdint>
#include <string>

#include "ir/function.h"

namespace tilewright::ir {

struct StreamScansReport {
    int scans = 0;        ///< done piece by piece
    std::string refusal;  ///< why none is, where the kernel has scans
    bool changed() const { return scans > 0; }
};

/// Rewrites a kernel that scans long lines so that a loop goes along them: it loads, scans and
/// stores pieces of which no tile has more than `max_elements`, and carries what the pieces before
/// combine to. All that has the axis of the scans must be computed element by element, or by scans
/// along it in one direction, and be stored. Mods are inlined first. `changed()` is false, and the
/// kernel unchanged, where that is not so.
StreamScansReport stream_scans(Function& function, std::int64_t max_elements);

}  // namespace tilewright::ir
