// `tilewright bench`: its rows, its JSON and its arithmetic. Times are not tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/bench/baseline.h"
#include "cli/bench/measure.h"
#include "cli/bench/waiting.h"
#include "cuda/runtime/compiler.h"
#include "tests/cli/run_program.h"
#include "tilewright/error.h"
#include "tilewright/system.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Measure, MedianAndInterleaving) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
    std::string order;
    const std::vector<Variant> variants = {{"a", [&] { return order += 'a', 1.0; }},
                                           {"b", [&] { return order += 'b', 2.0; }}};
    EXPECT_EQ(interleave(variants, {3, 3, 0}), (std::vector<double>{1, 2}));
    EXPECT_EQ(order, "ababab");
}

TEST(Measure, SamplesThatWaitedForCoresAreLeftOut) {
    const auto seconds = [](std::vector<Sample> samples) {
        std::vector<double> result;
        for (const Sample& sample : least_disturbed(std::move(samples)))
            result.push_back(sample.seconds);
        return result;
    };
    EXPECT_EQ(seconds({{1, 0}, {9, 0.5}, {2, 0.001}, {3, 0}}), (std::vector<double>{1, 3, 2}));
    // Too few are undisturbed: a quarter, and at least three, of those that waited least.
    EXPECT_EQ(seconds({{1, 0.4}, {2, 0.2}, {3, 0.3}, {4, 0.1}}), (std::vector<double>{4, 2, 3}));
    std::vector<Sample> many;
    for (int i = 0; i < 20; ++i) many.push_back({i + 1.0, 0.9 - 0.01 * i});
    EXPECT_EQ(seconds(many), (std::vector<double>{20, 19, 18, 17, 16}));
    EXPECT_EQ(seconds({{1, 0.5}}), (std::vector<double>{1}));
}

TEST(Measure, WaitingForACoreIsSeen) {
    if (!std::filesystem::exists("/proc/self/schedstat")) GTEST_SKIP() << "no waiting times here";
    const double before = waited_seconds();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
    std::vector<std::thread> threads;
    double after = before;
    // More than there are cores.
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency() + 1; ++i)
        threads.emplace_back([end] {
            while (std::chrono::steady_clock::now() < end) continue;
        });
    while (std::chrono::steady_clock::now() < end) after = std::max(after, waited_seconds());
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(after - before, 0.01);
    EXPECT_EQ(waited_seconds(999'999'999), 0);  // no such process
}

