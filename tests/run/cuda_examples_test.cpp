// Calls that TILEWRIGHT_DEVICE sends to a GPU: those of every example, unchanged, where each checks
// its own results, and those of threads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "run/offload.h"
#include "tests/cuda/test_support.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"
#include "tilewright/tilewright.h"

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

TEST(CudaCallsOffloaded, ThreadsMayWriteArraysThatLieBetweenEachOther) {
    TW_REQUIRE_GPU();
    constexpr std::int64_t kThreads = 8, kColumns = 16;
    const Call copy = call(kernel("copy", [](Ref x, Ref z) { z.store(x.load() + 1); }),
                           {.out_type = {{f32, {4, kColumns}}}});
    ::setenv("TILEWRIGHT_DEVICE", "cuda", 1);
    for (int repeat = 0; repeat < 20; ++repeat) {
        const Tensor whole = Tensor::zeros(f32, {4, kThreads * kColumns});
        std::vector<std::thread> threads;
        for (std::int64_t n = 0; n < kThreads; ++n) {
            threads.emplace_back([&, n] {
                copy.into({whole.slice(1, n * kColumns, kColumns)},
                          {Tensor::zeros(f32, {4, kColumns})});
            });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_THAT(whole.to_vector<float>(), testing::Each(1));
    }
    ::unsetenv("TILEWRIGHT_DEVICE");
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
