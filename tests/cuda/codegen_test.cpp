// Generated kernels compile for every architecture within their limits on spilled bytes; what does
// not fit is refused with sizes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/mma_steps.h"
#include "ir/parse.h"
#include "tests/cuda/test_support.h"
#include "tests/run/cuda_programs.h"
#include "tests/support/portable_program.h"
#include "tests/support/random_program.h"
#include "tests/support/throws.h"

namespace tilewright::cuda {
namespace {

using testing::throws;

const std::vector<std::string> kArchs = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"};

Generated generated(const ir::Function& function, const std::string& arch) {
    Target target = target_of(arch);
    target.facts.assign(function.parameters().size(), {.vectors = true, .dense = true});
    return generate(prepare(function), target);
}

CompileRequest request_within(const ir::Function& function, const std::string& arch,
                              int spill_limit) {
    CompileRequest request = compile_request(generated(function, arch), arch);
    request.spill_limit_bytes = spill_limit;
    return request;
}

/// Attention fills the registers: its maxima and sums may be spilled for one iteration, eight words
/// in all. So may some of the 128 registers of f64 sums in a product of 17 x 129.
int spill_limit(const std::string& program) {
    return program.rfind("attention", 0) == 0 ? 32 : program == "cut product" ? 64 : 0;
}

TEST(Codegen, ProgramsOfEveryPathCompileForEveryArchitectureWithoutSpills) {
    TW_REQUIRE_NVRTC();
    std::vector<CompileRequest> requests;
    for (const auto& program : testing_support::cuda_programs()) {
        for (const std::string& arch : kArchs) {
            requests.push_back(
                request_within(ir::parse(program.text), arch, spill_limit(program.name)));
        }
    }
    const auto matmul = testing_support::matmul_program("bf16", "f32", 128, 128, 32, 4, 0);
    for (const std::string& arch : kArchs)
        requests.push_back(request_within(ir::parse(matmul.text), arch, 0));
    testing_support::expect_to_compile(requests);
}

TEST(Codegen, RandomProgramsCompile) {
    TW_REQUIRE_NVRTC();
    std::vector<CompileRequest> requests;
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
        const auto program = tilewright::testing::portable_program(seed);
        requests.push_back(request_within(program.function, kArchs[seed % kArchs.size()], 0));
    }
    testing_support::expect_to_compile(requests);
}

/// These have parameters that are scalars, loops, gathers and atomics, and any dtype.
TEST(Codegen, RandomProgramsAreGeneratedOrRefused) {
    constexpr int kPrograms = 40;
    int num_generated = 0;
    for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
        const ir::Function program = tilewright::testing::random_program(seed);
        try {
            EXPECT_FALSE(generated(program, kArchs[seed % kArchs.size()]).source.empty()) << seed;
            ++num_generated;
        } catch (const UserError& error) {
            EXPECT_THAT(error.what(), ::testing::StartsWith("[")) << seed;
        }
    }
    EXPECT_GE(num_generated, kPrograms / 2);
}

TEST(Codegen, TilesOfEightDimensionsCompile) {
    TW_REQUIRE_NVRTC();
    const ir::Function function = ir::parse(R"(
func @deep(%a: ref<f32[2, 1, 3, 4, 1, 8, 1, 16]>, %b: ref<f32[1, 16, 3, 1, 8, 2, 4]>) grid [] {
  %o = constant 0 : i64
  %x = load %a[%o : 2, %o : 1, %o : 3, %o : 4, %o : 1, %o : 8, %o : 1, %o : 16] : f32[2, 1, 3, 4, 1, 8, 1, 16]
  %y = transpose %x permutation [4, 7, 2, 1, 5, 0, 3, 6] : f32[1, 16, 3, 1, 8, 2, 4, 1]
  %z = reduce %y sum axis 7 : f32[1, 16, 3, 1, 8, 2, 4]
  store %b[%o : 1, %o : 16, %o : 3, %o : 1, %o : 8, %o : 2, %o : 4], %z
  yield
})");
    testing_support::expect_to_compile({request_within(function, "sm_90a", 0)});
}

