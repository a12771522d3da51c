// `tilewright run`: programs from IR text on files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cli/tensor_file.h"
#include "tests/cli/run_program.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kAdd = R"(func @add(%x: ref<f32[4]>, %y: ref<f32[4]>, %z: ref<f32[4]>) {
  %0 = constant 0 : i64
  %1 = load %x[%0 : 4] : f32[4]
  %2 = load %y[%0 : 4] : f32[4]
  %3 = add %1, %2 : f32[4]
  store %z[%0 : 4], %3
  yield
}
)";

class RunCommand : public ::testing::Test {
  protected:
    void SetUp() override {
        std::ofstream(folder_ / "add.ir") << kAdd;
        const std::vector<float> x{1, 2, 3, 4}, y{10, 20, 30, 40};
        save_tensors({{folder_ / "x.npy", "x", Tensor::from_vector(x, {4})},
                      {folder_ / "y.npy", "y", Tensor::from_vector(y, {4})}});
    }
    std::vector<float> result(const std::string& file) {
        return load_tensor(folder_ / file, "z").to_vector<float>();
    }
    ProgramResult run(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"run", folder_ / "add.ir"});
        return run_program(arguments);
    }

    TemporaryFolder folder_;
};

TEST_F(RunCommand, FilesInOrderAndByName) {
    const std::vector<float> sum{11, 22, 33, 44};
    ProgramResult done =
        run({"--in", folder_ / "x.npy", "--in", folder_ / "y.npy", "--out", folder_ / "z.npy"});
    EXPECT_EQ(done.status, 0) << done.error;
    EXPECT_EQ(result("z.npy"), sum);
    done = run({"--in", "y=" + (folder_ / "y.npy"), "--in", folder_ / "x.npy", "--out",
                "z=" + (folder_ / "named.safetensors"), "--checked"});
    EXPECT_EQ(done.status, 0) << done.error;
    EXPECT_EQ(result("named.safetensors"), sum);
}

TEST_F(RunCommand, StandardInputAndOutput) {
    const auto bytes_of = [&](const std::string& file) {
        std::ifstream from(folder_ / file, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(from), {});
    };
    const std::string y = folder_ / "y.npy";
    const ProgramResult done = run_program(
        {"run", folder_ / "add.ir", "--in", "-", "--in", y, "--out", "-", "--threads", "1"},
        bytes_of("x.npy"));
    EXPECT_EQ(done.status, 0) << done.error;
    std::ofstream(folder_ / "z.npy", std::ios::binary) << done.out;
    EXPECT_EQ(result("z.npy"), (std::vector<float>{11, 22, 33, 44}));
    const ProgramResult program = run_program(
        {"run", "-", "--in", folder_ / "x.npy", "--in", y, "--out", folder_ / "w.npy"}, kAdd);
    EXPECT_EQ(program.status, 0) << program.error;
    EXPECT_EQ(result("w.npy"), (std::vector<float>{11, 22, 33, 44}));
    EXPECT_THAT(run_program({"run", "-", "--in", "-", "--in", y}, kAdd).error,
                HasSubstr("standard input"));
}

TEST_F(RunCommand, BadInputIsNamed) {
    const auto refused = [&](const std::vector<std::string>& arguments) {
        const ProgramResult done = run(arguments);
        EXPECT_EQ(done.status, 2);
        return done.error;
    };
    const std::string x = folder_ / "x.npy";
    EXPECT_THAT(refused({"--in", x}), HasSubstr("expected --in y=FILE"));
    EXPECT_THAT(refused({"--in", x, "--in", x, "--in", x}),
                HasSubstr("expected at most 2 of --in (x, y) but got 3"));
    EXPECT_THAT(refused({"--in", "w=" + x}), HasSubstr("expected --in of x, y but got `w`"));
    EXPECT_THAT(refused({"--in", "x=" + x, "--in", "x=" + x}), HasSubstr("one --in for `x`"));
    EXPECT_THAT(refused({"--in", x, "--in", x, "--out", "x=" + x}),
                HasSubstr("expected --out of z but got `x`"));
    save_tensors({{folder_ / "five.npy", "x", Tensor::zeros(f32, {5})}});
    EXPECT_THAT(refused({"--in", x, "--in", folder_ / "five.npy"}),
                HasSubstr("expected `y` to be f32[4] but got f32[5]"));
    EXPECT_THAT(run_program({"run", folder_ / "none.ir"}).error, HasSubstr("no file"));
    EXPECT_THAT(run_program({"run", folder_ / "add.ir", "--autotune"}).error,
                HasSubstr("expected --autotune with --device cuda but got cpu"));
}

TEST_F(RunCommand, RunsWhatDumpPrints) {
    std::ofstream(folder_ / "softmax.ir") << run_program({"dump", "softmax"}).out;
    const ProgramResult failed = run_program({"run", folder_ / "softmax.ir"});
    EXPECT_EQ(failed.status, 2);
    EXPECT_THAT(failed.error, HasSubstr("expected --in"));
}

TEST_F(RunCommand, UpdatesInPlace) {
    std::ofstream(folder_ / "double.ir")
        << R"(func @double(%x: ref<f32[4]> alias 0, %z: ref<f32[4]> alias 0) {
  %0 = constant 0 : i64
  %1 = load %x[%0 : 4] : f32[4]
  %2 = add %1, %1 : f32[4]
  store %z[%0 : 4], %2
  yield
}
)";
    const ProgramResult done = run_program(
        {"run", folder_ / "double.ir", "--in", folder_ / "x.npy", "--out", folder_ / "z.npy"});
    EXPECT_EQ(done.status, 0) << done.error;
    EXPECT_EQ(result("z.npy"), (std::vector<float>{2, 4, 6, 8}));
    EXPECT_EQ(load_tensor(folder_ / "x.npy", "x").to_vector<float>()[0], 1);
}

TEST_F(RunCommand, ProfilesLinesOfTheBytecode) {
    const std::vector<std::string> in{"--in",  folder_ / "x.npy", "--in", folder_ / "y.npy",
                                      "--out", folder_ / "z.npy"};
    const auto with = [&](const std::vector<std::string>& more) {
        std::vector<std::string> arguments = in;
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments);
    };
    const ProgramResult done = with({"--profile", "--trace", folder_ / "trace.json"});
    EXPECT_EQ(done.status, 0) << done.error;
    EXPECT_THAT(done.error, HasSubstr("add: 10 runs, 10 programs"));
    EXPECT_THAT(done.error, HasSubstr("strips 1 x 4: add"));
    EXPECT_EQ(result("z.npy"), (std::vector<float>{11, 22, 33, 44}));
    std::ifstream trace(folder_ / "trace.json");
    EXPECT_THAT(std::string(std::istreambuf_iterator<char>(trace), {}),
                HasSubstr("\"traceEvents\""));
    EXPECT_EQ(with({"--trace", folder_ / "trace.json"}).status, 2);
    EXPECT_THAT(with({"--profile", "--checked"}).error, HasSubstr("--checked or --profile"));
}

}  // namespace
}  // namespace tilewright::cli
