// `tilewright warmup` and `tilewright precompile`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_pack.h"
#include "mask/gpu.h"
#include "tests/cli/run_program.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

TEST(CliWarmup, RunsTheCallOfItsOptions) {
    const ProgramResult outcome =
        run_program({"warmup", "--device", "cpu", "--q-len", "64", "--head-dim", "16", "--heads",
                     "2", "--causal", "--dtype", "f32", "--score", "score * 2", "--backward"});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("1 calls in "));
}

TEST(CliWarmup, RunsTheCallsOfAFile) {
    TemporaryFolder folder;
    const std::string file = folder / "calls.json";
    std::ofstream(file) << R"([{"q_len": 64, "causal": true}, {"q_len": 32, "window": "8,0"},
                              {"q_len": 16, "kv_len": 48, "backward": true}])";
    const ProgramResult outcome =
        run_program({"warmup", file, "--device", "cpu", "--head-dim", "16", "--dtype", "f32"});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("3 calls in "));
}

TEST(CliWarmup, RefusesByName) {
    TemporaryFolder folder;
    const std::string file = folder / "calls.json";
    const auto refused = [&](const std::string& text) {
        std::ofstream(file, std::ios::trunc) << text;
        const ProgramResult outcome = run_program({"warmup", file, "--device", "cpu"});
        EXPECT_EQ(outcome.status, 2);
        return outcome.error;
    };
    EXPECT_THAT(refused("{}"), HasSubstr("expected a JSON list of calls"));
    EXPECT_THAT(refused("[{"), HasSubstr("but got no JSON"));
    EXPECT_THAT(refused("[3]"), HasSubstr("expected an object for each call but got 3"));
    EXPECT_THAT(refused(R"([{"q_length": 3}])"), HasSubstr("but got \"q_length\""));
    EXPECT_THAT(refused(R"([{"q_len": "3"}])"), HasSubstr("expected an integer for \"q_len\""));
    EXPECT_THAT(refused(R"([{}])"), HasSubstr("expected sizes of at least 1 and --q-len"));
    EXPECT_THAT(refused(R"([{"q_len": 3, "dtype": "i8"}])"), HasSubstr("but got i8"));
    const ProgramResult missing = run_program({"warmup", folder / "none.json", "--device", "cpu"});
    EXPECT_EQ(missing.status, 2);
    EXPECT_THAT(missing.error, HasSubstr("expected a file that can be read"));
}

TEST(CliPrecompile, WritesAPackOfKernelsAndCompilesThemOnce) {
    if (!cuda::nvrtc_report().found()) GTEST_SKIP() << "NOT RUN: no NVRTC";
    TemporaryFolder folder;
    const std::string file = folder / "kernels.pack";
    const std::vector<std::string> arguments = {"precompile", file, "--only", "attention_lists"};
    const ProgramResult outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("kernels.pack: 1 units"));
    EXPECT_EQ(cuda::KernelPack(file).size(), 1u);
    EXPECT_EQ(cuda::KernelPack(file).compiler(), cuda::nvrtc_report().version);
    EXPECT_EQ(run_program(arguments).status, 0);
    EXPECT_EQ(cuda::KernelPack(file).size(), 1u);
    EXPECT_THAT(run_program({"precompile", file, "--only", "mask_"}).out, HasSubstr(": 2 units"));
    for (const auto kernel : {mask::MaskKernel::pieces, mask::MaskKernel::ranges}) {
        const std::string key = cuda::source_key(mask::kernel_request(kernel, "sm_90a"));
        EXPECT_TRUE(cuda::KernelPack(file).contains(key));
    }
    EXPECT_EQ(run_program({"precompile", file, "--head-dims", "60"}).status, 2);
    EXPECT_EQ(run_program({"precompile", file, "--dtypes", "f32"}).status, 2);
}

}  // namespace
}  // namespace tilewright::cli
