// The program's shell: subcommands, exit statuses, where output goes.
#include "cli/app.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "run/fastest.h"
#include "support/disk_cache.h"
#include "tests/cli/run_program.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(App, VersionAndHelpGoToStandardOutput) {
    ProgramResult result = run_program({"--version"});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.out, std::string(TILEWRIGHT_VERSION) + "\n");
    result = run_program({"--help"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out, HasSubstr("doctor"));
    EXPECT_EQ(result.error, "");
}

TEST(App, BadUsageIsStatus2OnStandardError) {
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {}, {"nonsense"}, {"doctor", "--nonsense"}, {"cache"}, {"cache", "eat"}}) {
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 2) << fmt::format("{}", fmt::join(arguments, " "));
        EXPECT_EQ(result.out, "");
        EXPECT_NE(result.error, "");
    }
}

TEST(App, SubcommandsThatCouldBeMeantAreNamed) {
    const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
        {{},
         "[tilewright] expected one of doctor, bench, attention, mask, dump, explain, export, run, "
         "random, "
         "precompile, warmup, cache (see --help) but got nothing"},
        {{"--nonsense"}, "warmup, cache (see --help) but got `--nonsense`"},
        {{"cache"}, "[cache] expected one of list, clear, path (see --help) but got nothing"},
        {{"cache", "eat"}, "[cache] expected one of list, clear, path (see --help) but got `eat`"}};
    for (const auto& [arguments, message] : cases)
        EXPECT_THAT(run_program(arguments).error, HasSubstr(message));
    EXPECT_EQ(run_program({"cache", "--help"}).status, 0);
}

TEST(App, EmptyValuesAreRefusedByName) {
    const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
        {{"mask", "", "--q-len", "4", "--kv-len", "4"},
         "[mask] mask: expected a value but got an empty"},
        {{"dump", "flex", "--mask", ""}, "--mask: expected a value but got an empty text"},
        {{"bench", "flex", "--score", ""}, "--score: expected a value"},
        {{"attention", "--query", "q.npy", "--key", "k.npy", "--value", "v.npy", "--out", "o.npy",
          "--window", ""},
         "--window: expected a value"}};
    for (const auto& [arguments, message] : cases) {
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 2);
        EXPECT_THAT(result.error, HasSubstr(message));
    }
}

TEST(App, DoctorDescribesTheMachine) {
    const ProgramResult result = run_program({"doctor"});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.error, "");
    for (const char* part : {"tilewright " TILEWRIGHT_VERSION, "cores", "memory", "kernels",
                             "CUDA driver", "NVRTC", "nvdisasm", "oneTBB", "compiler",
                             "Cache\n  folder", "\n  state       ", "Caches in memory\n  "}) {
        EXPECT_THAT(result.out, HasSubstr(part));
    }
}

TEST(App, OutputThatCannotBeWrittenIsStatus1) {
    TemporaryFolder folder;
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"--help"},
             {"mask", "--help"},
             {"--version"},
             {"doctor"},
             {"dump", "softmax"},
             {"mask", "causal", "--q-len", "9", "--kv-len", "9"},
             {"mask", "causal", "--q-len", "9", "--kv-len", "9", "--png", "-"},
             {"random", "--shape", "4", "--out", folder / "x.npy"},
             {"random", "--shape", "4", "--out", "-"},
             {"bench", "matmul", "--seq-len", "32", "--seconds", "0.01", "--json", "-"},
             {"cache", "path"}}) {
        std::ofstream full("/dev/full");
        std::ostringstream error;
        EXPECT_EQ(run(arguments, full, error), 1) << fmt::format("{}", fmt::join(arguments, " "));
        EXPECT_THAT(error.str(), HasSubstr("[tilewright] could not write all of standard output: "
                                           "No space left on device\n"));
    }
}

TEST(App, NobodyReadingIsNoError) {
    std::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    close(ends[0]);
    std::ofstream closed(fmt::format("/dev/fd/{}", ends[1]));
    std::ostringstream error;
    EXPECT_EQ(run({"doctor"}, closed, error), 141);
    EXPECT_EQ(error.str(), "");
    close(ends[1]);
}

