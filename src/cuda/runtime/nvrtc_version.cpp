// The versions of NVRTC that earlier processes found.
#include "cuda/runtime/nvrtc_version.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "support/disk_cache.h"

namespace tilewright::cuda {
namespace {

DiskCache searches() {
    return DiskCache(cache_root() / "nvrtc");
}

/// What changes when a file is replaced; empty if there is no regular file.
std::string state_of(const std::string& path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
    return fmt::format("{} {} {} {}", status.st_ino, status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
}

std::string search_key(const std::string& search) {
    return fmt::format("{}ld.so.cache {}\n", search, state_of("/etc/ld.so.cache"));
}

}  // namespace

std::optional<std::string> remembered_version(const std::string& search) {
    const std::optional<std::string> found = searches().get(search_key(search));
    if (!found) return std::nullopt;
    const std::size_t first = found->find('\n'), second = found->find('\n', first + 1);
    if (second == std::string::npos) return std::nullopt;
    const std::string path = found->substr(0, first);
    if (state_of(path) != found->substr(first + 1, second - first - 1)) return std::nullopt;
    return found->substr(second + 1);
}

void remember_version(const std::string& search, const LibraryReport& found) {
    const std::string state = state_of(found.path);
    if (state.empty()) return;
    const std::string key = search_key(search);
    const std::string entry = fmt::format("{}\n{}\n{}", found.path, state, found.version);
    if (searches().get(key) != entry) searches().put(key, entry);
}

}  // namespace tilewright::cuda
