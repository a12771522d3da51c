// `tilewright dump`: built-in programs and files as IR and as bytecode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "cli/builtin.h"
#include "cli/tensor_file.h"
#include "cpu/simd/kernels.h"
#include "tests/cli/run_program.h"
#include "tests/cuda/test_support.h"
#include "tilewright/program.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DumpCommand, EveryBuiltinAsIrAndBytecode) {
    for (const std::string& name : builtin_names()) {
        const ProgramResult ir = run_program({"dump", name});
        EXPECT_EQ(ir.status, 0) << name << ir.error;
        EXPECT_THAT(ir.out, HasSubstr("load")) << name;
        EXPECT_THAT(ir.out, Not(HasSubstr("?"))) << name;
        const ProgramResult bytecode = run_program({"dump", name, "--to", "bytecode"});
        EXPECT_EQ(bytecode.status, 0) << name << bytecode.error;
        EXPECT_NE(bytecode.out, "") << name;
    }
}

TEST(DumpCommand, IrRunsByItself) {
    const Program softmax(run_program({"dump", "softmax"}).out);
    const Tensor x = Tensor::zeros(f32, softmax.parameters()[0].type.shape);
    const Tensor y = Tensor::empty(f32, x.shape());
    x.data<float>()[3] = 20;
    softmax.run(std::vector{x, y});
    EXPECT_NEAR(y.data<float>()[3], 1, 1e-4);
    EXPECT_NEAR(y.data<float>()[x.dim(1) + 3], 1.0 / static_cast<double>(x.dim(1)), 1e-7);
}

TEST(DumpCommand, EveryFormIsOfTheSameProgram) {
    TemporaryFolder folder;
    std::vector<std::string> names = builtin_names();
    names.insert(names.end(), {"flex", "flex_backward"});
    const auto dump = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "dump");
        const ProgramResult result = run_program(arguments);
        EXPECT_EQ(result.status, 0) << result.error;
        return result.out;
    };
    for (const std::string& name : names) {
        std::ofstream(folder / "cpu.ir") << dump({name});
        EXPECT_EQ(dump({folder / "cpu.ir", "--to", "bytecode"}), dump({name, "--to", "bytecode"}));
        std::ofstream(folder / "gpu.ir") << dump({name, "--to", "ir", "--arch", "sm_90a"});
        EXPECT_EQ(dump({folder / "gpu.ir", "--arch", "sm_90a"}), dump({name, "--arch", "sm_90a"}));
    }
}

TEST(DumpCommand, PassesOverRowsOfNormsAndSoftmaxAreCompiled) {
    if (!cpu::kernels().fused.compiled) GTEST_SKIP() << "no compiled runs";
    for (const char* name :
         {"softmax", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward"}) {
        for (const char* dtype : {"f32", "bf16", "f16"}) {
            const std::string text =
                run_program({"dump", name, "--to", "bytecode", "--dtype", dtype}).out;
            const std::size_t first = text.find("jump"), last = text.rfind("jump");
            ASSERT_LT(first, last) << text;
            const std::string loop = text.substr(first, last - first);
            EXPECT_THAT(loop, ContainsRegex("\n *# "));
            EXPECT_THAT(loop, Not(ContainsRegex("\n *[|] ")));
        }
    }
}

TEST(DumpCommand, SlopesOfPositionsAreOnePassOnACpu) {
    for (const char* name : {"flex", "flex_backward"}) {
        const std::string text =
            run_program({"dump", name, "--score", "alibi(8)", "--to", "bytecode"}).out;
        EXPECT_THAT(text, HasSubstr("affine_add")) << name;
    }
}

TEST(DumpCommand, AFileIsReadBack) {
    TemporaryFolder folder;
    const std::string text = run_program({"dump", "rms_norm", "--dtype", "bf16"}).out;
    EXPECT_THAT(text, HasSubstr("bf16"));
    std::ofstream(folder / "rms_norm.ir") << text;
    EXPECT_EQ(run_program({"dump", folder / "rms_norm.ir"}).out, text);
    std::ofstream(folder / "broken.ir") << text.substr(0, text.size() / 2);
    const ProgramResult broken = run_program({"dump", folder / "broken.ir"});
    EXPECT_EQ(broken.status, 2);
    EXPECT_THAT(broken.error, HasSubstr("line"));
}

TEST(DumpCommand, EveryBuiltinCompilesForEveryGpuWithoutSpills) {
    std::vector<std::string> names = builtin_names();
    names.insert(names.end(), {"flex", "flex_backward"});
    std::vector<cuda::CompileRequest> requests;
    for (const std::string& name : names) {
        for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"}) {
            for (const char* dtype : {"bf16", "f32"}) {
                const ProgramResult cuda =
                    run_program({"dump", name, "--to", "cuda", "--arch", arch, "--dtype", dtype});
                EXPECT_EQ(cuda.status, 0) << name << " " << arch << ": " << cuda.error;
                cuda::CompileRequest request;
                request.name = name + "_" + dtype + ".cu";
                request.source = cuda.out;
                request.arch = arch;
                // Row maxima are spilled to local memory for one iteration.
                request.spill_limit_bytes = name == "flex" ? 48 : 0;
                requests.push_back(request);
            }
        }
    }
    TW_REQUIRE_NVRTC();
    testing_support::expect_to_compile(requests);
}