TEST(Codegen, RefusesWhatDoesNotFitWithSizes) {
    EXPECT_THAT([&] { target_of("sm_75"); }, throws("but got `sm_75`"));
    const ir::Function function = ir::parse(R"(
func @large(%a: ref<f32[128, 64]>, %b: ref<f32[64, 128]>, %c: ref<f32[128, 128]>) grid [] {
  %zero = constant 0 : i64
  %x = load %a[%zero : 128, %zero : 64] : f32[128, 64]
  %y = load %b[%zero : 64, %zero : 128] : f32[64, 128]
  %z = dot %x, %y : f32[128, 128]
  store %c[%zero : 128, %zero : 128], %z
  yield
})");
    Target target = target_of("sm_90a");
    target.shared_bytes = 40000;
    try {
        generate(prepare(function), target);
        FAIL() << "expected a UserError";
    } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find("40000 bytes of shared memory"), std::string::npos)
            << error.what();
    }
}

TEST(Codegen, ScratchBeyondSharedMemoryLiesInAWorkspace) {
    const ir::Function function = ir::parse(R"(
func @large(%s: scratch<f32[1000, 1000]>) grid [] {
  %zero = constant 0 : i64
  %x = constant 0 : f32
  store %s[%zero, %zero], %x
  yield
})");
    const Generated text = generate(prepare(function), target_of("sm_90a"));
    EXPECT_EQ(text.workspace_bytes, 4000000);
    EXPECT_LT(text.shared_bytes, 1024);
    EXPECT_NE(text.source.find("workspace"), std::string::npos);
}

TEST(Codegen, TextNamesTheInstructionsItComesFrom) {
    const auto matmul = testing_support::matmul_program("bf16", "f32", 64, 64, 32, 4, 0);
    const Generated text = generated(ir::parse(matmul.text), "sm_80");
    for (const char* part : {"= dot %", "cp_async_16", "ldmatrix", "ptx::multiply(", "4 stages"}) {
        EXPECT_NE(text.source.find(part), std::string::npos) << part;
    }
}

TEST(Codegen, StepsOfAProductAreStatementsOfAtMost256Instructions) {
    const auto occurrences = [](const std::string& text, const std::string& part) {
        std::size_t count = 0;
        for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
            ++count;
        }
        return count;
    };
    for (const MmaStep& step : {MmaStep{1, 2, DType::f16, false}, MmaStep{2, 8},
                                MmaStep{2, 8, DType::bf16, true, 4, false}}) {
        const std::string text = mma_step_functions({step});
        const int steps = std::max(step.loads, 1), left = step.loads > 0 ? step.rows : 0;
        EXPECT_EQ(occurrences(text, "\"mma.sync"), std::size_t(steps * step.rows * step.columns));
        EXPECT_EQ(occurrences(text, "\"ldmatrix"), std::size_t(steps * (left + step.columns / 2)));
    }
    // 8 x 16 instructions per step on 4 warps are 32 each.
    const auto of_product = [](std::int64_t k) {
        const auto matmul = testing_support::matmul_program("bf16", "f32", 128, 128, k, 1, 0);
        Generated text = generated(ir::parse(matmul.text), "sm_80");
        EXPECT_EQ(text.threads, 128);
        return text.source;
    };
    for (const auto& [k, statements] : {std::pair{32, 1}, {64, 1}, {128, 1}, {256, 2}}) {
        const std::string text = of_product(k);
        EXPECT_EQ(occurrences(text, "TW_DEVICE void multiply("), 1u) << k;
        EXPECT_EQ(occurrences(text, "\"mma.sync"), std::size_t(2 * k / statements)) << k;
        EXPECT_EQ(occurrences(text, "ptx::multiply("), std::size_t(statements)) << k;
    }
}

