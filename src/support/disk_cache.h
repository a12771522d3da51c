// A folder of byte strings keyed by text, shared safely by threads and processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {

/// Compiled kernels and tuning results are kept in such folders. Every entry contains its whole key
/// and a checksum: a truncated, corrupt or foreign entry is deleted and reads as absent, never as
/// data. Anything that is not a regular file also reads as absent.
class DiskCache {
  public:
    struct Entry {
        std::string key;
        std::uint64_t bytes = 0;  ///< size of the value
        std::filesystem::path path;
    };

    /// The first `put` creates the folder, accessible only to this user. A folder that `distrust`
    /// rejects reads as empty and is not written to.
    explicit DiskCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

    /// The value stored under `key`; nullopt if there is none.
    std::optional<std::string> get(std::string_view key) const;

    /// Stores a value: writes a temporary file and renames it, so that a reader sees the old entry
    /// or the new one. Returns false if the folder cannot be written: a cache is no reason to fail.
    bool put(std::string_view key, std::string_view value) const;

    /// Removes one entry, for a value that turned out to be unusable.
    void drop(std::string_view key) const;

    /// All valid entries.
    std::vector<Entry> list() const;

    /// Removes every entry and anything else in its place, such as temporary files of processes
    /// that were killed, and returns the number removed.
    std::size_t clear() const;

    const std::filesystem::path& folder() const { return folder_; }

  private:
    std::filesystem::path path_of(std::string_view key) const;

    std::filesystem::path folder_;
};

/// TILEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright, else
/// tilewright-UID in the system's temporary folder.
std::filesystem::path cache_root();

/// Why others could place code for this user to run in the folder: it, a link to it or its parent
/// belongs to a user other than this one and root, or others may write there (to the parent,
/// without the sticky bit). nullopt for a folder that is safe or does not exist yet.
std::optional<std::string> distrust(const std::filesystem::path& folder);

/// Why nothing can be kept in the folder, as text; nullopt if it can be used. Leaves no files.
std::optional<std::string> cache_problem(const std::filesystem::path& folder);

/// Creates the folder and its missing parents, accessible only to this user.
void create_private_folders(const std::filesystem::path& folder);

/// The 128-bit XXH3 hash of the bytes as 32 hexadecimal digits.
std::string content_hash(std::string_view bytes);

/// The same of pieces one after the other, without joining them.
std::string content_hash(std::span<const std::string_view> pieces);

}  // namespace tilewright
