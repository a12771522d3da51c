// The loops for x86-64-v3: AVX2 and FMA.
#define TW_PLAIN_TABLE kPlainLoopsV3
#define TW_PLAIN_LEVEL "x86-64-v3"
#include "cli/plain_loops-inl.h"
