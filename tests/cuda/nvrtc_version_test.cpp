// NVRTC is opened only to compile: its version is known from earlier processes.
#include "cuda/runtime/nvrtc_version.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/nvrtc_search.h"
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
    const std::string search = "CUDA_HOME /some/folder\n";
    EXPECT_EQ(remembered_version(search), std::nullopt);
    remember_version(search, report);
    EXPECT_EQ(remembered_version(search), "13.0");
    EXPECT_EQ(remembered_version("CUDA_HOME /another/folder\n"), std::nullopt);

    std::ofstream(file) << "another library";
    EXPECT_EQ(remembered_version(search), std::nullopt);
    report.version = "13.1";
    remember_version(search, report);
    EXPECT_EQ(remembered_version(search), "13.1");
    fs::remove(file);
    EXPECT_EQ(remembered_version(search), std::nullopt);
}

TEST(NvrtcVersion, SearchesDifferByTheVariablesThatSayWhereToLook) {
    for (const char* variable : {"TILEWRIGHT_NVRTC", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
                                 "VIRTUAL_ENV", "PYTHONPATH", "HOME"}) {
        const char* const before = std::getenv(variable);
        const std::string value = before == nullptr ? "" : before, search = nvrtc_search();
        ::setenv(variable, "/another/folder", 1);
        EXPECT_NE(nvrtc_search(), search) << variable;
        ::setenv(variable, value.c_str(), 1);
        EXPECT_EQ(nvrtc_search(), search) << variable;
        if (before == nullptr) ::unsetenv(variable);
    }
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

/// Runs in processes that later tests start, as the next one.
TEST(NvrtcVersion, DISABLED_Process) {
    compile_in_background(nothing());
    cubin_of(nothing());
    EXPECT_EQ(nvrtc_is_loaded(), std::getenv("TW_EXPECT_NVRTC") != nullptr);
}

TEST(NvrtcVersion, DISABLED_AnotherIsRemembered) {
    LibraryReport other;
    other.path = fs::read_symlink("/proc/self/exe");
    other.version = "1.0";
    remember_version(nvrtc_search(), other);
    EXPECT_EQ(remembered_version(nvrtc_search()), "1.0");
}

/// The exit code of one of the two in a process of its own.
int run_alone(const std::string& test, const std::string& variables = "") {
    const std::string command = variables + fs::read_symlink("/proc/self/exe").string() +
                                " --gtest_also_run_disabled_tests --gtest_filter=NvrtcVersion." +
                                test + " > /dev/null";
    return std::system(command.c_str());
}

TEST(NvrtcVersion, ProcessesThatFindTheirKernelsOnDiskDoNotOpenNvrtc) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    EXPECT_EQ(run_alone("DISABLED_Process", "TW_EXPECT_NVRTC=1 "), 0);
    EXPECT_EQ(run_alone("DISABLED_Process"), 0);
}

TEST(NvrtcVersion, IsThatOfTheLibraryThatCompiledLast) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    EXPECT_EQ(run_alone("DISABLED_AnotherIsRemembered"), 0);
    EXPECT_EQ(run_alone("DISABLED_Process", "TW_EXPECT_NVRTC=1 "), 0);
    EXPECT_EQ(run_alone("DISABLED_Process"), 0);
}

}  // namespace
}  // namespace tilewright::cuda
