// Values computed once for each key and kept while they are in use: bounded, counted, thread-safe.
// Every in-memory cache of the library is one of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/system.h"

namespace tilewright {

/// The limit of a memo whose keys stand for objects that live elsewhere and whose owner removes
/// entries of destroyed objects: it has as many entries as there are objects.
inline constexpr std::size_t kWhileAlive = std::numeric_limits<std::size_t>::max();

/// The identity of an object, as a key or part of one. It does not keep the object alive, nor equal
/// that of a later object at the same address.
template <typename T>
class Identity {
  public:
    explicit Identity(const std::shared_ptr<T>& object) : object_(object) {}
    bool is_gone() const { return object_.expired(); }
    friend bool operator<(const Identity& a, const Identity& b) {
        return a.object_.owner_before(b.object_);
    }

  private:
    std::weak_ptr<T> object_;
};

/// Up to `most` values by key; beyond that, the least recently used is dropped. Values are copied
/// (share what is large), keys are ordered by <. `tilewright doctor` lists memos by `name`, with
/// the size of their values if `bytes` is given.
template <typename Key, typename Value>
class Memo {
  public:
    using Bytes = std::size_t (*)(const Value&);

    Memo(std::string name, std::size_t most, Bytes bytes = nullptr)
        : name_(std::move(name)), most_(most), bytes_(bytes) {}

    /// The value kept for a key, or for anything that compares equal to it; else nullopt.
    template <typename Like>
    std::optional<Value> find(const Like& key) {
        const std::scoped_lock lock(mutex_);
        const auto found = places_.find(key);
        if (found == places_.end()) {
            ++misses_;
            return std::nullopt;
        }
        ++hits_;
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
    }

    /// Keeps a value unless the key already has one; returns the value kept.
    Value put(const Key& key, Value value) {
        Entries gone;  // destroyed after the lock is released
        const std::scoped_lock lock(mutex_);
        const auto [place, is_new] = places_.try_emplace(key);
        if (!is_new) return place->second->second;
        entries_.emplace_front(&place->first, std::move(value));
        place->second = entries_.begin();
        if (entries_.size() > most_) {
            gone.splice(gone.begin(), entries_, std::prev(entries_.end()));
            places_.erase(places_.find(*gone.front().first));
            ++evictions_;
        }
        return entries_.front().second;
    }

    /// The value kept for a key, else that of `make()`. Threads that ask for a new key at the same
    /// time may all make a value; one is kept and returned to all.
    template <typename Make>
    Value get(const Key& key, Make make) {
        if (std::optional<Value> known = find(key)) return *std::move(known);
        return put(key, make());
    }

    /// Removes a key.
    void drop(const Key& key) {
        take_if([&](const Key& other, const Value&) { return !(other < key) && !(key < other); });
    }

    /// Removes the entries for which `pred(key, value)` holds and returns their values, so that the
    /// caller decides when to destroy them.
    template <typename Pred>
    std::vector<Value> take_if(Pred pred) {
        std::vector<Value> taken;
        const std::scoped_lock lock(mutex_);
        for (auto entry = entries_.begin(); entry != entries_.end();) {
            const auto here = entry++;
            if (!pred(*here->first, std::as_const(here->second))) continue;
            taken.push_back(std::move(here->second));
            places_.erase(places_.find(*here->first));
            entries_.erase(here);
        }
        return taken;
    }

    std::size_t size() const {
        const std::scoped_lock lock(mutex_);
        return entries_.size();
    }

    CacheCount count() const {
        const std::scoped_lock lock(mutex_);
        CacheCount count{name_, entries_.size(), most_, hits_, misses_, evictions_, {}};
        if (bytes_ != nullptr) {
            count.bytes = 0;
            for (const auto& entry : entries_) *count.bytes += bytes_(entry.second);
        }
        return count;
    }

  private:
    using Entries = std::list<std::pair<const Key*, Value>>;  // most recently used first

    std::string name_;
    std::size_t most_;
    Bytes bytes_;
    mutable std::mutex mutex_;
    Entries entries_;
    std::map<Key, typename Entries::iterator, std::less<>> places_;
    std::uint64_t hits_ = 0, misses_ = 0, evictions_ = 0;
    /// The last member, so that the memo is listed only while the others exist.
    detail::ListedCache listed_{[this] { return count(); }};
};

}  // namespace tilewright
