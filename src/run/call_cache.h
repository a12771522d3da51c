// Calls that operations keep, with their compiled programs, from one use to the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "tilewright/run.h"

namespace tilewright::run {

/// Calls that one operation keeps; then the one that has waited longest goes. Only mods that are
/// new each time come so far: a program for a CPU takes 0.2 to 0.5 MB.
inline constexpr std::size_t kKeptCalls = 512;

/// The call made by `make` for this key, kept for the next time. Every lambda has a type, hence a
/// store, of its own.
template <typename Key, typename Make>
Call cached(const Key& key, Make make) {
    struct Kept {
        Call call;
        std::uint64_t used;
    };
    static std::mutex mutex;
    static std::map<Key, Kept> calls;
    static std::uint64_t now = 0;
    const std::lock_guard lock(mutex);
    ++now;
    if (const auto found = calls.find(key); found != calls.end()) {
        found->second.used = now;
        return found->second.call;
    }
    if (calls.size() == kKeptCalls) {
        calls.erase(std::min_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
            return a.second.used < b.second.used;
        }));
    }
    return calls.emplace(key, Kept{make(), now}).first->second.call;
}

}  // namespace tilewright::run
