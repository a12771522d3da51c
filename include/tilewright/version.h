// Version of the library; CMakeLists.txt reads it from here.
#pragma once

#include "tilewright/compiler.h"

/// "major.minor.patch" of these headers.
#define TILEWRIGHT_VERSION "0.1.0"

namespace TW_API tilewright {

/// "major.minor.patch" of the library that is linked.
const char* version();

}  // namespace tilewright
