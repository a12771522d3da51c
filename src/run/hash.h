// Hashes of arrays, by which their changes are found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::run {

/// XXH3's 64 bits of `size` bytes, on every core; as fast as memory is read.
std::uint64_t hash_of(const std::byte* bytes, std::size_t size);

/// The same of one part, by AVX2. Where a library's own XXH3 was compiled for SSE2 it reaches half
/// the speed of a core's caches.
std::uint64_t hash_by_avx2(const std::byte* bytes, std::size_t size);

}  // namespace tilewright::run
