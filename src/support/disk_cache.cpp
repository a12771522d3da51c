// The on-disk cache: one file per entry, named by the hash of its key.
#include "support/disk_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <system_error>

#include "support/debug_log.h"
#include "support/memo.h"
#include "support/write_file.h"
#include "tilewright/error.h"

namespace tilewright {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExtension = ".entry", kTemporary = ".tmp";

/// An entry file consists of this header, the key and the value.
struct Header {
    char magic[8] = {'T', 'W', 'C', 'A', 'C', 'H', 'E', '1'};
    std::uint64_t key_bytes = 0;
    std::uint64_t value_bytes = 0;
    std::uint64_t checksum = 0;  ///< of key and value
};
static_assert(sizeof(Header) == 32);

struct Record {
    std::string key;
    std::string value;
};

std::optional<std::string> read_file(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return std::nullopt;
    // Reading a pipe would block, and reading a folder would throw.
    if (!fs::is_regular_file(status)) {
        debug_log("cache", "{} is no regular file and is passed over", path.string());
        return std::nullopt;
    }
    // The size of the opened file: another process may replace the file under that name.
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file.tellg();
    if (size < 0) return std::nullopt;
    std::string bytes(size, '\0');
    if (!file.seekg(0) || !file.read(bytes.data(), size)) return std::nullopt;
    return bytes;
}

/// nullopt if the bytes are not exactly one complete, unaltered entry.
std::optional<Record> decode(std::string_view bytes) {
    Header header;
    if (bytes.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof header);
    const std::string_view body = bytes.substr(sizeof header);
    if (std::memcmp(header.magic, Header{}.magic, sizeof header.magic) != 0 ||
        header.key_bytes > body.size() || header.value_bytes != body.size() - header.key_bytes ||
        header.checksum != XXH3_64bits(body.data(), body.size())) {
        return std::nullopt;
    }
    return Record{std::string(body.substr(0, header.key_bytes)),
                  std::string(body.substr(header.key_bytes))};
}

std::string encode(std::string_view key, std::string_view value) {
    std::string bytes(sizeof(Header), '\0');
    bytes.append(key).append(value);
    Header header;
    header.key_bytes = key.size();
    header.value_bytes = value.size();
    header.checksum = XXH3_64bits(bytes.data() + sizeof header, bytes.size() - sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
}

const char* environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string reason(int error) {
    return std::generic_category().message(error);
}

/// Why users other than this one and root could change the file; nullopt if they cannot.
std::optional<std::string> distrust_status(const fs::path& path, const struct stat& status,
                                           bool sticky_will_do) {
    if (status.st_uid != 0 && status.st_uid != ::geteuid())
        return fmt::format("{} belongs to user {}", path.string(), status.st_uid);
    const bool others_write = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if (others_write && !(sticky_will_do && (status.st_mode & S_ISVTX) != 0))
        return fmt::format("others may write to {} (mode {:o})", path.string(),
                           status.st_mode & 07777U);
    return std::nullopt;
}

std::string text_of(const XXH128_hash_t& hash) {
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

/// Whether the folder may be used; logs once for each folder that may not.
bool is_trusted(const fs::path& folder) {
    const std::optional<std::string> why = distrust(folder);
    if (!why) return true;
    static auto* const kLogged = new Memo<std::string, bool>("folders that are not used", 64);
    kLogged->get(folder.string(), [&] {
        debug_log("cache", "slow path: nothing is kept in {}, since {}", folder.string(), *why);
        return true;
    });
    return false;
}

}  // namespace

std::optional<std::string> distrust(const fs::path& folder) {
    struct stat status = {};
    if (::lstat(folder.c_str(), &status) == 0) {
        if (S_ISLNK(status.st_mode)) {
            // The mode of a link itself means nothing.
            if (status.st_uid != 0 && status.st_uid != ::geteuid())
                return fmt::format("{} is a link of user {}", folder.string(), status.st_uid);
            if (::stat(folder.c_str(), &status) != 0)
                return fmt::format("{} is a link to nothing", folder.string());
        }
        if (!S_ISDIR(status.st_mode)) return fmt::format("{} is no folder", folder.string());
        if (auto why = distrust_status(folder, status, false)) return why;
    }
    const fs::path around = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    if (::stat(around.c_str(), &status) != 0) return std::nullopt;
    return distrust_status(around, status, true);
}

std::optional<std::string> cache_problem(const fs::path& folder) {
    if (auto why = distrust(folder)) return why;
    std::error_code error;
    if (!fs::exists(folder, error)) {
        fs::path there = fs::absolute(folder, error);
        while (there.has_relative_path() && !fs::exists(there, error)) there = there.parent_path();
        if (::access(there.c_str(), W_OK | X_OK) == 0) return std::nullopt;
        return fmt::format("it cannot be made in {}: {}", there.string(), reason(errno));
    }
    std::string probe = (folder / ("probe-XXXXXX" + std::string(kTemporary))).string();
    const int file = ::mkstemps(probe.data(), static_cast<int>(kTemporary.size()));
    if (file < 0) return fmt::format("it cannot be written: {}", reason(errno));
    const bool written = ::write(file, "x", 1) == 1;
    const int why = errno;
    ::close(file);
    ::unlink(probe.c_str());
    if (written) return std::nullopt;
    return fmt::format("it cannot be written: {}", reason(why));
}

void create_private_folders(const fs::path& folder) {
    std::error_code error;
    if (folder.empty() || fs::exists(folder, error)) return;
    create_private_folders(folder.parent_path());
    ::mkdir(folder.c_str(), 0700);
}

std::string content_hash(std::string_view bytes) {
    return text_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string content_hash(std::span<const std::string_view> pieces) {
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                         &XXH3_freeState);
    if (state == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state.get());
    for (const std::string_view piece : pieces)
        XXH3_128bits_update(state.get(), piece.data(), piece.size());
    return text_of(XXH3_128bits_digest(state.get()));
}

fs::path cache_root() {
    if (const char* folder = environment("TILEWRIGHT_CACHE_DIR")) return folder;
    if (const char* folder = environment("XDG_CACHE_HOME")) return fs::path(folder) / "tilewright";
    if (const char* home = environment("HOME")) return fs::path(home) / ".cache" / "tilewright";
    std::error_code error;
    fs::path temporary = fs::temp_directory_path(error);
    if (error) temporary = "/tmp";
    return temporary / fmt::format("tilewright-{}", ::getuid());
}

fs::path DiskCache::path_of(std::string_view key) const {
    return folder_ / (content_hash(key) + std::string(kExtension));
}

std::optional<std::string> DiskCache::get(std::string_view key) const {
    if (!is_trusted(folder_)) return std::nullopt;
    const std::optional<std::string> bytes = read_file(path_of(key));
    if (!bytes) return std::nullopt;
    std::optional<Record> record = decode(*bytes);
    if (!record || record->key != key) {
        drop(key);
        return std::nullopt;
    }
    return std::move(record->value);
}

bool DiskCache::put(std::string_view key, std::string_view value) const {
    create_private_folders(folder_);
    if (!is_trusted(folder_)) return false;
    const std::string bytes = encode(key, value);
    try {
        replace_file("cache", path_of(key).string(), [&](std::ostream& file) { file << bytes; });
    } catch (const UserError& error) {
        debug_log("cache", "slow path: an entry is not kept: {}", error.what());
        return false;
    }
    return true;
}

void DiskCache::drop(std::string_view key) const {
    std::error_code ignored;
    fs::remove(path_of(key), ignored);
}

std::vector<DiskCache::Entry> DiskCache::list() const {
    std::vector<Entry> entries;
    if (!is_trusted(folder_)) return entries;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
        if (it->path().extension() != kExtension) continue;
        const std::optional<std::string> bytes = read_file(it->path());
        if (!bytes) continue;
        if (std::optional<Record> record = decode(*bytes)) {
            entries.push_back({std::move(record->key), record->value.size(), it->path()});
        }
    }
    return entries;
}

std::size_t DiskCache::clear() const {
    std::size_t removed = 0;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
        const fs::path path = it->path();
        const bool temporary = path.extension() == kTemporary;
        if (path.extension() != kExtension && !temporary) continue;
        std::error_code failure;
        fs::remove_all(path, failure);
        if (!failure && !temporary) ++removed;
    }
    return removed;
}

}  // namespace tilewright
