// Version of the linked library.
#include "tilewright/version.h"

namespace tilewright {

const char* version() {
    return TILEWRIGHT_VERSION;
}

}  // namespace tilewright