TEST(App, ErrorsOfUsageHaveOneStyle) {
    const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
        {{"mask", "causal", "--kv-len", "4"}, "[mask] expected --q-len but it was left out\n"},
        {{"mask"}, "[mask] expected an argument `mask` (see --help) but it was left out\n"},
        {{"mask", "causal", "--kv-len", "4", "--q-len"},
         "[mask] --q-len: expected a value but got none\n"},
        {{"mask", "causal", "--kv-len", "4x", "--q-len", "4"},
         "[mask] --kv-len: expected an integer, as 4096, 4k (4000) or 4Ki (4096), but got 4x\n"},
        {{"mask", "causal", "--kv-len", "9Gi", "--q-len", "9999999999999999Gi"},
         "but got 9999999999999999Gi\n"},
        {{"doctor", "--nonsense"},
         "[doctor] expected nothing beyond what --help lists but got `--nonsense`\n"},
        {{"doctor", "--nonsense", "1"},
         "[doctor] expected nothing beyond what --help lists but got `--nonsense 1`\n"},
        {{"mask", "document(ids)", "--q-len", "4", "--kv-len", "4"},
         "an array bound by its name (there is none), a function or a library name but got `ids`"},
        {{"bench", "norm", "--dtype", "i8"},
         "[bench] expected --dtype f32, bf16, f16 or f64 for norm but got i8\n"},
        {{"attention", "--scale", "x"}, "[attention] --scale: expected a number but got x\n"},
        {{"cache", "list", "--all"}, "[list] expected nothing beyond"}};
    for (const auto& [arguments, message] : cases) {
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 2);
        EXPECT_THAT(result.error, HasSubstr(message));
    }
}

TEST(App, HelpNamesDefaultsAndUnits) {
    const auto help = [](const std::string& command) {
        return run_program({command, "--help"}).out;
    };
    EXPECT_THAT(help("mask"),
                testing::AllOf(HasSubstr("--block SIZE|Q,KV=128"), HasSubstr("--batch N  "),
                               HasSubstr("needed where the mask depends on b")));
    EXPECT_THAT(help("attention"),
                testing::AllOf(HasSubstr("[1/sqrt(E)]"), HasSubstr("--layout ORDER=bhsd"),
                               HasSubstr("--device DEVICE=cpu"), HasSubstr("else all cores]")));
    EXPECT_THAT(help("bench"), testing::AllOf(HasSubstr("--seconds SECONDS=1.5"),
                                              HasSubstr("Sizes by default, cpu: attention B1 H8")));
    EXPECT_THAT(help("random"), HasSubstr("[0,100]"));
}

TEST(App, CacheIsListedAndCleared) {
    const fs::path folder =
        fs::path(testing::TempDir()) / fmt::format("tilewright_app_{}", getpid());
    setenv("TILEWRIGHT_CACHE_DIR", folder.c_str(), 1);
    EXPECT_EQ(run_program({"cache", "path"}).out, folder.string() + "\n");
    EXPECT_THAT(run_program({"cache", "list"}).out, HasSubstr("0 entries, 0 bytes"));
    ASSERT_TRUE(DiskCache(folder / "kernels").put("softmax sm_90a\nsource", "12345"));
    ASSERT_TRUE(DiskCache(folder / "autotune").put("matmul", "1"));
    const auto run = [](const Config& config) { return config["block"] == 64 ? 1.0 : 2.0; };
    run::fastest({{{"block", 1}}, {{"block", 64}}}, "sum cpu;f32[4096]", Device{}, run);
    const ProgramResult listed = run_program({"cache", "list"});
    EXPECT_THAT(listed.out, HasSubstr("  autotune  sum cpu;f32[4096]: block=64\n"));
    EXPECT_THAT(listed.out, HasSubstr("5  kernels  softmax sm_90a\n"));
    EXPECT_THAT(listed.out, HasSubstr("3 entries, 102 bytes"));
    fs::create_directories(folder / "kernels" / "failed" / "0123456789ab");
    EXPECT_THAT(run_program({"cache", "clear"}).out, HasSubstr("removed 3 entries"));
    EXPECT_FALSE(fs::exists(folder / "kernels" / "failed"));
    EXPECT_THAT(run_program({"cache", "list"}).out, HasSubstr("0 entries"));
    unsetenv("TILEWRIGHT_CACHE_DIR");
    fs::remove_all(folder);
}

}  // namespace
}  // namespace tilewright::cli
