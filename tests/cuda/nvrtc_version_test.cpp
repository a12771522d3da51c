// NVRTC is opened only to compile: its version is known from earlier processes.
#include "cuda/runtime/nvrtc_version.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cuda/runtime/compiler.h"
#include "tests/cuda/test_support.h"

namespace tilewright::cuda {
namespace {

namespace fs = std::filesystem;

TEST(NvrtcVersion, IsRememberedWhileTheFileAndTheSearchAreTheSame) {
    const testing_support::OwnCacheFolder folder;
    const std::string file = fs::path(testing::TempDir()) / "tw_remembered_nvrtc";
    std::ofstream(file) << "a library";
    LibraryReport report;
    report.path = file;
    report.version = "13.0";
    const std::vector<std::string> candidates = {"libnvrtc.so.13", file};
    EXPECT_EQ(remembered_version(candidates), std::nullopt);
    remember_version(candidates, report);
    EXPECT_EQ(remembered_version(candidates), "13.0");
    EXPECT_EQ(remembered_version({file}), std::nullopt);

    const char* const before = std::getenv("LD_LIBRARY_PATH");
    const std::string folders = before == nullptr ? "" : before;
    ::setenv("LD_LIBRARY_PATH", "/another/folder", 1);
    EXPECT_EQ(remembered_version(candidates), std::nullopt);
    ::setenv("LD_LIBRARY_PATH", folders.c_str(), 1);
    EXPECT_EQ(remembered_version(candidates), "13.0");

    std::ofstream(file) << "another library";
    EXPECT_EQ(remembered_version(candidates), std::nullopt);
    report.version = "13.1";
    remember_version(candidates, report);
    EXPECT_EQ(remembered_version(candidates), "13.1");
    fs::remove(file);
    EXPECT_EQ(remembered_version(candidates), std::nullopt);
}

CompileRequest nothing() {
    CompileRequest request;
    request.name = "nothing.cu";
    request.arch = "sm_90a";
    request.source = "extern \"C\" __global__ void __launch_bounds__(32) nothing() {}\n";
    return request;
}

bool nvrtc_is_loaded() {
    std::ifstream maps("/proc/self/maps");
    const std::string text{std::istreambuf_iterator<char>(maps), {}};
    return text.find("libnvrtc.so") != std::string::npos;
}

/// Runs in processes that the next test starts.
TEST(NvrtcVersion, DISABLED_Process) {
    compile_in_background(nothing());
    cubin_of(nothing());
    EXPECT_EQ(nvrtc_is_loaded(), std::getenv("TW_EXPECT_NVRTC") != nullptr);
}

TEST(NvrtcVersion, ProcessesThatFindTheirKernelsOnDiskDoNotOpenNvrtc) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    const std::string command = fs::read_symlink("/proc/self/exe").string() +
                                " --gtest_also_run_disabled_tests"
                                " --gtest_filter=NvrtcVersion.DISABLED_Process > /dev/null";
    EXPECT_EQ(std::system(("TW_EXPECT_NVRTC=1 " + command).c_str()), 0);
    EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace tilewright::cuda
