// Tools for kernel authors: profiles, findings, the page of all forms, ranges for profilers.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "nlohmann/json.hpp"
#include "support.h"
#include "tests/cuda/test_support.h"

namespace tilewright {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

Call product_call(bool profile) {
    const auto product =
        kernel("product", [](Ref x, Ref y, Ref z) { z.store(exp(dot(x.load(), y.load()))); });
    return call(product, {.grid = {4},
                          .in = {BlockSpec{{32, 64}, [](auto i) { return block(i, 0); }}},
                          .out = {BlockSpec{{32, 128}, [](auto i) { return block(i, 0); }}},
                          .out_type = {{f32, {128, 128}}},
                          .profile = profile});
}

TEST(Profile, CountsExecutionsWorkAndTime) {
    const Call call = product_call(true);
    const Tensor x = Tensor::zeros(f32, {128, 64}), y = Tensor::zeros(f32, {64, 128});
    EXPECT_THAT(error_of([&] { call.profile(); }), HasSubstr("expected a run of kernel `product`"));
    for (int i = 0; i < 3; ++i) call(x, y);
    const Profile profile = call.profile();
    EXPECT_EQ(profile.kernel, "product");
    EXPECT_EQ(profile.runs, 3);
    EXPECT_EQ(profile.programs, 12);
    EXPECT_GT(profile.wall_ms, 0);
    double sum = profile.scalar_ms;
    bool has_dot = false;
    for (const ProfileLine& line : profile.lines) {
        sum += line.ms;
        EXPECT_EQ(line.executions, 12) << line.text;
        if (line.text.find("dot") == std::string::npos) continue;
        has_dot = true;
        EXPECT_EQ(line.flops, 12.0 * 2 * 32 * 64 * 128);
        EXPECT_GT(line.roof, 0);
        EXPECT_THAT(line.source, HasSubstr("profile_test.cpp:"));
    }
    EXPECT_TRUE(has_dot);
    EXPECT_NEAR(sum, profile.thread_ms, 1e-6 * profile.thread_ms);
    // Each array's block counts once per program, as a view or a store.
    double bytes = 0;
    for (const ProfileLine& line : profile.lines) bytes += line.bytes;
    EXPECT_EQ(bytes, 12.0 * 4 * (32 * 64 + 64 * 128 + 32 * 128));
}

// Kernels for narrow dtypes multiply several products of a word at once.
TEST(Profile, ProductsOfNarrowDtypes) {
    for (const DType dtype : {bf16, f16, i8, i16, i32, u32, f64}) {
        const auto product = kernel(
            "product", [](Ref x, Ref y, Ref z) { z.store(cast(dot(x.load(), y.load()), f32)); });
        const Call call =
            tilewright::call(product, {.out_type = {{f32, {32, 128}}}, .profile = true});
        call(Tensor::zeros(dtype, {32, 64}), Tensor::zeros(dtype, {64, 128}));
        const Profile profile = call.profile();
        const auto line = std::find_if(
            profile.lines.begin(), profile.lines.end(),
            [](const ProfileLine& each) { return each.text.find("dot") != std::string::npos; });
        ASSERT_NE(line, profile.lines.end());
        EXPECT_EQ(line->flops, 2.0 * 32 * 64 * 128) << name(dtype);
        EXPECT_GT(line->roof, 0);
    }
}

TEST(Profile, AttentionInBf16) {
    const auto attention = kernel("attention", [](Ref q, Ref k, Ref v, Ref o) {
        const Tile scores = exp(dot(q.load(), transpose(k.load(), {1, 0})));
        o.store(cast(dot(cast(scores, bf16), v.load()), bf16));
    });
    const Call call =
        tilewright::call(attention, {.out_type = {{bf16, {64, 64}}}, .profile = true});
    const Tensor x = Tensor::zeros(bf16, {64, 64});
    call(x, x, x);
    double flops = 0;
    for (const ProfileLine& line : call.profile().lines)
        if (line.text.find("dot") != std::string::npos) flops += line.flops;
    EXPECT_EQ(flops, 2 * 2.0 * 64 * 64 * 64);
}

TEST(Profile, ResultsAreThoseOfOtherCalls) {
    const Tensor x = ramp({128, 64}), y = Tensor::zeros(f32, {64, 128});
    EXPECT_EQ(product_call(true)(x, y).to_vector<float>(),
              product_call(false)(x, y).to_vector<float>());
    EXPECT_THAT(error_of([&] {
                    const Call plain = product_call(false);
                    plain(x, y);
                    plain.profile();
                }),
                HasSubstr("profile = true"));
}

TEST(Profile, TableAndTraceNameInstructionsAndLines) {
    const Call call = product_call(true);
    call(Tensor::zeros(f32, {128, 64}), Tensor::zeros(f32, {64, 128}));
    const Profile profile = call.profile();
    const std::string table = profile.table();
    EXPECT_THAT(table, AllOf(HasSubstr("product: 1 runs, 4 programs"), HasSubstr("GFLOP/s"),
                             HasSubstr("dot"), HasSubstr("profile_test.cpp:"),
                             HasSubstr("scalars, jumps, the clock")));
    EXPECT_THAT(profile.table(1), HasSubstr("other instructions"));
    const auto trace = nlohmann::json::parse(profile.chrome_trace());
    std::size_t programs = 0, instructions = 0;
    for (const auto& event : trace.at("traceEvents")) {
        if (event.at("ph") != "X") continue;
        EXPECT_GE(event.at("dur").get<double>(), 0);
        ++(event.at("cat") == "program" ? programs : instructions);
    }
    EXPECT_EQ(programs, 4U);
    EXPECT_EQ(instructions, 4 * profile.lines.size());
    EXPECT_EQ(trace.at("left_out"), 0);
}

TEST(Profile, OfProgramsAndNotOnOtherMachines) {
    const Call call = product_call(false);
    const Tensor x = Tensor::zeros(f32, {128, 64}), y = Tensor::zeros(f32, {64, 128});
    const std::vector arrays{x, y, Tensor::zeros(f32, {128, 128})};
    const Program program(call.ir({x, y}), {.profile = true});
    EXPECT_THAT(error_of([&] { program.profile(); }), HasSubstr("ProgramOptions::profile"));
    program.run(arrays);
    EXPECT_EQ(program.profile().programs, 4);
}

TEST(Explain, NamesSlowPathsWithTheirLines) {
    const auto slow = kernel("slow", [](Ref x, Ref at, Ref z) {
        const Tile square = x.load();
        z.store(transpose(square, {1, 0}) + square + x.at(at.load(), all).load());
    });
    const Call call = tilewright::call(slow, {.out_type = {{f32, {64, 64}}}});
    const std::vector inputs{Tensor::zeros(f32, {64, 64}), Tensor::zeros(i32, {64})};
    const std::vector<Finding> findings = explain_program(call.ir(inputs, true));
    EXPECT_THAT(findings,
                Contains(AllOf(Field(&Finding::what, HasSubstr("`input0` read or written")),
                               Field(&Finding::reason, HasSubstr("indices are tiles")),
                               Field(&Finding::source, HasSubstr("profile_test.cpp:")))));
    EXPECT_THAT(findings, Contains(AllOf(Field(&Finding::what, HasSubstr("a copy of f32[64, 64]")),
                                         Field(&Finding::reason, HasSubstr("order")))));
    EXPECT_THAT(call.explain(inputs), HasSubstr("slow on this CPU: 2 findings"));
}

TEST(Explain, SaysSoWhereNothingIsSlow) {
    const Call call = product_call(false);
    const std::vector inputs{Tensor::zeros(f32, {128, 64}), Tensor::zeros(f32, {64, 128})};
    EXPECT_THAT(call.explain(inputs), HasSubstr("nothing found that slows it down"));
}

TEST(Explain, OfGpusNamesProductsAndLoads) {
    const auto loop = kernel("loop", [](Ref x, Ref y, Ref z) {
        z.store(for_loop(0, 8, zeros({64, 64}, f32), [&](Tile k, Tile sum) {
            const Tile a = x.at(ds(0, 64), ds(k * 32, 32)).load();
            const Tile b = y.at(ds(k * 32, 32), ds(0, 64)).load();
            return dot(a, cast(b, f16), {.acc = sum});
        }));
    });
    const Call call = tilewright::call(loop, {.out_type = {{f32, {64, 64}}}});
    const std::vector inputs{Tensor::zeros(f16, {64, 256}), Tensor::zeros(f32, {256, 64})};
    const std::vector<Finding> findings = explain_program(call.ir(inputs, true), "sm_80");
    EXPECT_THAT(findings, Contains(AllOf(Field(&Finding::what, HasSubstr("not on wgmma")),
                                         Field(&Finding::reason, HasSubstr("sm_90a")))));
    EXPECT_THAT(findings,
                Contains(AllOf(Field(&Finding::what, "the load of `input1` is not pipelined"),
                               Field(&Finding::reason, HasSubstr("a cast stands between")),
                               Field(&Finding::source, HasSubstr("profile_test.cpp:")))));
    EXPECT_THAT(findings, Not(Contains(Field(&Finding::what, HasSubstr("`input0`")))));
}

TEST(Page, LinksLinesOfAllForms) {
    const std::string source = ::testing::TempDir() + "tilewright_page.py";
    std::ofstream(source) << "import this\n\ndef product(x, y, z):\n    z[...] = x[...] @ y[...]\n";
    const std::string page = program_page(fmt::format(
        R"(func @product(%x: ref<f32[64, 64]>, %y: ref<f32[64, 64]>, %z: ref<f32[64, 64]>) {{
  loc "{}" 4
  %0 = constant 0 : i64
  %1 = load %x[%0 : 64, %0 : 64] : f32[64, 64]
  %2 = load %y[%0 : 64, %0 : 64] : f32[64, 64]
  %3 = dot %1, %2 : f32[64, 64]
  store %z[%0 : 64, %0 : 64], %3
  yield
}}
)",
        source));
    std::remove(source.c_str());
    const auto has = [&](const std::string& text) { return page.find(text) != std::string::npos; };
    EXPECT_TRUE(has("<title>product</title>"));
    for (const char* const pane : {"Source", "IR", "Bytecode", "CUDA", "PTX", "SASS"})
        EXPECT_TRUE(has(std::string("data-name=\"") + pane)) << pane;
    EXPECT_TRUE(has("<i>4</i>    z[...] = x[...] @ y[...]"));
    // The dot is line 5 of the IR, whose key links source, IR, bytecode and CUDA.
    std::size_t linked = 0;
    for (std::size_t at = 0; (at = page.find("data-k=\"", at)) != std::string::npos; ++at) {
        const std::string keys = " " + page.substr(at + 8, page.find('"', at + 8) - at - 8) + " ";
        linked += keys.find(" 5 ") != std::string::npos;
    }
    EXPECT_GE(linked, 4U);
    EXPECT_FALSE(has("// @"));
    for (const char* const outside : {"http://", "https://", "src=", "@import"})
        EXPECT_FALSE(has(outside)) << outside << " in a page that is whole in itself";
}

TEST(CudaCallsUnderProfilers, LaunchesAreRanges) {
    TW_REQUIRE_GPU();
    const char* const path = std::getenv("NVTX_INJECTION64_PATH");
    if (path == nullptr) GTEST_SKIP() << "no profiler";
    void* const profiler = dlopen(path, RTLD_LAZY);
    const auto ranges = reinterpret_cast<const char* (*)()>(dlsym(profiler, "tw_fake_nvtx_ranges"));
    if (ranges == nullptr) GTEST_SKIP() << "another profiler";
    const auto twice = kernel("twice", [](Ref x, Ref y) { y.store(x.load() * 2.0F); });
    const Call call = tilewright::call(twice, {.out_type = {{f32, {64}}}});
    const Tensor x = Tensor::zeros(f32, {64}).to(Device::cuda());
    call(x);
    ranges();
    call(x);
    call(x);
    EXPECT_STREQ(ranges(), "[kernel_twice][kernel_twice]");
}

}  // namespace
}  // namespace tilewright
