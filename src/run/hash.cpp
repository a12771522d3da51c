// Hashes of arrays: in parts, with the widest instructions.
#include "run/hash.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "cpu/machine.h"

namespace tilewright::run {
namespace {

std::uint64_t hash_of_part(const std::byte* bytes, std::size_t size) {
#ifdef TW_HASH_AVX2
    static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
    if (has_avx2) return hash_by_avx2(bytes, size);
#endif
    return XXH3_64bits(bytes, size);
}

}  // namespace

std::uint64_t hash_of(const std::byte* bytes, std::size_t size) {
    constexpr std::size_t kPart = std::size_t{1} << 18;
    std::vector<std::uint64_t> parts((size + kPart - 1) / kPart);
    cpu::parallel_for(std::ssize(parts), [&](std::int64_t i) {
        const std::size_t begin = static_cast<std::size_t>(i) * kPart;
        parts[i] = hash_of_part(bytes + begin, std::min(kPart, size - begin));
    });
    return XXH3_64bits(parts.data(), parts.size() * sizeof(std::uint64_t));
}

}  // namespace tilewright::run
