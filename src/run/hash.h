// Hashes of arrays, for detecting changes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::run {

/// The 64-bit XXH3 hash of `size` bytes, computed on all cores at the speed of memory.
std::uint64_t hash_of(const std::byte* bytes, std::size_t size);

/// The same for one part, with AVX2: a library's XXH3 compiled for SSE2 reaches only half the speed
/// of a core's caches.
std::uint64_t hash_by_avx2(const std::byte* bytes, std::size_t size);

}  // namespace tilewright::run
