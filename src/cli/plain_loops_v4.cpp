// The loops for x86-64-v4: AVX-512.
#define TW_PLAIN_TABLE kPlainLoopsV4
#define TW_PLAIN_LEVEL "x86-64-v4"
#include "cli/plain_loops-inl.h"
