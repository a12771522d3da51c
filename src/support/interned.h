// Names that live as long as the process, which locations need.
#pragma once

#include <string_view>

namespace tilewright {

/// A zero-terminated copy of the name, one for all equal names. Beyond some thousand names, which
/// only a program that generates them reaches, new ones are empty.
std::string_view interned(std::string_view name);

}  // namespace tilewright
