// What the operating system reports about the host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tilewright::run {

/// A level of cache, as the first core sees it.
struct CpuCache {
    int level = 0;
    std::string type;  ///< "Data", "Instruction", "Unified"
    std::string size;  ///< "32K", as the system writes it
};

/// Fields that the system does not report are empty or 0.
struct SystemInfo {
    std::string cpu_model;
    std::string architecture;
    int logical_cores = 0;                  ///< those that this process may use
    int physical_cores = 0;                 ///< those of the whole machine
    std::vector<std::string> cpu_features;  ///< those that matter to kernels
    std::vector<CpuCache> caches;
    std::uint64_t memory_bytes = 0;
    std::uint64_t available_bytes = 0;
};

/// Reads /proc and /sys below `root`.
SystemInfo read_system_info(const std::filesystem::path& root = "/");

}  // namespace tilewright::run
