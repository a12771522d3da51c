// Runs every example, unchanged, with its calls on a GPU: each checks its own results.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "run/offload.h"
#include "tests/cuda/test_support.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright {
namespace {

using testing::throws;

TEST(CudaExamples, EveryExampleIsRightOnAGpu) {
    TW_REQUIRE_GPU();
    // The folder of programs that were built elsewhere.
    const char* const carried = std::getenv("TILEWRIGHT_TEST_EXAMPLES");
    const std::filesystem::path folder = carried != nullptr ? carried : TW_EXAMPLES_FOLDER;
    std::vector<std::filesystem::path> programs;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::filesystem::path& path = entry.path();
        if (path.filename().string().rfind("example_", 0) == 0 && !path.has_extension()) {
            programs.push_back(path);
        }
    }
    std::sort(programs.begin(), programs.end());
    ASSERT_FALSE(programs.empty()) << "no examples in " << folder;
    for (const std::filesystem::path& program : programs) {
        const std::string command =
            fmt::format("TILEWRIGHT_DEVICE=cuda '{}' 2>&1", program.string());
        EXPECT_EQ(std::system(command.c_str()), 0) << program;
    }
}

TEST(CudaExamples, NamesOfDevices) {
    const auto named = [](const char* name) {
        ::setenv("TILEWRIGHT_DEVICE", name, 1);
        const std::optional<int> device = run::offload_device();
        ::unsetenv("TILEWRIGHT_DEVICE");
        return device;
    };
    EXPECT_FALSE(run::offload_device());
    EXPECT_FALSE(named("cpu"));
    EXPECT_EQ(named("cuda"), 0);
    EXPECT_EQ(named("cuda:3"), 3);
    for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:1234567890"}) {
        EXPECT_THAT([&] { named(wrong); },
                    throws("expected TILEWRIGHT_DEVICE to be cpu, cuda or cuda:N"))
            << wrong;
        ::unsetenv("TILEWRIGHT_DEVICE");
    }
}

}  // namespace
}  // namespace tilewright
