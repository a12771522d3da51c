// `tilewright cache`: lists what is kept on disk and removes it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "cli/command.h"
#include "cuda/runtime/compiler.h"
#include "support/check.h"
#include "support/disk_cache.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

// A cache for each folder below the root: kernels, autotuning results.
std::vector<DiskCache> find_caches() {
    if (const std::optional<std::string> why = distrust(cache_root()))
        user_error("cache", "expected a folder that nobody else may write but {}", *why);
    std::vector<fs::path> folders;
    std::error_code error;
    for (fs::directory_iterator it(cache_root(), error), end; !error && it != end;
         it.increment(error)) {
        if (it->is_directory(error)) folders.push_back(it->path());
    }
    std::sort(folders.begin(), folders.end());
    return {folders.begin(), folders.end()};
}

void list(std::ostream& out) {
    std::uint64_t bytes = 0;
    std::size_t entries = 0;
    for (const DiskCache& cache : find_caches()) {
        for (const DiskCache::Entry& entry : cache.list()) {
            // Keys may contain whole sources; the first line identifies them well enough.
            std::string key = entry.key.substr(0, entry.key.find('\n'));
            if (key.size() > 80) key = key.substr(0, 77) + "...";
            // A tuned call is of little use without the choice, which is the first line.
            if (cache.folder().filename() == "autotune") {
                const std::string text = cache.get(entry.key).value_or("");
                key += ": " + text.substr(0, text.find('\n'));
            }
            out << fmt::format("{:>10}  {}  {}\n", entry.bytes, cache.folder().filename().string(),
                               key);
            bytes += entry.bytes;
            ++entries;
        }
    }
    out << fmt::format("{} entries, {} bytes in {}\n", entries, bytes, cache_root().string());
}

void clear(std::ostream& out) {
    std::size_t removed = 0;
    for (const DiskCache& cache : find_caches()) removed += cache.clear();
    std::error_code ignored;
    fs::remove_all(cuda::failed_sources_folder(), ignored);
    out << fmt::format("removed {} entries from {}\n", removed, cache_root().string());
}

}  // namespace

void add_cache(CLI::App& app, Console& console) {
    CLI::App* cache = app.add_subcommand("cache", "compiled kernels and tuning results on disk");
    cache->require_subcommand(1);
    cache->add_subcommand("list", "every entry: bytes, kind, key")->callback([&console] {
        list(console.out);
    });
    cache->add_subcommand("clear", "remove every entry")->callback([&console] {
        clear(console.out);
    });
    cache->add_subcommand("path", "the folder (TILEWRIGHT_CACHE_DIR)")->callback([&console] {
        console.out << cache_root().string() << '\n';
    });
}

}  // namespace tilewright::cli