TEST(DumpCommand, TextsReadBoundArrays) {
    TemporaryFolder folder;
    ASSERT_EQ(run_program({"random", "--out", folder / "s.npy", "--shape", "8"}).status, 0);
    const ProgramResult result = run_program(
        {"dump", "flex", "--score", "alibi(slopes)", "--bind", "slopes=" + (folder / "s.npy")});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.out, HasSubstr("slopes"));
}

TEST(DumpCommand, BadInputIsStatus2AndNamed) {
    EXPECT_THAT(run_program({"dump", "nothing"}).error, HasSubstr("rms_norm"));
    EXPECT_EQ(run_program({"dump", "nothing"}).status, 2);
    EXPECT_EQ(run_program({"dump", "softmax", "--dtype", "i32"}).status, 2);
    EXPECT_THAT(run_program({"dump", "/"}).error, HasSubstr("`/` is a folder"));
    EXPECT_THAT(run_program({"dump", "/dev/zero"}).error, HasSubstr("is a special file"));
    EXPECT_EQ(run_program({"dump", std::string(5000, 'x')}).status, 2);
}

TEST(DumpCommand, OptionsThatWouldBeIgnoredAreRefused) {
    TemporaryFolder folder;
    const std::string file = folder / "softmax";  // read where no built-in program has the name
    std::ofstream(file) << run_program({"dump", "softmax"}).out;
    EXPECT_EQ(run_program({"dump", file}).status, 0);
    save_tensors({{folder / "a.npy", "a", Tensor::zeros(f32, {4})}});
    const std::string array = "a=" + (folder / "a.npy");
    const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
        {{file, "--dtype", "bf16"}, "a built-in program with --dtype but got the file"},
        {{file, "--mask", "causal"}, "with --mask but got"},
        {{file, "--score", "score"}, "with --score but got"},
        {{file, "--bind", array}, "with --bind but got"},
        {{"softmax", "--bind", array}, "with --bind but got softmax"},
        {{"flex", "--bind", array}, "--bind a but none does"},
        {{"softmax", "--to", "bytecode", "--arch", "sm_90a"}, "with --arch but got bytecode"},
        {{"softmax", "--to", "cuda", "--optimised"}, "--to ir with --optimised but got cuda"},
        {{"softmax", "--to", "ir", "--arch", "sm_70"}, "but got `sm_70`"}};
    for (const auto& [arguments, message] : cases) {
        std::vector<std::string> all = {"dump"};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const ProgramResult result = run_program(all);
        EXPECT_EQ(result.status, 2);
        EXPECT_THAT(result.error, HasSubstr(message));
        EXPECT_EQ(result.out, "");
    }
}

TEST(DumpCommand, MachineCodeNamesTheDisassemblerThatIsMissing) {
    const char* const before = std::getenv("PATH");
    const std::string path = before != nullptr ? before : "";
    ::setenv("PATH", "/nowhere", 1);
    const ProgramResult result = run_program({"dump", "softmax", "--to", "sass"});
    ::setenv("PATH", path.c_str(), 1);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.error, AnyOf(HasSubstr("nvidia-cuda-nvdisasm"), HasSubstr("NVRTC")));
}

