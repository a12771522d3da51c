// What is decided about a kernel before its text is written, as text.
#include "cuda/codegen/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/parse.h"
#include "tests/run/cuda_programs.h"

namespace tilewright::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The plan of a program whose arrays are dense and aligned.
std::string plan_of(const std::string& text, int stages = 0, bool aligned = true, int warps = 4) {
    const ir::Function function = prepare(ir::parse(text));
    Target target = target_of("sm_80");
    if (aligned) {
        target.facts.assign(function.parameters().size(), {.vectors = true, .dense = true});
    }
    const KernelFacts facts(function, target, warps, stages);
    return print(Plan(facts), facts);
}

std::string matmul() {
    return testing_support::matmul_program("bf16", "f32", 128, 128, 32, 4, 0).text;
}

TEST(Plan, DotsHaveAnInstructionAndItsLayouts) {
    const std::string plan = plan_of(matmul());
    EXPECT_THAT(plan, HasSubstr(": mma16 of 128 x 128 x 32\n"));
    // Registers of m16n8k16's sum: two neighbours along a row, then eight rows below.
    EXPECT_THAT(plan, HasSubstr("d in [128, 128] reg [1:1 0:8 "));
    EXPECT_THAT(plan_of(testing_support::matmul_program("f32", "f32", 64, 64, 32, 2, 0).text),
                HasSubstr(": fma of 64 x 64 x 32\n"));
}

TEST(Plan, OperandsAreStagedWhereTheirRowsAreAligned) {
    // 16 KiB an iteration: as many stages as 64 KiB hold.
    EXPECT_THAT(plan_of(matmul()), HasSubstr("load x: to shared memory, 4 stages\n"));
    EXPECT_THAT(plan_of(matmul(), 3), HasSubstr("load y: to shared memory, 3 stages\n"));
    EXPECT_THAT(plan_of(matmul(), 1), HasSubstr("load y: to shared memory\n"));
    EXPECT_THAT(plan_of(matmul(), 0, false), Not(HasSubstr("to shared memory")));
}

TEST(Plan, OperandsFromBeforeALoopAreStagedOnce) {
    const auto attention = testing_support::attention_program("bf16", 64, 64, 64, 200);
    const std::string plan = plan_of(attention.text);
    EXPECT_THAT(plan, HasSubstr("load q: to shared memory\n"));
    EXPECT_THAT(plan, HasSubstr("load k: to shared memory, 4 stages\n"));
}

TEST(Plan, CarriedSumsOfRowsAreJoinedAfterTheLoop) {
    const auto program = [](const std::string& kind) {
        return plan_of(R"(func @f(%x: ref<f32[8, 64, 64]>, %y: ref<f32[64]>) grid [] {
%o = constant 0 : i64
%one = constant 1 : i64
%n = constant 8 : i64
%l0 = constant 0 : f32[64]
%l = for_loop %i = %o, %n, %one carry (%li = %l0) : f32[64] {
%t = load %x[%i, %o : 64, %o : 64] : f32[64, 64]
%s = reduce %t )" + kind +
                       R"( axis 1 : f32[64]
%ln = add %li, %s : f32[64]
yield %ln
}
store %y[%o : 64], %l
yield
})");
    };
    EXPECT_THAT(program("sum"), HasSubstr("reduce s: between lanes after the loop\n"));
    EXPECT_THAT(program("max"), Not(HasSubstr("between lanes")));
}

TEST(Plan, LoopsOverRowsLoadAnIterationAhead) {
    const std::string rows = testing_support::rows_ahead_program().text;
    const std::string plan = plan_of(rows);
    EXPECT_THAT(plan, HasSubstr("load x: an iteration ahead\n"));
    EXPECT_THAT(plan, HasSubstr("load x: packed\n"));
    EXPECT_THAT(plan, HasSubstr("load a: an iteration ahead\n"));
    EXPECT_THAT(plan_of(rows, 1), Not(HasSubstr("ahead")));
}

TEST(Plan, WideRowsAreLoadedAtEachUseAndNotAhead) {
    const std::string plan = plan_of(testing_support::wide_rows_program().text, 0, true, 1);
    EXPECT_THAT(plan, HasSubstr("load w: at each use\n"));
    EXPECT_THAT(plan, HasSubstr("load x: packed\n"));
    EXPECT_THAT(plan, Not(HasSubstr("ahead")));
    // Each thread adds to its own elements of the scratch.
    EXPECT_THAT(plan, HasSubstr("scratch s: without barriers\n"));
}

TEST(Plan, ProgramsWhoseLoopsGrowStartFromTheLast) {
    const auto program = [](const char* end) {
        return plan_of(std::string("func @f(%x: ref<f32[64, 64]>, %y: ref<f32[64]>) grid [64] {\n"
                                   "%o = constant 0 : i64\n%one = constant 1 : i64\n"
                                   "%p = program_id axis 0 : i64\n%s0 = constant 0 : f32[64]\n"
                                   "%s = for_loop %i = %o, ") +
                       end +
                       ", %one carry (%a = %s0) : f32[64] {\n"
                       "%r = load %x[%i, %o : 64] : f32[64]\n%b = add %a, %r : f32[64]\n"
                       "yield %b\n}\nstore %y[%o : 64], %s\nyield\n}\n");
    };
    EXPECT_THAT(program("%p"), HasSubstr("programs: the last first\n"));
    EXPECT_THAT(program("%one"), Not(HasSubstr("programs:")));
}

TEST(Plan, LightKernelsOfTheLargestBlocksShareAMultiprocessor) {
    const std::string rows = testing_support::wide_rows_program().text;
    EXPECT_THAT(plan_of(rows), HasSubstr("blocks: 1 on a multiprocessor\n"));
    EXPECT_THAT(plan_of(rows, 0, true, 16), HasSubstr("blocks: 2 on a multiprocessor\n"));
    EXPECT_THAT(plan_of(matmul(), 0, true, 16), Not(HasSubstr("blocks:")));
}

TEST(Plan, ScratchThatOtherThreadsReadHasBarriers) {
    const auto program = [](const char* second) {
        return plan_of(std::string("func @f(%x: ref<f32[256]>, %s: scratch<f32[512]>) grid [] {\n"
                                   "%o = constant 0 : i64\n%v = load %x[%o : 256] : f32[256]\n"
                                   "store %s[%o : 256], %v\n") +
                       second + "store %x[%o : 256], %w\nyield\n}\n");
    };
    EXPECT_THAT(program("%w = load %s[%o : 256] : f32[256]\n"), HasSubstr("scratch s: without"));
    EXPECT_THAT(program("%m = constant 256 : i64\n%w = load %s[%m : 256] : f32[256]\n"),
                Not(HasSubstr("scratch")));
}

}  // namespace
}  // namespace tilewright::cuda
