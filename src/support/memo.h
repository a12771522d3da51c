// What is worked out once for each key and kept while it is in use: bounded, for any thread.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace tilewright {

/// Up to `most` values by key; then the one that has waited longest for its next use goes. Values
/// are copies (share what is large), keys have an order.
template <typename Key, typename Value>
class Memo {
  public:
    explicit Memo(std::size_t most) : most_(most) {}

    /// The value kept for a key, or nothing.
    std::optional<Value> find(const Key& key) {
        const std::scoped_lock lock(mutex_);
        const auto found = places_.find(key);
        if (found == places_.end()) return std::nullopt;
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
    }

    /// Keeps a value, unless there is one for the key already; the value kept.
    Value put(const Key& key, Value value) {
        std::list<std::pair<const Key*, Value>> gone;  // destroyed after the lock is released
        const std::scoped_lock lock(mutex_);
        const auto [place, is_new] = places_.try_emplace(key);
        if (!is_new) return place->second->second;
        entries_.emplace_front(&place->first, std::move(value));
        place->second = entries_.begin();
        if (entries_.size() > most_) {
            gone.splice(gone.begin(), entries_, std::prev(entries_.end()));
            places_.erase(places_.find(*gone.front().first));
        }
        return entries_.front().second;
    }

    /// The value kept for a key, else that of `make()`. Threads that ask for a new key at once may
    /// all make it; one value is kept, and all get that one.
    template <typename Make>
    Value get(const Key& key, Make make) {
        if (std::optional<Value> known = find(key)) return *std::move(known);
        return put(key, make());
    }

    /// Forgets a key.
    void drop(const Key& key) {
        const std::scoped_lock lock(mutex_);
        const auto found = places_.find(key);
        if (found == places_.end()) return;
        entries_.erase(found->second);
        places_.erase(found);
    }

    std::size_t size() const {
        const std::scoped_lock lock(mutex_);
        return entries_.size();
    }

  private:
    using Entries = std::list<std::pair<const Key*, Value>>;  // used last first

    std::size_t most_;
    mutable std::mutex mutex_;
    Entries entries_;
    std::map<Key, typename Entries::iterator> places_;
};

}  // namespace tilewright
