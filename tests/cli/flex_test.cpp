// `bench flex`, `attention` with mods from text, `dump flex`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/bench/flex_cases.h"
#include "cli/tensor_file.h"
#include "tests/cli/run_program.h"
#include "tests/cuda/test_support.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

TEST(BenchFlex, EveryCaseIsCheckedAndDrawn) {
    const auto result =
        run_program({"bench", "flex", "--seq-len", "200", "--heads", "2", "--head-dim", "16",
                     "--seconds", "0.001", "--baseline", "none"});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    for (const std::string& name : flex_case_names()) {
        EXPECT_THAT(result.out, HasSubstr("== " + name + " =="));
    }
    EXPECT_THAT(result.out, ::testing::Not(HasSubstr("NO")));
}

TEST(BenchFlex, OneCaseByName) {
    const auto result =
        run_program({"bench", "flex", "--seq-len", "64", "--case", "vision", "--no-check",
                     "--no-picture", "--seconds", "0.001", "--baseline", "none"});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.out, ::testing::Not(HasSubstr("noop")));
    EXPECT_EQ(run_program({"bench", "flex", "--case", "nothing"}).status, 2);
}

TEST(BenchFlex, TextsMakeACase) {
    const auto result =
        run_program({"bench", "flex", "--mask", "q - kv < 30", "--score", "softcap(2)", "--seq-len",
                     "100", "--kv-len", "90", "--heads", "4", "--kv-heads", "2", "--head-dim", "16",
                     "--seconds", "0.001"});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    EXPECT_THAT(result.out, HasSubstr("== q - kv < 30; softcap(2) =="));
    EXPECT_THAT(result.out, HasSubstr("correct: forward yes"));
    for (const std::vector<std::string>& wrong :
         {std::vector<std::string>{"flex", "--mask", "q >"},
          {"flex", "--mask", "q > kv", "--case", "noop"},
          {"flex", "--mask", "q > kv", "--baseline", "torch-flex"},
          {"matmul", "--mask", "q > kv"},
          {"flex", "--baseline", "onednn"},
          {"flex", "--kv-len", "10"}}) {
        std::vector<std::string> command{"bench"};
        command.insert(command.end(), wrong.begin(), wrong.end());
        EXPECT_EQ(run_program(command).status, 2);
    }
}

TEST(BenchAttention, TakesModsFromTexts) {
    const auto result = run_program({"bench", "attention", "--mask", "q >= kv", "--score",
                                     "alibi(2)", "--seq-len", "100", "--heads", "2", "--head-dim",
                                     "16", "--backward", "--seconds", "0.001"});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    EXPECT_THAT(result.out, HasSubstr("q >= kv; alibi(2)"));
}

TEST(FlexCases, ImageCasesKeepRowsTimesColumns) {
    for (std::int64_t length : {1, 7, 100, 128, 1024}) {
        for (const std::string& name : flex_case_names()) {
            FlexSizes sizes;
            sizes.length = length;
            EXPECT_NO_THROW(flex_case(name, sizes)) << name << length;
        }
    }
}

TEST(DumpFlex, ShowsTheModInTheProgram) {
    for (const char* kernel : {"flex", "flex_backward"}) {
        const auto result = run_program(
            {"dump", kernel, "--mask", "q - kv < 100", "--score", "softcap(20)", "--to", "ir"});
        EXPECT_EQ(result.status, 0) << result.error;
        EXPECT_THAT(result.out, HasSubstr("tanh"));
    }
    EXPECT_EQ(run_program({"dump", "matmul", "--score", "score"}).status, 2);
    EXPECT_EQ(run_program({"dump", "flex", "--score", "score +"}).status, 2);
}

TEST(DumpFlex, MultipliesWhereCallsOnAGpuDo) {
    for (const char* kernel : {"flex", "flex_backward"}) {
        const auto text = [&](const char* dtype) {
            return run_program({"dump", kernel, "--score", "20 * tanh(score / 20)", "--dtype",
                                dtype, "--arch", "sm_90a", "--to", "cuda"})
                .out;
        };
        EXPECT_THAT(text("f32"), HasSubstr("/ 20.0f"));
        EXPECT_THAT(text("bf16"), Not(HasSubstr("/ 20.0f")));
        EXPECT_THAT(text("bf16"), HasSubstr("kernel_attention"));
    }
}

/// On a GPU or the stand-in for one, whose times mean nothing.
TEST(CudaCallsBench, FlexChecksEveryResult) {
    TW_REQUIRE_GPU();
    TemporaryFolder folder;
    const ProgramResult result = run_program(
        {"bench",      "flex", "--device",     "cuda",        "--case",    "alibi_table",
         "--dtype",    "f32",  "--seq-len",    "20",          "--batch",   "1",
         "--heads",    "2",    "--head-dim",   "8",           "--seconds", "0.001",
         "--baseline", "none", "--no-picture", "--precision", "ieee",      "--json",
         folder / "r"});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    std::ifstream file(folder / "r");
    const auto rows = nlohmann::json::parse(file)["rows"];
    ASSERT_EQ(rows.size(), 2U);
    for (const auto& row : rows) {
        EXPECT_TRUE(row["ok"]) << row;
        EXPECT_GT(row["error"], 0) << row;
        EXPECT_LT(row["error"], 1e-4) << row;
    }
}

/// A script in place of Python accepts every job and reports a millisecond for each run.
TEST(BenchFlex, ARowOfTorchStandsBesideOurs) {
    TemporaryFolder folder;
    const std::string python = folder / "python";
    std::ofstream(python) << "#!/bin/sh\nwhile read -r line; do\n"
                             "case \"$line\" in run*) echo 0.001;; *) echo ready;; esac\ndone\n";
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
    ::setenv("TILEWRIGHT_PYTHON", python.c_str(), 1);
    const ProgramResult result = run_program({"bench", "flex", "--seq-len", "64", "--heads", "1",
                                              "--head-dim", "8", "--case", "alibi_computed",
                                              "--no-check", "--no-picture", "--seconds", "0.01"});
    ::unsetenv("TILEWRIGHT_PYTHON");
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.out, ::testing::ContainsRegex("\ntorch-flex +1\\.000 "));
}

}  // namespace
}  // namespace tilewright::cli
