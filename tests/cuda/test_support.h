// Shared by the CUDA tests: skipping with a reason, folders of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/device.h"

/// Leaves the test, saying that nothing was compiled, on machines without NVRTC.
#define TW_REQUIRE_NVRTC()                                      \
    if (!::tilewright::cuda::nvrtc_report().found())            \
    GTEST_SKIP() << "NOT RUN: no NVRTC, nothing was compiled. " \
                 << ::tilewright::cuda::nvrtc_report().advice

/// Leaves the test on machines without a GPU.
#define TW_REQUIRE_GPU() \
    if (::tilewright::cuda::device_count() == 0) GTEST_SKIP() << "NOT RUN: no GPU on this machine"

namespace tilewright::testing_support {

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
