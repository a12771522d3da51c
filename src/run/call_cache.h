// Calls that operations keep, with their compiled programs, from one use to the next.
#pragma once

#include <map>
#include <mutex>

#include "tilewright/run.h"

namespace tilewright::run {

/// The call made by `make` for this key, kept for the next time. Every lambda has a type, hence a
/// store, of its own.
template <typename Key, typename Make>
Call cached(const Key& key, Make make) {
    static std::mutex mutex;
    static std::map<Key, Call> calls;
    const std::lock_guard lock(mutex);
    const auto found = calls.find(key);
    return found != calls.end() ? found->second : calls.emplace(key, make()).first->second;
}

}  // namespace tilewright::run
