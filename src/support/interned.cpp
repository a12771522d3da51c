// Keeps names as long as the process lives.
#include "support/interned.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <string>

namespace tilewright {

std::string_view interned(std::string_view name) {
    constexpr std::size_t kMost = 4096;
    static std::mutex mutex;
    static auto* const kNames = new std::set<std::string, std::less<>>;  // never destroyed
    const std::scoped_lock lock(mutex);
    if (const auto found = kNames->find(name); found != kNames->end()) return *found;
    if (kNames->size() >= kMost) return "";
    return *kNames->emplace(name).first;
}

}  // namespace tilewright
