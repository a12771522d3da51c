// Names that live as long as the process, as locations want them.
#pragma once

#include <string_view>

namespace tilewright {

/// The name, at one place for all that are equal, with a zero after it. Beyond some thousand names,
/// which no program comes to that does not make them up, new ones are empty.
std::string_view interned(std::string_view name);

}  // namespace tilewright
