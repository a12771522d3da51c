// Calls that operations keep, with their compiled programs, from one use to the next.
#pragma once

#include <cstddef>

#include "support/memo.h"
#include "tilewright/run.h"

namespace tilewright::run {

/// Calls that an operation keeps; beyond that, the least recently used is dropped. Only mods that
/// are new in every call get that far: a program for a CPU takes 0.2 to 0.5 MB.
inline constexpr std::size_t kKeptCalls = 512;

/// The call made by `make` for this key, kept for the next time. Every lambda has its own type and
/// therefore its own memo.
template <typename Key, typename Make>
Call cached(const Key& key, Make make) {
    static auto* const kCalls = new Memo<Key, Call>("calls of tile programs", kKeptCalls);
    return kCalls->get(key, make);
}

}  // namespace tilewright::run
