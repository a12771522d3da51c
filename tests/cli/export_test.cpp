// `tilewright export`: exported folders compute what the operations do, and bad input is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "cli/builtin.h"
#include "cli/tensor_file.h"
#include "cuda/runtime/compiler.h"
#include "tests/cli/run_program.h"
#include "tilewright/artifact.h"
#include "tilewright/attention.h"
#include "tilewright/masks.h"
#include "tilewright/norm.h"
#include "tilewright/scores.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

/// Runs `tilewright export` with these arguments, into the folder.
ProgramResult export_to(const std::string& folder, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "export");
    arguments.insert(arguments.end(), {"--out", folder});
    return run_program(arguments);
}

double largest_difference(const Tensor& a, const Tensor& b) {
    const auto x = a.to_vector<double>(), y = b.to_vector<double>();
    double most = x.size() == y.size() ? 0 : HUGE_VAL;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
        most = std::fmax(most, std::abs(x[i] - y[i]));
    return most;
}

TEST(ExportCommand, NormsRunAsTheyAre) {
    TemporaryFolder folder;
    const std::string path = folder / "norm";
    const ProgramResult done =
        export_to(path, {"layer_norm", "--shape", "5,300", "--dtype", "bf16"});
    ASSERT_EQ(done.status, 0) << done.error;
    const Tensor x = random_values(bf16, {5, 300}, 7), weight = random_values(bf16, {300}, 8);
    const Tensor bias = random_values(bf16, {300}, 9);
    const Tensor y = Artifact(path)(std::vector{x, weight, bias}).at(0);
    EXPECT_EQ(largest_difference(y, layer_norm(x, weight, bias).y), 0);
}

TEST(ExportCommand, AttentionKeepsMasksAndCaptures) {
    TemporaryFolder folder;
    const std::string path = folder / "attention", slopes_file = folder / "slopes.npy";
    const std::string ids_file = folder / "ids.npy";
    const Tensor slopes = Tensor::from_vector<float>({0.5, 0.25, 0.125, 1}, {4});
    std::vector<std::int32_t> documents(70);
    for (std::size_t i = 0; i < documents.size(); ++i)
        documents[i] = static_cast<std::int32_t>(i / 20);
    const Tensor ids = Tensor::from_vector<std::int32_t>(documents, {70});
    save_tensors({{slopes_file, "", slopes}, {ids_file, "", ids}});
    const std::vector<std::string> sizes{"--heads",    "4",
                                         "--kv-heads", "2",
                                         "--seq-len",  "70",
                                         "--head-dim", "32",
                                         "--score",    "alibi(slopes)",
                                         "--bind",     "slopes=" + slopes_file};
    std::vector<std::string> arguments{"attention", "--mask", "document(ids) & causal", "--bind",
                                       "ids=" + ids_file};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    const ProgramResult done = export_to(path, arguments);
    ASSERT_EQ(done.status, 0) << done.error;
    const Tensor q = random_values(f32, {1, 4, 70, 32}, 5);
    const Tensor k = random_values(f32, {1, 2, 70, 32}, 6);
    const Tensor v = random_values(f32, {1, 2, 70, 32}, 7);
    AttentionOptions options{.causal = true, .score_mod = scores::alibi(capture(slopes, "slopes"))};
    options.segment_ids = ids.reshape({1, 70});
    const AttentionOutput want = attention(q, k, v, options);
    const std::vector<Tensor> got = Artifact(path)(std::vector{q, k, v});
    EXPECT_LT(largest_difference(got.at(0), want.out), 1e-5);
    EXPECT_LT(largest_difference(got.at(1), want.lse), 1e-5);

    // The backward pass also returns the gradient of the slopes.
    arguments[0] = "attention_backward";
    const ProgramResult backward = export_to(path, arguments);
    ASSERT_EQ(backward.status, 0) << backward.error;
    const Tensor dout = random_values(q.dtype(), want.out.shape(), 8);
    const AttentionGradients gradients = attention_backward(q, k, v, want, dout, options);
    const Artifact derivative(path);
    const std::vector<Tensor> derived = derivative(std::vector{q, k, v, want.out, want.lse, dout});
    ASSERT_EQ(derived.size(), 4U);
    EXPECT_EQ(derivative.parameters().back().name, "grad_slopes");
    EXPECT_LT(largest_difference(derived[0], gradients.query), 1e-4);
    EXPECT_LT(largest_difference(derived[3], gradients.captured.at(0)), 1e-4);
}