TEST(Measure, JsonKeepsWhatIsNotKnownAsNull) {
    Row row;
    row.case_name = "c";
    row.tflops = 0.5;
    const auto json =
        nlohmann::json::parse(to_json("device", {"bench", "norm"}, std::vector<Row>{row}, false));
    EXPECT_EQ(json["device"], "device");
    EXPECT_EQ(json["version"], TILEWRIGHT_VERSION);
    EXPECT_THAT(json["date"].get<std::string>(), ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
    EXPECT_GT(json["machine"]["cores"], 0);
    EXPECT_GT(json["machine"]["memory_bytes"], 0);
    EXPECT_FALSE(json["machine"]["kernels"].get<std::string>().empty());
    EXPECT_EQ(json["options"], (std::vector<std::string>{"bench", "norm"}));
    EXPECT_EQ(json["complete"], false);
    EXPECT_EQ(json["rows"][0]["tflops"], 0.5);
    EXPECT_TRUE(json["rows"][0]["gbs"].is_null());
    EXPECT_TRUE(json["rows"][0]["sustained"].is_null());
    EXPECT_TRUE(json["rows"][0]["best_ratio"].is_null());
    EXPECT_TRUE(json["rows"][0]["best_hints"].is_null());
    EXPECT_TRUE(json["rows"][0]["waited"].is_null());
    EXPECT_EQ(json["rows"][0]["ok"], true);
}

TEST(BenchCommand, EveryOperationWritesItsRows) {
    TemporaryFolder folder;
#if defined(__x86_64__)
    constexpr std::size_t kNormRows = 6;  // the first one is a copy past the caches
#else
    constexpr std::size_t kNormRows = 5;
#endif
    const std::vector<std::pair<std::vector<std::string>, std::size_t>> cases = {
        {{"attention", "--seq-len", "64", "--heads", "2", "--head-dim", "16", "--backward"}, 4},
        {{"decode", "--kv-len", "100", "--heads", "4", "--kv-heads", "2", "--head-dim", "16",
          "--threads", "1"},
         1},
        {{"matmul", "--seq-len", "96"}, 1},
        {{"norm", "--seq-len", "10", "--head-dim", "64"}, kNormRows},
        {{"compile"}, 4},
    };
    for (const auto& [arguments, rows] : cases) {
        std::vector<std::string> all = {"bench", "--seconds", "0.01", "--json", folder / "r.json"};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const ProgramResult result = run_program(all);
        EXPECT_EQ(result.status, 0) << arguments[0] << result.error << result.out;
        std::ifstream file(folder / "r.json");
        const auto json = nlohmann::json::parse(file);
        ASSERT_EQ(json["rows"].size(), rows) << arguments[0];
        if (std::find(all.begin(), all.end(), "--threads") != all.end()) {
            EXPECT_THAT(json["device"].get<std::string>(), EndsWith(", 1 thread"));
        }
        set_num_threads(0);
        for (const auto& row : json["rows"]) {
            EXPECT_GT(row["ms"], 0);
            EXPECT_EQ(row["ok"], true) << row.dump();
            EXPECT_EQ(row["impl"], row["op"] == "copy" ? "streaming" : "tilewright");
        }
    }
}

TEST(BenchCommand, CompilesKernelsWithoutAGpu) {
    if (!cuda::nvrtc_report().found()) GTEST_SKIP() << "NOT RUN: there is no NVRTC";
    TemporaryFolder folder;
    const ProgramResult result =
        run_program({"bench", "compile", "--arch", "sm_90a", "--dtype", "bf16", "--case",
                     "rms_norm", "--seconds", "0.01", "--json", folder / "r.json"});
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    std::ifstream file(folder / "r.json");
    const auto json = nlohmann::json::parse(file);
    ASSERT_EQ(json["rows"].size(), 4);
    const char* const operations[] = {"passes", "nvrtc", "passes", "nvrtc"};
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(json["rows"][i]["op"], operations[i]);
        EXPECT_GT(json["rows"][i]["ms"], 0);
    }
    EXPECT_EQ(json["rows"][2]["case"], "rms_norm_backward bf16 sm_90a");
}

TEST(BenchCommand, KernelsOfTheSuiteGiveWhatPlainLoopsGive) {
    TemporaryFolder folder;
    const ProgramResult result = run_program({"bench", "cpu", "--small", "--seconds", "0.001",
                                              "--baseline", "none", "--json", folder / "r.json"});
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    EXPECT_THAT(result.out, HasSubstr("kernels: geometric mean"));
    EXPECT_THAT(result.out, HasSubstr(" x plain, least "));
    std::ifstream file(folder / "r.json");
    const auto json = nlohmann::json::parse(file);
    ASSERT_GE(json["rows"].size(), 70U);
    EXPECT_FALSE(json.contains("peers"));
    for (std::size_t i = 0; i < json["rows"].size(); ++i) {
        const auto& row = json["rows"][i];
        EXPECT_EQ(row["impl"], i % 2 == 0 ? "plain" : "tilewright");
        EXPECT_EQ(row["op"], "forward");
        if (i % 2 == 0) continue;
        EXPECT_EQ(row["case"], json["rows"][i - 1]["case"]);
        EXPECT_EQ(row["baseline"], "plain");
        EXPECT_GT(row["ratio"], 0);
        EXPECT_TRUE(row["error"].is_number());
        EXPECT_EQ(row["ok"], true) << row.dump();
    }
}

TEST(BenchCommand, CasesOfTheSuiteAreChosenByName) {
    const ProgramResult result = run_program({"bench", "cpu", "--small", "--case", "softmax",
                                              "--seconds", "0.001", "--baseline", "none"});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.out, HasSubstr("softmax 64 x 128 f32"));
    EXPECT_THAT(result.out, HasSubstr("\n1 kernels: "));
    const ProgramResult none =
        run_program({"bench", "cpu", "--small", "--case", "nothing", "--baseline", "none"});
    EXPECT_EQ(none.status, 2);
    EXPECT_THAT(none.error, HasSubstr("--case to be part of a case's name but got nothing"));
}

