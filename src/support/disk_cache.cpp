// The on-disk cache: one file per entry, named by the hash of its key.
#include "support/disk_cache.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "support/debug_log.h"

namespace tilewright {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExtension = ".entry", kTemporary = ".tmp";

/// An entry file is this header, the key, the value.
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
    // A pipe would block the reader, a folder make it throw.
    if (!fs::is_regular_file(status)) {
        debug_log("cache", "{} is no regular file and is passed over", path.string());
        return std::nullopt;
    }
    // The size is that of the opened file: another process may put a new one under its name.
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file.tellg();
    if (size < 0) return std::nullopt;
    std::string bytes(static_cast<std::size_t>(size), '\0');
    if (!file.seekg(0) || !file.read(bytes.data(), size)) return std::nullopt;
    return bytes;
}

/// nullopt when the bytes are not one whole, unaltered entry.
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

/// A name no other thread or process uses.
fs::path temporary_beside(const fs::path& path) {
    static std::atomic<std::uint64_t> counter{0};
    return fs::path(path).concat(
        fmt::format(".{}.{}{}", ::getpid(), counter.fetch_add(1), kTemporary));
}

const char* environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

std::string content_hash(std::string_view bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
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
    std::error_code error;
    fs::create_directories(folder_, error);
    const fs::path path = path_of(key);
    const fs::path temporary = temporary_beside(path);
    const std::string bytes = encode(key, value);
    bool written = false;
    {
        std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
        file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        file.close();
        written = !file.fail();
    }
    if (written) fs::rename(temporary, path, error);
    if (!written || error) {
        std::error_code ignored;
        fs::remove(temporary, ignored);
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
