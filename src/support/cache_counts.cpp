// The list of this process's caches.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "tilewright/system.h"

namespace tilewright {
namespace {

struct Listed {
    std::mutex mutex;
    std::vector<const detail::ListedCache*> all;
};

/// Never destroyed: caches in other libraries may outlive this library's objects.
Listed& listed() {
    static auto* const kListed = new Listed;
    return *kListed;
}

}  // namespace

namespace detail {

ListedCache::ListedCache(std::function<CacheCount()> count) : count_(std::move(count)) {
    const std::scoped_lock lock(listed().mutex);
    listed().all.push_back(this);
}

ListedCache::~ListedCache() {
    const std::scoped_lock lock(listed().mutex);
    std::erase(listed().all, this);
}

}  // namespace detail

std::vector<CacheCount> cache_counts() {
    std::vector<CacheCount> counts;
    const std::scoped_lock lock(listed().mutex);
    for (const detail::ListedCache* cache : listed().all) {
        CacheCount one = cache->count();
        const auto same = std::find_if(counts.begin(), counts.end(), [&](const CacheCount& other) {
            return other.name == one.name;
        });
        if (same == counts.end()) {
            counts.push_back(std::move(one));
        } else {
            *same += one;
        }
    }
    std::sort(counts.begin(), counts.end(),
              [](const CacheCount& a, const CacheCount& b) { return a.name < b.name; });
    return counts;
}

CacheCount& CacheCount::operator+=(const CacheCount& other) {
    entries += other.entries;
    constexpr auto kNoLimit = std::numeric_limits<std::size_t>::max();
    most = most == kNoLimit || other.most == kNoLimit ? kNoLimit : most + other.most;
    hits += other.hits;
    misses += other.misses;
    evictions += other.evictions;
    if (other.bytes) bytes = bytes.value_or(0) + *other.bytes;
    return *this;
}

}  // namespace tilewright