TEST(RandomCommand, BadShapesAreStatus2) {
    TemporaryFolder folder;
    for (const char* shape : {"2,-1", "2,,3", "2,", "x", "99999999999999999999"})
        EXPECT_EQ(run_program({"random", "--out", folder / "x.npy", "--shape", shape}).status, 2);
    EXPECT_EQ(
        run_program({"random", "--out", folder / "x.npy", "--shape", "1000000,1000000,1000000"})
            .status,
        2);
}

TEST(DumpCommand, TextForGpusAssumesOnlyWhatStaticExtentsAllow) {
    TemporaryFolder folder;
    const auto text = [&](const std::string& extents) {
        const std::string path = folder / "copy.ir";
        std::ofstream(path) << "func @copy(%x: ref<f16[" << extents << "]>, %y: ref<f16[" << extents
                            << R"(]>) grid [] {
  %o = constant 0 : i64
  %t = load %x[%o : 32, %o : 8] : f16[32, 8]
  store %y[%o : 32, %o : 8], %t
  yield
})";
        const ProgramResult result = run_program({"dump", path, "--arch", "sm_121a"});
        EXPECT_EQ(result.status, 0) << result.error;
        return result.out;
    };
    EXPECT_THAT(text("37, 16"), Not(HasSubstr("stride[0]")));
    EXPECT_THAT(text("37, 13"), HasSubstr("stride[0]"));
    EXPECT_THAT(text("?, ?"), Not(HasSubstr("stride[1]")));
}

TEST(Dump, PageOfAllForms) {
    const TemporaryFolder folder;
    const ProgramResult done = run_program({"dump", "softmax", "--html", folder / "page.html"});
    EXPECT_EQ(done.status, 0) << done.error;
    std::ifstream file(folder / "page.html");
    const std::string page(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(page, run_program({"dump", "softmax", "--html", "-"}).out);
    EXPECT_THAT(page, AllOf(HasSubstr("<title>softmax</title>"), HasSubstr("data-name=\"CUDA\""),
                            HasSubstr("softmax.cpp")));
    EXPECT_THAT(run_program({"dump", "softmax", "--html", "-", "--to", "ir"}).error,
                HasSubstr("expected --html alone"));
    EXPECT_EQ(run_program({"dump", "softmax", "--html", folder / "no/such/folder"}).status, 2);
}

TEST(Explain, BuiltInProgramsAndFiles) {
    const TemporaryFolder folder;
    const ProgramResult cpu = run_program({"explain", "matmul", "--dtype", "bf16"});
    EXPECT_EQ(cpu.status, 0) << cpu.error;
    EXPECT_THAT(cpu.out, HasSubstr("matmul on this CPU: "));
    std::ofstream(folder / "turned.ir") <<
        R"(func @turned(%x: ref<f32[64, 64]>, %z: ref<f32[64, 64]>) {
  %0 = constant 0 : i64
  loc "turned.py" 7
  %1 = load %x[%0 : 64, %0 : 64] : f32[64, 64]
  %2 = transpose %1 permutation [1, 0] : f32[64, 64]
  %3 = add %1, %2 : f32[64, 64]
  store %z[%0 : 64, %0 : 64], %3
  yield
}
)";
    const ProgramResult file = run_program({"explain", folder / "turned.ir"});
    EXPECT_THAT(file.out, AllOf(HasSubstr("turned on this CPU: 1 finding"),
                                HasSubstr("a copy of f32[64, 64] (at turned.py:7)")))
        << file.error;
    EXPECT_THAT(run_program({"explain", "matmul", "--arch", "sm_80"}).out,
                HasSubstr("not on wgmma and TMA\n  since it is for sm_90a only"));
    EXPECT_EQ(run_program({"explain", "matmul", "--arch", "sm_1"}).status, 2);
    EXPECT_THAT(run_program({"explain", "matmull"}).error,
                HasSubstr("[explain] expected a built-in program"));
}

}  // namespace
}  // namespace tilewright::cli
