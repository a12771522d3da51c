// Passes of the scheduled form one by one: the text before and after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "cuda/schedule/materialise.h"
#include "cuda/schedule/tools.h"
#include "tests/cuda/schedule_support.h"
#include "tests/support/throws.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> names_of_passes() {
    std::vector<std::string> names;
    std::istringstream list(pass_names());
    for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
    return names;
}

/// The program after a pass.
Program after(const std::string& pass, const ir::Function& function, const Target& target) {
    return schedule(function, target, level_of_pass(pass).value(), pass);
}

Program after(const std::string& pass, const testing_support::Product& product) {
    const ir::Function function = kernel_of(product);
    return after(pass, function, dense_target(function));
}

int count_of(const Program& program, ir::Op op) {
    int count = 0;
    each_instruction(program.body, [&](const Instruction& made) { count += made.is(op) ? 1 : 0; });
    return count;
}

TEST(SchedulePasses, EachCanBeTheLast) {
    const std::vector<std::string> names = names_of_passes();
    EXPECT_GE(names.size(), 18U);
    EXPECT_EQ(level_of_pass("emit"), std::nullopt);
    EXPECT_EQ(level_of_pass(""), std::nullopt);
    const auto attention = testing_support::attention({"a", 4, 1024, 1024, 64, 128, 64, true});
    for (const std::string& text : {testing_support::product(kMatmul).text, attention.text}) {
        const ir::Function function = ir::parse(text);
        const Target target = dense_target(function);
        Level level = Level::lowered;
        for (const std::string& name : names) {
            SCOPED_TRACE(name);
            const Program program = after(name, function, target);
            EXPECT_LE(level, program.level);
            level = program.level;
            EXPECT_EQ(level, level_of_pass(name));
            EXPECT_EQ(broken_rule(program), std::nullopt);
            EXPECT_EQ(print(parse(print(program))), print(program));
        }
        EXPECT_EQ(print(after(names.back(), function, target)), print(schedule(function, target)));
    }
}

TEST(SchedulePasses, KernelsWithoutWgmmaHaveTheLastOnes) {
    const ir::Function function = kernel_of(kMatmul);
    const Target target = target_of("sm_80");
    EXPECT_EQ(print(schedule_any(function, target, Level::placed, "place_shared")),
              print(schedule_any(function, target, Level::placed)));
    EXPECT_THAT([&] { schedule_any(function, target, Level::laid_out, "guard_masks"); },
                tilewright::testing::throws("expected a level of split, placed, synchronised for "
                                            "kernels without wgmma but got `guard_masks`: it is "
                                            "not for sm_90a"));
}

// 456 = 7 * 64 + 8: the last columns of x and rows of y are a narrower product after the loop.
TEST(SchedulePasses, ALastNarrowerProductBecomesAnIteration) {
    const testing_support::Product uneven{"uneven", 328, 520, 456, 256, 256};
    EXPECT_EQ(count_of(after("lower", uneven), ir::Op::dot), 2);
    const Program joined = after("join_iterations", uneven);
    EXPECT_EQ(count_of(joined, ir::Op::dot), 1);
    EXPECT_EQ(count_of(joined, ir::Op::for_loop), 1);
}

TEST(SchedulePasses, ReadersOfIndexMathHaveCopiesOfTheirOwn) {
    const auto shared_values = [&](const char* pass) {
        int shared = 0;
        for (const auto& one : all_programs()) {
            const ir::Function function = ir::parse(one.text);
            const Program program = after(pass, function, dense_target(function));
            const IndexTiles tiles(program);
            const Uses uses(program);
            each_instruction(program.body, [&](const Instruction& made) {
                if (made.results.empty() || !tiles.contains(made.result())) return;
                std::set<const Instruction*> readers;
                for (const Instruction* user : uses.users(made.result())) {
                    if (user->results.empty() || !tiles.contains(user->result())) {
                        readers.insert(user);
                    }
                }
                shared += readers.size() > 1 ? 1 : 0;
            });
        }
        return shared;
    };
    EXPECT_GT(shared_values("select_dots"), 0);
    EXPECT_EQ(shared_values("materialise"), 0);
}

