// XXH3 with AVX2, used only if cpuid shows it.
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "run/hash.h"

namespace tilewright::run {

std::uint64_t hash_by_avx2(const std::byte* bytes, std::size_t size) {
    return XXH3_64bits(bytes, size);
}

}  // namespace tilewright::run
