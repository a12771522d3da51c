// Artifacts: operations that are exported and run again, and folders that are refused.
#include "tilewright/artifact.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cuda/runtime/device.h"
#include "cuda/runtime/memory.h"
#include "run/artifact_format.h"
#include "support.h"
#include "tests/cuda/test_support.h"

namespace tilewright {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TensorType> like_first(std::span<const Tensor> inputs) {
    return {{inputs[0].dtype(), inputs[0].shape()}};
}

Call adding() {
    static const Call call = tilewright::call(
        kernel("adding", [](Ref x, Ref y, Ref z) { z.store(x.load() + y.load()); }),
        {.out_type = like_first});
    return call;
}

/// x + x + constant by two kernels with temporary memory in between.
ExportedOperation twice_plus(const Tensor& constant) {
    return [constant](const std::vector<Tensor>& in) {
        return std::vector{adding()(adding()(in[0], in[0]), constant)};
    };
}

class Artifacts : public ::testing::Test {
  protected:
    Artifacts()
        : folder_((fs::path(::testing::TempDir()) /
                   (std::string("artifact_") +
                    ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                      .string()) {
        fs::remove_all(folder_);
    }
    ~Artifacts() override { fs::remove_all(folder_); }

    void export_it(const ExportOptions& options = {.name = "twice_plus", .names = {"x", "y"}}) {
        export_operation(folder_, {Tensor::arange(f32, 3)},
                         twice_plus(Tensor::from_vector<float>({10, 20, 30}, {3})), options);
    }
    std::string path(const std::string& file) const { return (fs::path(folder_) / file).string(); }
    std::string read(const std::string& file) const {
        std::ifstream stream(path(file), std::ios::binary);
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    void write(const std::string& file, const std::string& text) const {
        std::ofstream(path(file), std::ios::binary) << text;
    }
    /// Changes the manifest and updates its checksum.
    template <typename Edit>
    void edit_manifest(const Edit& edit) const {
        nlohmann::json manifest = nlohmann::json::parse(read("manifest.json"));
        edit(manifest);
        manifest["checksum"] = run::manifest_checksum(manifest);
        write("manifest.json", manifest.dump());
    }
    std::string load_error() const {
        return error_of([&] { Artifact artifact(folder_); });
    }

    std::string folder_;
};

TEST_F(Artifacts, RunWhatWasLaunchedOnOtherArrays) {
    export_it();
    const Artifact artifact(folder_);
    EXPECT_EQ(artifact.name(), "twice_plus");
    ASSERT_EQ(artifact.parameters().size(), 2U);
    EXPECT_EQ(artifact.parameters()[0].name, "x");
    EXPECT_FALSE(artifact.parameters()[0].written);
    EXPECT_TRUE(artifact.parameters()[1].written && artifact.parameters()[1].result);
    const Tensor x = Tensor::from_vector<float>({1, 2, 3}, {3}), y = Tensor::zeros(f32, {3});
    artifact.run(std::vector{x, y});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(12, 24, 36));
    EXPECT_THAT(artifact(std::vector{x}).at(0).to_vector<int>(), ElementsAre(12, 24, 36));
}

TEST_F(Artifacts, OfProgramsUpdateAliasesInPlace) {
    const Tensor x = Tensor::arange(f32, 4), y = Tensor::full(f32, {4}, 5);
    const Call call = tilewright::call(
        kernel("accumulate", {"sum", "x", "out"},
               [](Ref sum, Ref term, Ref out) { out.store(sum.load() + term.load()); }),
        {.out_type = like_first, .aliases = {{0, 0}}});
    export_program(folder_, call.ir({y, x}));
    const Artifact artifact(folder_);
    EXPECT_EQ(artifact.name(), "accumulate");
    ASSERT_EQ(artifact.parameters().size(), 2U);
    EXPECT_TRUE(artifact.parameters()[0].written);
    EXPECT_FALSE(artifact.parameters()[0].result);
    artifact.run(std::vector{y, x});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(5, 6, 7, 8));
}

TEST_F(Artifacts, ReplaceEarlierOnesAndNothingElse) {
    export_it();
    const std::string checksum = Artifact(folder_).checksum();
    export_it({.name = "other"});
    EXPECT_FALSE(fs::exists(path("twice_plus.h")));
    EXPECT_TRUE(fs::exists(path("other.h")));
    EXPECT_NE(Artifact(folder_).checksum(), checksum);
    write("mine.txt", "");
    EXPECT_THAT(error_of([&] { export_it(); }), HasSubstr("but it holds other files"));
    EXPECT_TRUE(fs::exists(path("mine.txt")));
}

TEST_F(Artifacts, OfAnotherExportThanTheHeaderAreRefused) {
    export_it();
    const std::string checksum = Artifact(folder_).checksum();
    EXPECT_THAT(read("twice_plus.h"), HasSubstr(checksum));
    EXPECT_NO_THROW(Artifact(folder_, {}, checksum));
    EXPECT_THAT(error_of([&] { Artifact(folder_, {}, "0123"); }),
                HasSubstr("expected the export with checksum 0123"));
}

TEST_F(Artifacts, RefuseArraysThatDoNotFit) {
    export_it();
    const Artifact artifact(folder_);
    const Tensor x = Tensor::arange(f32, 3), y = Tensor::zeros(f32, {3});
    const auto error = [&](const std::vector<Tensor>& arrays) {
        return error_of([&] { artifact.run(arrays); });
    };
    EXPECT_THAT(error({x}), HasSubstr("[twice_plus] expected 2 arrays but got 1"));
    EXPECT_THAT(error({x, Tensor::zeros(f32, {4})}),
                HasSubstr("expected `y` to be f32[3] but got f32[4]"));
    EXPECT_THAT(error({Tensor::zeros(f64, {3}), y}),
                HasSubstr("expected `x` to be f32[3] but got f64[3]"));
    EXPECT_THAT(error({Tensor::arange(f32, 6).slice(0, 0, 3, 2), y}),
                HasSubstr("expected `x` to be row-major without gaps but its strides are 2"));
    EXPECT_THAT(error({y, y}), HasSubstr("expected `y` apart from `x`"));
    EXPECT_THAT(error({x, Tensor()}), HasSubstr("expected `y` to be f32[3]"));
    EXPECT_THAT(error_of([&] { artifact({}); }), HasSubstr("expected 1 inputs but got 0"));
}

TEST_F(Artifacts, RefuseFoldersThatDoNotFit) {
    EXPECT_THAT(load_error(), HasSubstr("there is no folder"));
    fs::create_directories(folder_);
    EXPECT_THAT(load_error(), HasSubstr("has no manifest.json"));
    write("manifest.json", "{\"format\": 3");
    EXPECT_THAT(load_error(), HasSubstr("it is no manifest of an artifact"));
    fs::remove(path("manifest.json"));

    export_it();
    EXPECT_THAT(error_of([&] { Artifact(folder_, Device::cuda(0)); }),
                testing::AnyOf(HasSubstr("was exported for CPUs alone"), HasSubstr("cuda:0"),
                               HasSubstr("driver")));
    edit_manifest([](nlohmann::json& m) { m["version"] = 2; });
    EXPECT_THAT(load_error(), HasSubstr("expected version 1 of the format"));
    export_it();
    edit_manifest([](nlohmann::json& m) { m["tilewright"] = "9.3.1"; });
    EXPECT_THAT(load_error(), HasSubstr("was exported by \"9.3.1\"; export it again"));
}

TEST_F(Artifacts, RefuseDamagedFiles) {
    const auto damage = [&](const std::string& file, const auto& change) {
        fs::remove_all(folder_);
        export_it();
        std::string text = read(file);
        change(text);
        write(file, text);
        return load_error();
    };
    const auto cut = [](std::string& text) { text.resize(text.size() / 2); };
    const auto flip = [](std::string& text) { text[text.size() / 2] ^= 1; };
    EXPECT_THAT(damage("cpu_0.ir", cut), HasSubstr("cpu_0.ir` as it was exported but it has"));
    EXPECT_THAT(damage("cpu_1.ir", flip), HasSubstr("its checksum is another one"));
    EXPECT_THAT(damage("constant_0.bin", flip), HasSubstr("its checksum is another one"));
    EXPECT_THAT(damage("manifest.json", cut), HasSubstr("it is no manifest"));
    EXPECT_THAT(damage("manifest.json",
                       [](std::string& text) { text.replace(text.find("\"x\""), 3, "\"z\""); }),
                HasSubstr("manifest.json` as it was exported but its checksum is another one"));
    fs::remove_all(folder_);
    export_it();
    fs::remove(path("constant_0.bin"));
    EXPECT_THAT(load_error(), HasSubstr("it is missing"));
}

TEST_F(Artifacts, RefuseManifestsThatReachBeyondTheirArrays) {
    const auto edited = [&](const auto& edit) {
        export_it();
        edit_manifest([&](nlohmann::json& m) { edit(m["targets"]["cpu"], m); });
        return load_error();
    };
    using Json = nlohmann::json;
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"][0]["offset"] = 4; }),
                HasSubstr("a program reaches beyond its arrays"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"][0]["strides"] = {-1}; }),
                HasSubstr("a program reaches beyond its arrays"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["memory_bytes"] = 4; }),
                HasSubstr("a program reaches beyond its arrays"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"][0]["extents"] = {4}; }),
                HasSubstr("an extent is not that of its program"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"][0]["index"] = 9; }),
                HasSubstr("it names an array that there is not"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"][0]["in"] = "heap"; }),
                HasSubstr("it names a place that there is not"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["refs"].erase(0); }),
                HasSubstr("an entry does not fit"));
    EXPECT_THAT(edited([](Json& t, Json&) { t["steps"][0]["program"] = "../manifest.json"; }),
                HasSubstr("it names other folders"));
    EXPECT_THAT(edited([](Json&, Json& m) { m["parameters"][0]["dtype"] = "f31"; }),
                HasSubstr("it names a dtype that there is not"));
    EXPECT_THAT(edited([](Json&, Json& m) { m.erase("constants"); }),
                HasSubstr("an entry does not fit"));
}

TEST_F(Artifacts, OfOperationsThatDoMoreAreRefused) {
    const Tensor x = Tensor::arange(f32, 3);
    const auto error = [&](const ExportedOperation& operation) {
        return error_of([&] { export_operation(folder_, {x}, operation); });
    };
    EXPECT_THAT(error([](const auto& in) { return std::vector{in[0].clone()}; }),
                HasSubstr("the host reads or writes elements"));
    EXPECT_THAT(error([](const auto&) { return std::vector<Tensor>(); }),
                HasSubstr("or it launches nothing"));
    EXPECT_THAT(error([](const auto& in) {
                    adding()(in[0], in[0]);
                    return std::vector{in[0]};
                }),
                HasSubstr("expected result 0 to be a new row-major array"));
    // What the host computes from an input would be stored as a constant.
    EXPECT_THAT(error([](const auto& in) {
                    const auto values = std::make_shared<std::vector<float>>(3);
                    for (std::size_t i = 0; i < 3; ++i)
                        (*values)[i] = 2 * static_cast<const float*>(in[0].raw())[i];
                    const Tensor doubled = Tensor::from_data(values->data(), f32, {3}, {}, values);
                    return std::vector{adding()(in[0], doubled)};
                }),
                HasSubstr("the host computes other arrays from them"));
    EXPECT_THAT(error_of([&] { export_operation(folder_, {x}, twice_plus(x), {.cpu = false}); }),
                HasSubstr("expected the CPU or an architecture"));
    EXPECT_THAT(error_of([&] { export_operation(folder_, {x}, twice_plus(x), {.names = {"x"}}); }),
                HasSubstr("expected 2 names"));
    EXPECT_THAT(
        error_of([&] { export_operation(folder_, {x}, twice_plus(x), {.archs = {"sm_12"}}); }),
        HasSubstr("expected an architecture of"));
    EXPECT_FALSE(fs::exists(folder_));
}

TEST(CudaCalls, ArtifactsRunFromTheirCubins) {
    TW_REQUIRE_GPU();
    const std::string folder = (fs::path(::testing::TempDir()) / "artifact_cuda").string();
    fs::remove_all(folder);
    const std::string arch = cuda::device_info(0).arch();
    const Tensor constant = Tensor::arange(f32, 64);
    export_operation(folder, {Tensor::arange(f32, 64)}, twice_plus(constant),
                     {.name = "on_gpu", .archs = {arch == "sm_120a" ? "sm_80" : "sm_120a", arch}});
    const Artifact artifact(folder, Device::cuda());
    const Tensor both = Tensor::arange(f32, 68).to(Device::cuda());
    // Aligned, and starting in the middle of 16 bytes.
    for (const std::int64_t start : {0, 1}) {
        const Tensor x = both.slice(0, start, 64);
        const Tensor y = artifact(std::vector{x}).at(0);
        EXPECT_EQ(y.device(), Device::cuda());
        std::vector<float> want(64);
        for (std::size_t i = 0; i < want.size(); ++i)
            want[i] = static_cast<float>(3 * static_cast<std::int64_t>(i) + 2 * start);
        EXPECT_EQ(y.to_vector<float>(), want);
    }
    EXPECT_THAT(error_of([&] { artifact(std::vector{constant}); }),
                HasSubstr("expected `x0` on cuda:0 but it is on cpu"));
    if (cuda::device_count() > 1) {
        const cuda::Stream other(1);
        const CudaScope scope(other.handle());
        EXPECT_THAT(error_of([&] { artifact(std::vector{both.slice(0, 0, 64)}); }),
                    HasSubstr("expected a stream of cuda:0, where the arrays are, but the current "
                              "one belongs to cuda:1"));
    }
    export_operation(folder, {constant}, twice_plus(constant),
                     {.archs = {arch == "sm_120a" ? "sm_80" : "sm_120a"}});
    EXPECT_THAT(error_of([&] { Artifact(folder, Device::cuda()); }),
                HasSubstr("expected cubins for " + arch));
    EXPECT_THAT(Artifact(folder)(std::vector{constant}).at(0).to_vector<int>()[5], 15);
    fs::remove_all(folder);
}

TEST(ArtifactHeaders, HaveNamesThatCppTakes) {
    EXPECT_EQ(run::identifier("new"), "new_");
    EXPECT_EQ(run::identifier("2x-y.z"), "_2x_y_z");
    EXPECT_EQ(run::identifier("rms_norm"), "rms_norm");
    EXPECT_THAT(run::launcher_header("double", "c", {{"x", {bf16, {2, 3}}, true, true}}),
                HasSubstr("void operator()(std::uint16_t* x, void* stream = nullptr) const"));
}

}  // namespace
}  // namespace tilewright