TEST(SchedulePasses, PairsLoadHalfOfWhatBothRead) {
    const ir::Function function = kernel_of(kMatmul);
    Target target = dense_target(function);
    target.choice = Choice{.tile = {128, 192, Pairs::rows}};
    const std::string alone = print(after("warp_specialise", function, target));
    EXPECT_THAT(alone, Not(HasSubstr("pairs @rows")));
    EXPECT_THAT(alone, Not(HasSubstr("multicast")));
    EXPECT_THAT(alone, HasSubstr("empty_arrivals 8 "));
    const std::string paired = print(after("pair_blocks", function, target));
    EXPECT_THAT(paired, HasSubstr("pairs @rows"));
    EXPECT_THAT(paired, HasSubstr("to @y_tile1 channel @operands multicast @rows"));
    EXPECT_THAT(paired, HasSubstr("empty_arrivals 16 "));
}

TEST(SchedulePasses, WarpgroupsThatAlternateSkipWhatTheOtherConsumes) {
    testing_support::Product options = kMatmul;
    options.rest = true;
    options.epilogue = testing_support::with_shapes(
        "%fr = cast %rest : f32TILE\n%s = add %d, %fr : f32TILE\n%q = cast %s : bf16TILE", 256,
        256);
    const ir::Function function = kernel_of(options);
    Target target = dense_target(function);
    target.choice = kAlternating;
    const std::string before = print(after("split_epilogue", function, target));
    EXPECT_THAT(before, HasSubstr("groups [1, 1]"));
    EXPECT_THAT(before, HasSubstr(" turns 2 {"));
    EXPECT_THAT(before, HasSubstr(" count 6 "));  // three of columns, two of rows
    EXPECT_THAT(before, HasSubstr("warps @consumer first 0 count 8 registers 240"));
    EXPECT_THAT(before, HasSubstr("warps @loader first 9 count 1"));
    EXPECT_THAT(before, Not(HasSubstr("skip")));
    const Program program = after("ping_pong", function, target);
    const std::string turns = print(program);
    EXPECT_THAT(turns, HasSubstr("by 64 channel @operands first"));  // 4096 / 64 iterations
    EXPECT_THAT(turns, HasSubstr("by 6 channel @ahead1 first"));
    EXPECT_THAT(turns, HasSubstr("issue_begin turn 1"));
    EXPECT_EQ(program.consumer_groups(), 1);
    EXPECT_EQ(program.all_consumer_groups(), 2);
}

// The index is computed after the products where the kernel is cut.
TEST(SchedulePasses, LoadsOfLinesThatShareAnIndexMoveBeforeTheLastProducts) {
    const ir::Function function = ir::parse(R"(
func @scaled(%x: ref<bf16[2048, 4096]>, %y: ref<bf16[4096, 4096]>, %u: ref<bf16[8192]>,
             %v: ref<bf16[8192]>, %z: ref<bf16[2048, 4096]>) grid [] {
%o = constant 0 : i64
%a = load %x[%o : 2048, %o : 4096] : bf16[2048, 4096]
%b = load %y[%o : 4096, %o : 4096] : bf16[4096, 4096]
%d = dot %a, %b : f32[2048, 4096]
%half = constant 4096 : i64
%u1 = load %u[%half : 4096] : bf16[4096]
%v1 = load %v[%half : 4096] : bf16[4096]
%sum = add %u1, %v1 : bf16[4096]
%f = cast %sum : f32[4096]
%e = expand_dims %f axis 0 : f32[1, 4096]
%row = broadcast %e : f32[2048, 4096]
%s = add %d, %row : f32[2048, 4096]
%q = cast %s : bf16[2048, 4096]
store %z[%o : 2048, %o : 4096], %q
yield
})");
    Target target = dense_target(function);
    target.choice = Choice{.tile = {128, 128}};
    const Program program = after("split_epilogue", function, target);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    const std::string text = print(program);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(
        text, found,
        std::regex("(%\\w+) = add %\\w+, %\\w+ : i64\n"
                   " *(%\\w+) = load \\1 of @u index \\[128\\] in_bounds : bf16\\[128\\] @\\w+\n"
                   " *(%\\w+) = load \\1 of @v index \\[128\\] in_bounds : bf16\\[128\\] @\\w+\n"
                   "[^{]* pending 0 [^{]*panels %\\w+, \\2, \\3 count 2 ")))
        << text;
    const std::string panels = found.suffix();
    EXPECT_THAT(panels, Not(HasSubstr("= load"))) << text;
}

}  // namespace
}  // namespace tilewright::cuda::schedule
