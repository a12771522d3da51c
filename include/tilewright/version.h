// Version of the library; CMakeLists.txt reads its number here.
#pragma once

/// "major.minor.patch" of these headers.
#define TILEWRIGHT_VERSION "0.1.0"

namespace tilewright {

/// "major.minor.patch" of the library that is linked.
const char* version();

}  // namespace tilewright
