// A folder of byte strings keyed by text, shared safely by threads and processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {

/// Compiled kernels and tuning results live in such folders. Every entry carries its whole key and
/// a checksum: a truncated, corrupt or foreign entry is deleted and reads as absent, never as data.
/// What is no regular file reads as absent too.
class DiskCache {
  public:
    struct Entry {
        std::string key;
        std::uint64_t bytes = 0;  ///< of the value
        std::filesystem::path path;
    };

    /// The folder is created by the first `put`.
    explicit DiskCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

    /// The value stored under `key`; nullopt without one.
    std::optional<std::string> get(std::string_view key) const;

    /// Stores a value: a temporary file is written, then renamed, so that a reader sees the old
    /// entry or the new one. False when the folder cannot be written; a cache is never a reason to
    /// fail.
    bool put(std::string_view key, std::string_view value) const;

    /// Removes one entry, for a value that turned out to be unusable.
    void drop(std::string_view key) const;

    /// Every sound entry.
    std::vector<Entry> list() const;

    /// Removes every entry and what else is in the place of one, such as the temporary files of
    /// processes that were killed, and says how many there were.
    std::size_t clear() const;

    const std::filesystem::path& folder() const { return folder_; }

  private:
    std::filesystem::path path_of(std::string_view key) const;

    std::filesystem::path folder_;
};

/// TILEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright, else a folder
/// of this user under the system's temporary folder.
std::filesystem::path cache_root();

/// 128-bit xxHash of the bytes as 32 hexadecimal digits.
std::string content_hash(std::string_view bytes);

}  // namespace tilewright
