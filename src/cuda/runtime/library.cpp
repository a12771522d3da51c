// Library search: fixed order, every attempt recorded.
#include "cuda/runtime/library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "cuda/runtime/nvrtc_search.h"

namespace tilewright::cuda {
namespace fs = std::filesystem;
namespace {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

constexpr const char* kNvrtcNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

/// The path under which the loader mapped the object that holds `handle`.
std::string mapped_path(void* handle, const std::string& fallback) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
        return map->l_name;
    }
    return fallback;
}

/// Children of `folder` whose names start with `prefix`, in descending order of name.
std::vector<fs::path> children(const fs::path& folder, std::string_view prefix) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
    }
    std::sort(found.rbegin(), found.rend());
    return found;
}

/// Adds libnvrtc.so.<major> of a folder, if it has one.
void add_nvrtc_of(const fs::path& folder, std::vector<std::string>& candidates) {
    for (const fs::path& path : children(folder, "libnvrtc.so")) {
        if (std::find(candidates.begin(), candidates.end(), path.string()) == candidates.end()) {
            candidates.push_back(path.string());
            return;  // one version per folder, the highest
        }
    }
}

void add_toolkit(const fs::path& root, std::vector<std::string>& candidates) {
    for (const char* sub : {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
        add_nvrtc_of(root / sub, candidates);
    }
}

void add_site_packages(const fs::path& site, std::vector<std::string>& candidates) {
    for (const char* sub : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu12/lib"}) {
        add_nvrtc_of(site / sub, candidates);
    }
}

void add_python_prefix(const fs::path& prefix, std::vector<std::string>& candidates) {
    for (const fs::path& python : children(prefix / "lib", "python3")) {
        add_site_packages(python / "site-packages", candidates);
    }
}

/// The program or shared library that contains this code.
std::string own_file() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0) return {};
    return info.dli_fname;
}
fs::path own_folder() {
    std::error_code error;
    return fs::weakly_canonical(own_file(), error).parent_path();
}

/// Copies of NVRTC that this process has already loaded.
std::vector<std::string> loaded_nvrtc() {
    std::vector<std::string> paths;
    for (const char* name : kNvrtcNames) {
        if (void* loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
            paths.push_back(mapped_path(loaded, name));
        }
    }
    return paths;
}

}  // namespace

Library Library::open(const std::vector<std::string>& candidates, LibraryReport& report) {
    Library library;
    for (const std::string& candidate : candidates) {
        library.handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library.handle_ != nullptr) {
            report.path = mapped_path(library.handle_, candidate);
            return library;
        }
        const char* reason = dlerror();
        report.tried.push_back(reason != nullptr ? reason : candidate);
    }
    return library;
}

void Library::open_beside(const std::string& path, std::string_view prefix) {
    for (const fs::path& each : children(fs::path(path).parent_path(), prefix)) {
        dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
}

void* Library::symbol(const char* name) const {
    return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

std::vector<std::string> nvrtc_candidates() {
    std::vector<std::string> candidates;
    if (const std::string chosen = environment("TILEWRIGHT_NVRTC"); !chosen.empty()) {
        std::error_code error;
        if (fs::is_directory(chosen, error)) add_nvrtc_of(chosen, candidates);
        if (candidates.empty()) candidates.push_back(chosen);
        return candidates;
    }
    candidates = loaded_nvrtc();
    candidates.insert(candidates.end(), std::begin(kNvrtcNames), std::end(kNvrtcNames));

    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const std::string root = environment(variable); !root.empty()) {
            add_toolkit(root, candidates);
        }
    }
    add_toolkit("/usr/local/cuda", candidates);
    for (const fs::path& root : children("/usr/local", "cuda-")) add_toolkit(root, candidates);

    const fs::path own = own_folder();
    add_site_packages(own.parent_path(), candidates);
    add_site_packages(own.parent_path().parent_path(), candidates);
    if (const std::string prefix = environment("VIRTUAL_ENV"); !prefix.empty()) {
        add_python_prefix(prefix, candidates);
    }
    const std::string python_path = environment("PYTHONPATH");
    for (std::size_t begin = 0; begin < python_path.size();) {
        const std::size_t end = std::min(python_path.find(':', begin), python_path.size());
        if (end > begin) add_site_packages(python_path.substr(begin, end - begin), candidates);
        begin = end + 1;
    }
    if (const std::string home = environment("HOME"); !home.empty()) {
        add_python_prefix(fs::path(home) / ".local", candidates);
    }
    return candidates;
}

std::string nvrtc_search() {
    std::string text =
        fmt::format("of {}\nloaded {}\n", own_file(), fmt::join(loaded_nvrtc(), ":"));
    for (const char* name : {"TILEWRIGHT_NVRTC", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
                             "VIRTUAL_ENV", "PYTHONPATH", "HOME"}) {
        text += fmt::format("{} {}\n", name, environment(name));
    }
    return text;
}

}  // namespace tilewright::cuda
