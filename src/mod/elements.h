// Arrays that mods read must have elements, since indices are clamped to them.
#pragma once

#include <vector>

#include "support/check.h"
#include "tilewright/mod.h"

namespace tilewright::mod {

/// UserError where a mod that is about to be evaluated reads an array without elements.
inline void expect_elements(const char* op, const std::vector<Capture>& captures) {
    for (const Capture& capture : captures) {
        if (capture.tensor().size() > 0) continue;
        user_error(op, "expected capture `{}` with elements, which the mod reads, but got {}",
                   capture.name(), capture.tensor().type_name());
    }
}

}  // namespace tilewright::mod