TEST(Codegen, FirstCopiesAreALoopWhereIterationsHaveManyProducts) {
    for (const int dots : {2, 3}) {
        const auto matmul = testing_support::matmul_program("bf16", "f32", 64, 64, 32, 8, 0);
        std::string source = matmul.text;
        const std::string end = "yield %d\n";
        const std::size_t at = source.find(end);
        ASSERT_NE(at, std::string::npos);
        std::string more;
        for (int i = 1; i < dots; ++i) {
            more += fmt::format("%d{} = dot %a, %b, %{} : f32[64, 64]\n", i,
                                i == 1 ? std::string("d") : fmt::format("d{}", i - 1));
        }
        source.replace(at, end.size(), more + fmt::format("yield %d{}\n", dots - 1));
        ir::Function function = ir::parse(source);
        for (const int stages : {2, 4}) {
            function.hints.num_stages = stages;
            const std::string text = generated(function, "sm_80").source;
            std::size_t copies = 0;
            for (auto found = text.find("cp_async_commit"); found != std::string::npos;
                 found = text.find("cp_async_commit", found + 1)) {
                ++copies;
            }
            const bool loops = dots == 3 && stages == 4;
            EXPECT_EQ(copies, loops ? 2u : static_cast<unsigned>(stages)) << dots << text;
            EXPECT_EQ(text.find(" < 3ll; stage") != std::string::npos, loops) << dots << text;
        }
    }
}

TEST(Codegen, ArchitecturesHaveTheirSharedMemory) {
    for (const auto& [arch, kilobytes] : {std::pair("sm_88", 99),
                                          {"sm_103a", 227},
                                          {"sm_110a", 227},
                                          {"sm_121", 99},
                                          {"sm_121a", 99}}) {
        EXPECT_EQ(target_of(arch).shared_bytes, kilobytes * 1024) << arch;
    }
}

TEST(Codegen, OnlyLoopsThatMayWrapAreGuarded) {
    for (const auto& program : testing_support::cuda_programs()) {
        EXPECT_EQ(generated(ir::parse(program.text), "sm_90a").source.find("next_index("),
                  std::string::npos)
            << program.name;
    }
}

TEST(Codegen, WhatDoesNotFitIsNamedWithTheRemediesThatApply) {
    const auto message = [](const std::string& text) -> std::string {
        Target target = target_of("sm_90a");
        target.shared_bytes = 20000;
        target.facts.assign(3, {.vectors = true, .dense = true});
        try {
            generate(prepare(ir::parse(text)), target);
        } catch (const UserError& error) {
            return error.what();
        }
        return "fits";
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    const std::string scan = message(R"(
func @scan(%a: ref<f32[64, 128]>, %b: ref<f32[64, 128]>) grid [] num_stages 3 {
  %zero = constant 0 : i64
  %x = load %a[%zero : 64, %zero : 128] : f32[64, 128]
  %y = scan %x sum axis 0 : f32[64, 128]
  store %b[%zero : 64, %zero : 128], %y
  yield
})");
    EXPECT_TRUE(has(scan, "for `scan`; smaller tiles would fit")) << scan;
    const std::string sort = message(R"(
func @sort(%a: ref<f32[8192]>, %b: ref<i32[8192]>) grid [] {
  %zero = constant 0 : i64
  %x = load %a[%zero : 8192] : f32[8192]
  %y = argsort %x axis 0 count 8192 descending : i32[8192]
  store %b[%zero : 8192], %y
  yield
})");
    EXPECT_TRUE(has(sort,
                    "65536 for `argsort`; smaller tiles would fit; what is sorted has to fit "
                    "whole: sort longer lines by the framework's sort before the kernel"))
        << sort;
    const std::string rows = testing_support::matmul_program("f16", "f32", 32, 32, 32, 4, 0).text;
    std::string staged = rows;
    staged.replace(staged.find("grid []"), 7, "grid [] num_stages 8");
    const std::string product = message(staged);
    EXPECT_TRUE(has(product, "for 8 stages of a `load`; fewer stages or smaller")) << product;
    EXPECT_EQ(message(rows), "fits");
}

}  // namespace
}  // namespace tilewright::cuda
