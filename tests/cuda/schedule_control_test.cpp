// Loops, branches and the beginning of programs without roles of the scheduled form: text and
// rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;

/// A program of one warp at level `split`, with scalars.
Program control_with(const std::string& body, const std::string& grid = "[]") {
    return program_without_roles(R"(  ref @x dtype @f16 extents [64] scratch
  scalar @low %low : i64
  scalar @high %high : i32
  scalar @step %step : i64
  scalar @yes %yes : bool
  buffer @a dtype @u8 rows 1 columns 256 slots 1 at 0
  warps @all first 0 count 1 registers 0
  layout @lanes shape [32] reg [] lane [1, 2, 4, 8, 16] warp []
  %tile = declare : i64[32] @lanes
)" + body,
                                 grid);
}

std::string text_of_control(const std::string& body) {
    const Program program = control_with(body);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    return print_threads(program).statements;
}

TEST(ScheduleControl, LoopsCountOrAreLeft) {
    const std::string loop = "loop %low, %high, %step {} { (%i : i64)\n comment text \"body\"\n}\n";
    const auto with = [&](const std::string& how) {
        std::string text = loop;
        return text_of_control(text.replace(text.find("{}"), 2, how));
    };
    EXPECT_THAT(with(""), HasSubstr("    #pragma unroll 1\n"
                                    "    for (i64 i = low; i < static_cast<i64>(high) && step > 0; "
                                    "i += step) {\n        // body\n    }\n"));
    EXPECT_THAT(with("rises"), HasSubstr("i < static_cast<i64>(high); i += step) {\n"));
    EXPECT_THAT(with("stops"), HasSubstr("i = next_index(i, static_cast<i64>(high), step)) {\n"));
    EXPECT_THAT(text_of_control("loop {\n leave %yes\n}\n"),
                HasSubstr("    while (true) {\n        if (!(yes)) break;\n    }\n"));
}

TEST(ScheduleControl, BlocksAreRunWhereTheirHeadsHold) {
    EXPECT_THAT(
        text_of_control("scope %low, %high {\n comment text \"a\"\n}\n"
                        "branch %yes {\n comment text \"b\"\n} {\n comment text \"c\"\n}\n"),
        HasSubstr("    if (low < static_cast<i64>(high)) {\n        // a\n    }\n"
                  "    if (yes) {\n        // b\n    }\n"
                  "    else {\n        // c\n    }\n"));
}

TEST(ScheduleControl, IterationsAndSlotsFollowEachOther) {
    EXPECT_THAT(text_of_control("%n = declare %low : i64\n"
                                "advance %n, %step\n"
                                "advance %n, %step, %high\n"
                                "%f = following %n, %step : i64\n"
                                "%w = index %high : i64\n"
                                "%s = add %f, %w : i64\n"
                                "%zero = constant is 0 : i32\n"
                                "%slot = declare %zero : i32\n"
                                "%b = before %slot slots 3 : i32\n"
                                "next_slot %slot slots 3\n"),
                HasSubstr("    i64 n = low;\n"
                          "    n += step;\n"
                          "    n = next_index(n, static_cast<i64>(high), step);\n"
                          "    const i64 s = ops::add((n + step), static_cast<i64>(high));\n"
                          "    i32 slot = 0;\n"
                          "    const int b = slot == 0 ? 2 : slot - 1;\n"
                          "    slot = slot == 2 ? 0 : slot + 1;\n"));
}

TEST(ScheduleControl, ProgramsKnowTheirIndicesAndScratch) {
    const Program program = control_with(
        "program_ids last_first workspace\n"
        "place_scratch of @x uses @a\nplace_scratch of @x at 128 stride 512\n",
        "[4, -1]");
    EXPECT_THAT(print_threads(program).statements,
                HasSubstr("    u32 program = first_program + gridDim.x - 1 - blockIdx.x;\n"
                          "    const i64 program1 = program % static_cast<u32>(grid1);\n"
                          "    program /= static_cast<u32>(grid1);\n"
                          "    const i64 program0 = program;\n"
                          "    f16* const x_data = reinterpret_cast<f16*>(memory + a);\n"
                          "    f16* const x_data = reinterpret_cast<f16*>(workspace + blockIdx.x * "
                          "512ull + 128);\n"));
}

TEST(ScheduleRules, V34HeadsOfBlocksAreScalarsAndLoopsEnd) {
    const auto broken = [](const std::string& body) {
        return broken_rule(control_with(body)).value_or("nothing");
    };
    EXPECT_EQ(broken("loop %low, %high { (%i : i64)\n}\n"),
              "V34: `loop` has another number of operands or blocks");
    EXPECT_EQ(broken("loop %low, %high, %step { (%i : i32)\n}\n"), "V34: %i is no index of a loop");
    EXPECT_EQ(broken("loop {\n}\n"), "V34: a loop does not end");
    EXPECT_EQ(broken("loop {\n scope %low, %high {\n leave %yes\n}\n}\n"),
              "V34: a loop is left from outside of it");
    EXPECT_EQ(broken("branch %low {\n}\n"), "V34: %low is no condition");
    EXPECT_EQ(broken("scope %low, %tile {\n}\n"), "V34: %tile is no scalar index");
    EXPECT_EQ(broken("%f = following %yes, %step : i64\n"), "V34: %yes is no scalar index");
    EXPECT_EQ(broken("%f = following %low, %step : i32\n"), "V34: %f is no index of a loop");
    EXPECT_EQ(broken("advance %low, %step\n"), "V34: %low is not declared");
    EXPECT_EQ(broken("next_slot %high slots 2\n"), "V34: %high is not declared");
    EXPECT_EQ(broken("%b = before %high slots 0 : i32\n"), "V34: a slot of 0");
    EXPECT_EQ(broken("place_scratch of @x at 128 stride 100\n"),
              "V34: @x does not fit the 100 bytes of a program");
    EXPECT_EQ(broken("place_scratch of @x uses @a at 128 stride 512\n"),
              "V34: @x has two places, or none");
}

}  // namespace
}  // namespace tilewright::cuda::schedule
