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

    /// The folder is created by the first `put`, for this user alone. One that `distrust` names
    /// reads as empty and is not written to.
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

/// TILEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright, else
/// tilewright-UID under the system's temporary folder.
std::filesystem::path cache_root();

/// Why others could put code for this user to run into the folder: it, a link to it or the folder
/// around it belongs to another user than this one and root, or others may write there (around it:
/// without the sticky bit). Nothing for a folder that is safe, or that is not there yet.
std::optional<std::string> distrust(const std::filesystem::path& folder);

/// Why nothing can be kept in the folder, for people; nothing where something can. Leaves no trace.
std::optional<std::string> cache_problem(const std::filesystem::path& folder);

/// Makes the folder and those around it that are not there, for this user alone.
void create_private_folders(const std::filesystem::path& folder);

/// 128-bit xxHash of the bytes as 32 hexadecimal digits.
std::string content_hash(std::string_view bytes);

}  // namespace tilewright
