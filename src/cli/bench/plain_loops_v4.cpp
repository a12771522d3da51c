// The loops for x86-64-v4: AVX-512.
#define TW_PLAIN_LEVEL "x86-64-v4"
#include "cli/bench/plain_loops-inl.h"

namespace tilewright::cli {
const PlainLoops kPlainLoopsV4 = kLoopsOfThisLevel;
}  // namespace tilewright::cli
