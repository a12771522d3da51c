// Must not compile: a traced value in a C++ `if`. The test looks for the message that says so.
#include "tilewright/lang.h"

void branch_on(tilewright::Tile x) {
    if (x > 0) tilewright::debug_print("never");
}