TEST(BenchCommand, KernelsOfTheSuiteAreComparedWithTheBestTiles) {
    TemporaryFolder folder;
    ::setenv("TILEWRIGHT_CACHE_DIR", (folder / "cache").c_str(), 1);
    // Sums that are updated in place, blocks that are cut, and one that is not.
    for (const std::string name : {"segment_sum", "softmax", "cholesky"}) {
        const ProgramResult result =
            run_program({"bench", "cpu", "--small", "--case", name, "--seconds", "0.001",
                         "--baseline", "none", "--autotune", "--json", "-"});
        EXPECT_EQ(result.status, 0) << result.error;
        EXPECT_THAT(result.error, HasSubstr(" of the best, "));
        EXPECT_THAT(result.error, HasSubstr("blocks as they are take at most "));
        EXPECT_EQ(result.error.find("lanes=0, rows=0: ") != std::string::npos, name != "cholesky");
        const auto json = nlohmann::json::parse(result.out);
        ASSERT_EQ(json["rows"].size(), 2U);
        EXPECT_TRUE(json["rows"][0]["best_ratio"].is_null());
        EXPECT_GE(json["rows"][1]["best_ratio"], 1);
        EXPECT_THAT(json["rows"][1]["best_hints"].get<std::string>(),
                    ::testing::AnyOf("blocks as they are", ::testing::StartsWith("tiles of ")));
    }
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
}

/// A stand-in for Python that answers like bench/cpu_peers.py: torch is installed and gives zeros,
/// onednn lacks every kernel, and the others are missing.
class StandInPython {
  public:
    StandInPython() {
        const std::string path = folder_ / "python";
        std::ofstream(path) << R"(#!/bin/sh
while read -r line; do
    case $line in
    run*) echo 0.25 ;;
    *'"library":"torch"'*) echo ready ;;
    *'"kernel"'*'"library":"onednn"'*) echo 'error: NotImplementedError: softmax' ;;
    *'"library":"onednn"'*) echo ready ;;
    *'"operation":"matmul"'*) echo 'error: RuntimeError: No available kernel' ;;
    *) echo "error: ModuleNotFoundError: No module named 'numba'" ;;
    esac
done
)";
        std::filesystem::permissions(path, std::filesystem::perms::owner_all);
        ::setenv("TILEWRIGHT_PYTHON", path.c_str(), 1);
    }
    ~StandInPython() { ::unsetenv("TILEWRIGHT_PYTHON"); }

  private:
    TemporaryFolder folder_;
};

TEST(BenchCommand, ABaselineThatRefusesACaseNeedsNoInstallation) {
    const StandInPython python;
    const ProgramResult result = run_program({"bench", "matmul", "--baseline", "torch"});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.error, HasSubstr("--baseline torch to run this case but got "
                                        "\"error: RuntimeError: No available kernel\""));
    EXPECT_THAT(result.error, Not(HasSubstr("TILEWRIGHT_PYTHON")));
}

TEST(BenchCommand, OtherLibrariesHaveRowsBesidePlainLoops) {
    const StandInPython python;
    const auto run_suite = [](const std::string& baseline) {
        return run_program({"bench", "cpu", "--small", "--case", "softmax", "--seconds", "0.001",
                            "--baseline", baseline, "--json", "-"});
    };
    const ProgramResult result = run_suite("torch");
    EXPECT_EQ(result.status, 1);  // zeros are no softmax
    EXPECT_THAT(result.error, HasSubstr("FAILED"));
    EXPECT_THAT(result.error, HasSubstr("1 kernels: geometric mean"));
    EXPECT_THAT(result.error, HasSubstr(" x torch, least "));
    const auto json = nlohmann::json::parse(result.out);
    ASSERT_EQ(json["rows"].size(), 3U);
    const auto &plain = json["rows"][0], &torch = json["rows"][1], &ours = json["rows"][2];
    EXPECT_EQ(plain["impl"], "plain");
    EXPECT_EQ(torch["impl"], "torch");
    EXPECT_EQ(torch["ms"], 250);
    EXPECT_EQ(torch["ok"], false);
    EXPECT_EQ(torch["error"], 1);
    EXPECT_EQ(torch["baseline"], "plain");
    EXPECT_LT(torch["ratio"], 1);
    EXPECT_EQ(ours["impl"], "tilewright");
    EXPECT_EQ(ours["ok"], true);
    EXPECT_TRUE(json["peers"].contains("torch"));
}