TEST(ExportCommand, GradientsOfAttention) {
    TemporaryFolder folder;
    const std::string path = folder / "gradients";
    const ProgramResult backward =
        export_to(path, {"attention_backward", "--heads", "4", "--kv-heads", "2", "--seq-len", "70",
                         "--head-dim", "32", "--mask", "prefix_lm(9)", "--score", "softcap(20)"});
    ASSERT_EQ(backward.status, 0) << backward.error;
    const Tensor q = random_values(f32, {1, 4, 70, 32}, 5);
    const Tensor k = random_values(f32, {1, 2, 70, 32}, 6);
    const Tensor v = random_values(f32, {1, 2, 70, 32}, 7);
    const AttentionOptions options{.mask = masks::prefix_lm(9), .score_mod = scores::softcap(20)};
    const AttentionOutput want = attention(q, k, v, options);
    const Tensor dout = random_values(f32, {1, 4, 70, 32}, 8);
    const AttentionGradients gradients = attention_backward(q, k, v, want, dout, options);
    const std::vector<Tensor> derived =
        Artifact(path)(std::vector{q, k, v, want.out, want.lse, dout});
    ASSERT_EQ(derived.size(), 3U);
    EXPECT_LT(largest_difference(derived[0], gradients.query), 1e-4);
    EXPECT_LT(largest_difference(derived[1], gradients.key), 1e-4);
    EXPECT_LT(largest_difference(derived[2], gradients.value), 1e-4);
}

TEST(ExportCommand, ProgramsAndFilesOfIr) {
    TemporaryFolder folder;
    const std::string path = folder / "softmax", file = folder / "softmax.ir";
    std::ofstream(file) << run_program({"dump", "softmax"}).out;
    for (const std::string& kernel : {std::string("softmax"), file}) {
        const ProgramResult done = export_to(path, {kernel});
        ASSERT_EQ(done.status, 0) << done.error;
        const Artifact artifact(path);
        EXPECT_EQ(artifact.name(), "softmax");
        const Tensor x = random_values(f32, artifact.parameters()[0].type.shape, 3);
        const Tensor y = artifact(std::vector{x}).at(0);
        const Tensor want = Tensor::empty(f32, x.shape());
        Program(run_program({"dump", "softmax"}).out).run(std::vector{x, want});
        EXPECT_EQ(largest_difference(y, want), 0);
    }
}

TEST(ExportCommand, CubinsOfEveryArchitecture) {
    if (!cuda::nvrtc_report().found()) GTEST_SKIP() << "NOT RUN: there is no NVRTC";
    TemporaryFolder folder;
    const std::string path = folder / "both";
    const ProgramResult done = export_to(path, {"attention", "--seq-len", "128", "--dtype", "bf16",
                                                "--causal", "--arch", "sm_80", "--arch", "sm_90a"});
    ASSERT_EQ(done.status, 0) << done.error;
    EXPECT_THAT(done.error, HasSubstr("cpu, sm_80, sm_90a"));
    std::ifstream manifest(path + "/manifest.json");
    const std::string text(std::istreambuf_iterator<char>(manifest), {});
    EXPECT_THAT(text, HasSubstr("cuda_0_sm_80.cubin"));
    EXPECT_THAT(text, HasSubstr("cuda_0_any_sm_90a.cubin"));
    EXPECT_NO_THROW(Artifact{path});
}

TEST(ExportCommand, RefusesWhatDoesNotFit) {
    TemporaryFolder folder;
    const auto error = [&](const std::vector<std::string>& arguments) {
        const ProgramResult done = export_to(folder / "none", arguments);
        EXPECT_EQ(done.status, 2);
        return done.error;
    };
    EXPECT_THAT(error({"sofmax"}), HasSubstr("[export] expected a built-in program"));
    EXPECT_THAT(error({"softmax", "--mask", "causal"}), HasSubstr("with mods"));
    EXPECT_THAT(error({"rms_norm", "--shape", "5"}), HasSubstr("--shape ROWS,COLUMNS"));
    EXPECT_THAT(error({"rms_norm", "--shape", "5,0"}), HasSubstr("positive extents"));
    EXPECT_THAT(error({"attention", "--heads", "0"}), HasSubstr("--heads of at least 1"));
    EXPECT_THAT(error({"attention", "--score", "alibi("}), HasSubstr("column"));
    EXPECT_THAT(error({"softmax", "--arch", "sm_12"}), HasSubstr("expected an architecture of"));
    EXPECT_THAT(error({"softmax", "--no-cpu"}), HasSubstr("expected the CPU or an architecture"));
}

}  // namespace
}  // namespace tilewright::cli
