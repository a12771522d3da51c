// The loops for x86-64-v3: AVX2 and FMA.
#define TW_PLAIN_LEVEL "x86-64-v3"
#include "cli/bench/plain_loops-inl.h"

namespace tilewright::cli {
const PlainLoops kPlainLoopsV3 = kLoopsOfThisLevel;
}  // namespace tilewright::cli