TEST(BenchCommand, MissingLibrariesAreNamed) {
    const StandInPython python;
    std::vector<std::string> arguments = {"bench",  "cpu", "--small",   "--case", "softmax",
                                          "--json", "-",   "--seconds", "0.001",  "--no-check"};
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.error, HasSubstr("no rows of numba: No module named 'numba'\n"));
    EXPECT_THAT(result.error, HasSubstr("no rows of halide: "));
    EXPECT_THAT(result.error, HasSubstr("`./dev python peers` in the checkout installs"));
    const auto json = nlohmann::json::parse(result.out);
    ASSERT_EQ(json["rows"].size(), 3U);  // plain, torch, tilewright: onednn has no such kernel
    EXPECT_EQ(json["peers"]["numba"], "not installed: No module named 'numba'");
    arguments.insert(arguments.end(), {"--baseline", "numba"});
    const ProgramResult named = run_program(arguments);
    EXPECT_EQ(named.status, 2);
    EXPECT_THAT(named.error, HasSubstr("--baseline numba to be installed but got \"No module"));
}

TEST(BenchCommand, JsonOnStandardOutputIsAloneThere) {
    const ProgramResult result =
        run_program({"bench", "matmul", "--seq-len", "64", "--seconds", "0.01", "--json", "-"});
    EXPECT_EQ(result.status, 0) << result.error;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["rows"].size(), 1U);
    EXPECT_EQ(json["complete"], true);
    EXPECT_THAT(result.error, HasSubstr("matmul 64 x 64 x 64 f32\n  forward  tilewright"));
    EXPECT_THAT(result.error, HasSubstr("% of FMA peak"));
}

/// Runs the benchmark in this process and interrupts it once `finished` is true.
void run_interrupted(const std::vector<std::string>& arguments,
                     const std::function<bool()>& finished) {
    std::thread watcher([&] {
        while (!finished()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::raise(SIGINT);
    });
    watcher.detach();
    run_program(arguments);
    std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(BenchCommandDeathTest, InterruptedRunsKeepTheirRows) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    const std::string path =
        (std::filesystem::temp_directory_path() / "tilewright_interrupted.json").string();
    const std::vector<std::string> arguments = {"bench",      "norm", "--seq-len", "10",
                                                "--head-dim", "64",   "--seconds", "0.2"};
    const auto with = [&](const std::string& json) {
        std::vector<std::string> all = arguments;
        all.insert(all.end(), {"--json", json});
        return all;
    };
    std::filesystem::remove(path);
    EXPECT_EXIT(run_interrupted(with(path), [&] { return std::filesystem::exists(path); }),
                ::testing::ExitedWithCode(130), "interrupted: the rows so far are in");
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file);
    EXPECT_EQ(json["complete"], false);
    EXPECT_GE(json["rows"].size(), 1U);
    EXPECT_LT(json["rows"].size(), 5U);
    std::filesystem::remove(path);
}

