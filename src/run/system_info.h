// What the operating system tells about the host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tilewright::run {

/// One level of cache as the first core sees it.
struct CpuCache {
    int level = 0;
    std::string type;  ///< "Data", "Instruction", "Unified"
    std::string size;  ///< "32K", as the system writes it
};

/// Fields that the system does not tell stay empty or 0.
struct SystemInfo {
    std::string cpu_model;
    std::string architecture;
    int logical_cores = 0;                  ///< that this process may use
    int physical_cores = 0;                 ///< of the whole machine
    std::vector<std::string> cpu_features;  ///< those that kernels care about
    std::vector<CpuCache> caches;
    std::uint64_t memory_bytes = 0;
    std::uint64_t available_bytes = 0;
};

/// Reads /proc and /sys below `root`.
SystemInfo read_system_info(const std::filesystem::path& root = "/");

}  // namespace tilewright::run
