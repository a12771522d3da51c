// `tilewright mask` and `tilewright bench mask`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/tensor_file.h"
#include "tests/cli/run_program.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

TEST(CliMask, Draws) {
    TemporaryFolder folder;
    const ProgramResult outcome =
        run_program({"mask", "causal & sliding_window(64)", "--q-len", "256", "--kv-len", "256",
                     "--block", "64", "--svg", folder / "m.svg", "--png", folder / "m.png"});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("░░      \n░░░░    \n  ░░░░  \n    ░░░░\n"));
    EXPECT_THAT(outcome.out, HasSubstr("sparsity  56.25% of blocks of 64 x 64"));
    EXPECT_THAT(outcome.out, HasSubstr("0 full and 7 partial of 64 x 64, 2 distinct"));
    EXPECT_THAT(outcome.out, HasSubstr("built in"));
    EXPECT_TRUE(std::ifstream(folder / "m.svg").good());
    EXPECT_TRUE(std::ifstream(folder / "m.png").good());
}

TEST(CliMask, ReadsArrays) {
    TemporaryFolder folder;
    const std::string path = folder / "ids.npy";
    save_tensors({{path, "ids", Tensor::from_vector<int>({0, 0, 1, 1}, {4})}});
    const ProgramResult outcome = run_program({"mask", "document(ids)", "--q-len", "4", "--kv-len",
                                               "4", "--block", "2", "1", "--bind", "ids=" + path});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("████    \n    ████\n"));
}

TEST(CliMask, SizesOfBlocksAreOneOrTwo) {
    const auto drawn = [](const std::vector<std::string>& block) {
        std::vector<std::string> arguments = {"mask",     "causal", "--q-len", "256",
                                              "--kv-len", "256",    "--block"};
        arguments.insert(arguments.end(), block.begin(), block.end());
        const ProgramResult outcome = run_program(arguments);
        EXPECT_EQ(outcome.status, 0) << outcome.error;
        return outcome.out.substr(0, outcome.out.find("built in"));
    };
    EXPECT_THAT(drawn({"64,32"}), HasSubstr("of blocks of 64 x 32"));
    EXPECT_EQ(drawn({"64", "32"}), drawn({"64,32"}));
    EXPECT_EQ(drawn({"64"}), drawn({"64,64"}));
}

TEST(CliMask, SizesHaveSuffixes) {
    const ProgramResult outcome =
        run_program({"mask", "causal", "--q-len", "1Ki", "--kv-len", "1k"});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("1024, 1000"));
}

TEST(CliMask, PicturesGoToStandardOutput) {
    const std::vector<std::string> arguments = {"mask", "causal",   "--q-len",
                                                "64",   "--kv-len", "64"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), arguments.begin(), arguments.end());
        return run_program(more);
    };
    EXPECT_THAT(with({"--svg", "-"}).out, ::testing::StartsWith("<svg "));
    EXPECT_THAT(with({"--svg", "-"}).error, HasSubstr("sparsity"));
    EXPECT_THAT(with({"--png", "-"}).out, ::testing::StartsWith("\x89PNG"));
    EXPECT_THAT(with({"--png", "-", "--svg", "-"}).error, HasSubstr("but got several"));
}

TEST(CliMask, ArraysComeFromStandardInput) {
    const ProgramResult ids =
        run_program({"random", "--documents", "3", "--shape", "64", "--out", "-"});
    EXPECT_EQ(ids.status, 0);
    const ProgramResult outcome = run_program(
        {"mask", "document(ids)", "--q-len", "64", "--kv-len", "64", "--bind", "ids=-"}, ids.out);
    EXPECT_EQ(outcome.status, 0) << outcome.error;
}

TEST(CliMask, RefusesBadInput) {
    const auto error = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "mask");
        const ProgramResult outcome = run_program(arguments);
        EXPECT_EQ(outcome.status, 2);
        return outcome.error;
    };
    const std::vector<std::string> lengths = {"--q-len", "4", "--kv-len", "4"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.end(), lengths.begin(), lengths.end());
        return more;
    };
    EXPECT_THAT(error({"causal", "--q-len", "4"}), HasSubstr("--kv-len"));
    EXPECT_THAT(error(with({"causl"})), HasSubstr("causl"));
    EXPECT_THAT(error(with({"causal", "--block", "0"})), HasSubstr("block sizes of at least 1"));
    for (const char* block : {"64,32,16", "64,", ",64", "x", "99999999999999999999"})
        EXPECT_THAT(error(with({"causal", "--block", block})), HasSubstr("--block SIZE or Q,KV"));
    EXPECT_THAT(error(with({"softcap(20)"})), HasSubstr("a mask but `softcap` is a score"));
    EXPECT_THAT(error(with({"q"})), HasSubstr("expected a mask, that is a bool"));
    EXPECT_THAT(error(with({"q"})), HasSubstr("but got i64"));
    TemporaryFolder folder;
    save_tensors({{folder / "a.npy", "a", Tensor::zeros(i32, {4})}});
    EXPECT_THAT(error(with({"causal", "--bind", "a=" + (folder / "a.npy")})),
                HasSubstr("--bind a but none does"));
    EXPECT_THAT(error(with({"causal", "--bind", "ids"})), HasSubstr("--bind name=FILE"));
    EXPECT_THAT(error(with({"causal", "--png", "m.svg"})), HasSubstr("ends in .png"));
    for (const std::string ending : {"svg", "png"}) {
        const std::string path = folder / ("none/m." + ending);
        const ProgramResult ran = run_program(with({"mask", "causal", "--" + ending, path}));
        EXPECT_THAT(ran.error, HasSubstr(path));
        EXPECT_EQ(ran.out, "") << "refused before anything is computed";
    }
    EXPECT_THAT(error(with({"q >= kv + h", "--batch", "2"})),
                HasSubstr("expected --heads for a mask that depends on h but got none"));
    EXPECT_THAT(error(with({"q >= kv + b", "--heads", "2"})),
                HasSubstr("expected --batch for a mask that depends on b but got none"));
    EXPECT_THAT(error({"causal", "--q-len", "-4", "--kv-len", "4"}), HasSubstr("q_len and kv_len"));
}

TEST(CliMask, Benchmarks) {
    const ProgramResult outcome =
        run_program({"bench", "mask", "--seq-len", "1024", "--seconds", "0.01"});
    EXPECT_EQ(outcome.status, 0) << outcome.error;
    EXPECT_THAT(outcome.out, HasSubstr("causal & document"));
    EXPECT_THAT(outcome.out, HasSubstr("natten(32, 32, 7, 7)"));
}

}  // namespace
}  // namespace tilewright::cli