TEST(BenchCommand, BadInputIsStatus2AndNamed) {
    const auto expect_error = [&](std::vector<std::string> arguments, const char* part) {
        arguments.insert(arguments.begin(), "bench");
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 2);
        EXPECT_THAT(result.error, HasSubstr(part));
    };
    expect_error({"nothing"}, "operation");
    expect_error({"attention", "--seq-len", "0"}, "--seq-len");
    expect_error({"attention", "--dtype", "i8"}, "--dtype");
    expect_error({"attention", "--baseline", "onednn"}, "torch-sdpa");
    expect_error({"flex", "--baseline", "xla"}, "torch-flex");
    expect_error({"matmul", "--baseline", "fa4"}, "torch or xla");
    expect_error({"cpu", "--baseline", "xla"},
                 "--baseline onednn, torch, torch-compile, numba, halide or none but got xla");
    expect_error({"attention", "--threads", "0"}, "--threads");
    expect_error({"attention", "--device", "tpu"}, "--device");
    expect_error({"attention", "--sweep"}, "--sweep with --device cuda");
    expect_error({"attention", "--sweep-head-dim"}, "--sweep-head-dim with --device cuda");
    expect_error({"attention", "--sweep-head-dim", "--sweep"}, "--sweep or --sweep-head-dim");
    expect_error({"norm", "--sustained"}, "--sustained with --device cuda");
    expect_error({"norm", "--graphs"}, "--graphs");
    expect_error({"compile", "--arch", "tpu"}, "tpu");
    expect_error({"compile", "--arch", "sm_90a", "--head-dim", "64"}, "--arch or --head-dim");
    expect_error({"compile", "--case", "norm"}, "--case of compile with --arch");
    expect_error({"compile", "--arch", "sm_90a", "--case", "nothing"},
                 "program's name but got nothing");
    expect_error({"attention", "--engine", "tiles"}, "--engine");
    expect_error({"attention", "--precision", "tf32"}, "--precision with --device cuda");
    expect_error({"attention", "--precision", "tf32", "--dtype", "bf16"}, "--dtype f32");
    expect_error({"attention", "--precision", "fast"}, "--precision");
    expect_error({"matmul", "--baseline", "onednn", "--dtype", "bf16"}, "f32");
    for (const std::string seconds : {"0", "-1", "nan", "inf", "1e9", "x"})
        expect_error(
            {"matmul", "--seconds", seconds},
            ("--seconds: expected a number above 0 and at most 3600 but got " + seconds).c_str());
    expect_error({"matmul", "--threads", "0"},
                 "--threads: expected an integer of 1 to 65536 but got 0");
    expect_error({"matmul", "--json", "/nowhere/r.json"},
                 "[bench --json] expected a path that can be written but got /nowhere/r.json");
}

TEST(BenchCommand, OptionsThatAnOperationDoesNotReadAreRefused) {
    const std::vector<std::vector<std::string>> cases = {{"matmul", "--heads", "2"},
                                                         {"norm", "--batch", "2"},
                                                         {"decode", "--causal"},
                                                         {"norm", "--backward"},
                                                         {"compile", "--seq-len", "9"},
                                                         {"matmul", "--head-dim", "9"},
                                                         {"mask", "--kv-len", "9"},
                                                         {"mask", "--kv-heads", "9"},
                                                         {"mask", "--baseline", "torch"},
                                                         {"attention", "--case", "noop"},
                                                         {"norm", "--no-picture"},
                                                         {"matmul", "--no-deterministic"},
                                                         {"cpu", "--dtype", "f32"},
                                                         {"cpu", "--seq-len", "9"},
                                                         {"norm", "--small"},
                                                         {"matmul", "--precision", "tf32"}};
    for (const std::vector<std::string>& wrong : cases) {
        std::vector<std::string> arguments = {"bench"};
        arguments.insert(arguments.end(), wrong.begin(), wrong.end());
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 2) << wrong[0] << " " << wrong[1];
        EXPECT_THAT(result.error, HasSubstr("expected " + wrong[1] + " with "));
        EXPECT_THAT(result.error, HasSubstr("but got " + wrong[0]));
        EXPECT_EQ(result.out, "");
    }
}

TEST(Baseline, AdviceFitsCheckoutsAndInstalledPrograms) {
    TemporaryFolder folder;
    const std::filesystem::path root = folder / "checkout", elsewhere = folder / "elsewhere";
    std::filesystem::create_directories(root / "bench");
    std::filesystem::create_directories(elsewhere);
    std::ofstream(root / "bench" / "torch_baseline.py") << '\n';
    EXPECT_EQ(baseline_checkout("torch", root / "build" / "tilewright", elsewhere), root);
    EXPECT_EQ(baseline_checkout("torch", elsewhere / "tilewright", root), root);
    try {
        baseline_checkout("torch", elsewhere / "tilewright", elsewhere);
        FAIL();
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("--baseline torch in a checkout"));
        EXPECT_THAT(error.what(), HasSubstr((elsewhere / "tilewright").string()));
    }
    // ./dev cannot install packages in the user's own Python.
    ::setenv("TILEWRIGHT_PYTHON", "/bin/false", 1);
    const ProgramResult result = run_program({"bench", "matmul", "--baseline", "torch"});
    ::unsetenv("TILEWRIGHT_PYTHON");
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.error, HasSubstr("TILEWRIGHT_PYTHON must name a Python with torch"));
}

}  // namespace
}  // namespace tilewright::cli
