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

/// Threads that calls on the CPU use, at most one for each core; 0 restores the default:
/// TILEWRIGHT_THREADS as it was at the first use, or else all cores.
/// Results do not depend on it. UserError for a negative number.
void set_num_threads(int threads);
int num_threads();

/// What this machine has, what will be used, what is missing and how to get it: lines for people.
std::string doctor();

/// What one of the library's caches in memory holds, and how often it had what was asked for.
struct CacheCount {
    std::string name;
    std::size_t entries = 0;
    std::size_t most =
        0;  ///< entries that it keeps at most; the largest size_t: no limit of its own
    std::uint64_t hits = 0;            ///< entries that were asked for and there
    std::uint64_t misses = 0;          ///< asked for and not there
    std::uint64_t evictions = 0;       ///< entries that made room for others
    std::optional<std::size_t> bytes;  ///< of the entries, where they are known

    /// Adds up caches of one name.
    CacheCount& operator+=(const CacheCount& other);
};

/// The caches in memory that this process has used so far, by name; `doctor` lists them. Those of
/// one name, which belong to different objects or operations, are added up.
std::vector<CacheCount> cache_counts();

namespace detail {

/// A cache that `cache_counts` lists from here on until this is destroyed.
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
