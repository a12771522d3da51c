// The host's CPU, caches and memory, from Linux's /proc and /sys.
#include "run/system_info.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace tilewright::run {
namespace {

namespace fs = std::filesystem;

// Features for which kernels have, or may get, a variant; spelled as in /proc/cpuinfo.
constexpr std::array<std::string_view, 15> kFeatures = {
    "avx2",     "fma",      "f16c",     "avx512f",     "avx512bw",
    "avx512vl", "avx512dq", "avx_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "asimd",    "bf16",        "sve"};

// Key and value of a line "key : value"; the key is empty if there is no colon.
std::pair<std::string, std::string> split(const std::string& line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) return {};
    const auto trim = [](std::string text) {
        text.erase(0, text.find_first_not_of(" \t"));
        text.erase(text.find_last_not_of(" \t") + 1);
        return text;
    };
    return {trim(line.substr(0, colon)), trim(line.substr(colon + 1))};
}

void read_cpuinfo(const fs::path& path, SystemInfo& info) {
    std::ifstream file(path);
    std::set<std::pair<std::string, std::string>> cores;
    std::string package;
    for (std::string line; std::getline(file, line);) {
        const auto [key, value] = split(line);
        if (key == "model name" && info.cpu_model.empty()) info.cpu_model = value;
        if (key == "physical id") package = value;
        if (key == "core id") cores.emplace(package, value);
        if ((key == "flags" || key == "Features") && info.cpu_features.empty()) {
            std::istringstream words(value);
            for (std::string word; words >> word;) {
                if (std::find(kFeatures.begin(), kFeatures.end(), word) != kFeatures.end()) {
                    info.cpu_features.push_back(word);
                }
            }
        }
    }
    info.physical_cores = static_cast<int>(cores.size());
}

void read_memory(const fs::path& path, SystemInfo& info) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const auto [key, value] = split(line);
        std::uint64_t kib = 0;
        std::istringstream(value) >> kib;
        if (key == "MemTotal") info.memory_bytes = kib * 1024;
        if (key == "MemAvailable") info.available_bytes = kib * 1024;
    }
}

void read_caches(const fs::path& folder, SystemInfo& info) {
    for (int index = 0;; ++index) {
        const fs::path cache = folder / ("index" + std::to_string(index));
        CpuCache found;
        std::ifstream(cache / "level") >> found.level;
        std::ifstream(cache / "type") >> found.type;
        std::ifstream(cache / "size") >> found.size;
        if (found.level == 0) return;
        info.caches.push_back(found);
    }
}

}  // namespace

SystemInfo read_system_info(const fs::path& root) {
    SystemInfo info;
    utsname name{};
    if (uname(&name) == 0) info.architecture = name.machine;
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) == 0) info.logical_cores = CPU_COUNT(&usable);
    read_cpuinfo(root / "proc/cpuinfo", info);
    read_memory(root / "proc/meminfo", info);
    read_caches(root / "sys/devices/system/cpu/cpu0/cache", info);
    return info;
}

}  // namespace tilewright::run
