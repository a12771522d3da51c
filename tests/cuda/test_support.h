// Shared by the CUDA tests: skipping with a reason, separate cache folders.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/device.h"

/// Skips the test on machines without NVRTC, with a note that nothing was compiled.
#define TW_REQUIRE_NVRTC()                                      \
    if (!::tilewright::cuda::nvrtc_report().found())            \
    GTEST_SKIP() << "NOT RUN: no NVRTC, nothing was compiled. " \
                 << ::tilewright::cuda::nvrtc_report().advice

/// Skips the test on machines without a GPU.
#define TW_REQUIRE_GPU() \
    if (::tilewright::cuda::device_count() == 0) GTEST_SKIP() << "NOT RUN: no GPU on this machine"

namespace tilewright::testing_support {

/// Compiles kernels on all cores, each within its limit on spilled bytes.
inline void expect_to_compile(const std::vector<cuda::CompileRequest>& requests) {
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    const auto work = [&] {
        for (std::size_t i = next++; i < requests.size(); i = next++) {
            try {
                cuda::compile(requests[i]);
            } catch (const std::exception& error) {
                const std::lock_guard lock(mutex);
                ADD_FAILURE() << requests[i].name << " for " << requests[i].arch << ": "
                              << error.what() << "\n"
                              << requests[i].source.substr(0, 200);
            }
        }
    };
    std::vector<std::jthread> workers;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) workers.emplace_back(work);
    work();
}

/// A cache folder that lives as long as the object.
class OwnCacheFolder {
  public:
    OwnCacheFolder()
        : folder_(std::filesystem::path(::testing::TempDir()) /
                  ("tw_cuda_cache_" + std::to_string(::getpid()))) {
        std::filesystem::remove_all(folder_);
        ::setenv("TILEWRIGHT_CACHE_DIR", folder_.c_str(), 1);
    }
    ~OwnCacheFolder() {
        ::unsetenv("TILEWRIGHT_CACHE_DIR");
        std::filesystem::remove_all(folder_);
    }
    const std::filesystem::path& path() const { return folder_; }

  private:
    std::filesystem::path folder_;
};

}  // namespace tilewright::testing_support
