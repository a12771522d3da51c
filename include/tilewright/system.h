// The machine: devices, threads, and a report of what will be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// Names of the devices that calls can run on: "cpu", "cuda:0", ...
std::vector<std::string> devices();

/// Threads that calls on the CPU use, at most one per core; 0 restores the default: the value of
/// TILEWRIGHT_THREADS at the first use, else all cores. Results do not depend on it. UserError for
/// a negative number.
void set_num_threads(int threads);
int num_threads();

/// A report: what this machine has, what will be used, what is missing and how to get it.
std::string doctor();

/// What one of the library's in-memory caches holds, and how often it was hit.
struct CacheCount {
    std::string name;
    std::size_t entries = 0;
    std::size_t most = 0;  ///< most entries that it keeps; the largest size_t: no limit of its own
    std::uint64_t hits = 0;            ///< requests for an entry that was there
    std::uint64_t misses = 0;          ///< requests for one that was not
    std::uint64_t evictions = 0;       ///< entries removed to make room
    std::optional<std::size_t> bytes;  ///< size of the entries, if known

    /// Adds up caches with the same name.
    CacheCount& operator+=(const CacheCount& other);
};

/// The in-memory caches that this process has used so far, by name, as `doctor` lists them. Caches
/// of different objects or operations with the same name are added up.
std::vector<CacheCount> cache_counts();

namespace detail {

/// Lists a cache in `cache_counts` until this is destroyed.
class ListedCache {
  public:
    explicit ListedCache(std::function<CacheCount()> count);
    ~ListedCache();
    ListedCache(const ListedCache&) = delete;
    ListedCache& operator=(const ListedCache&) = delete;

    CacheCount count() const { return count_(); }

  private:
    std::function<CacheCount()> count_;
};

}  // namespace detail

}  // namespace tilewright
