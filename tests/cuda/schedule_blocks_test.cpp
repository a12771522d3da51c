// Programs that the thread blocks of a cluster share: totals of scans pass between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Two blocks with two warps each scan 1,024 elements: each warp has two vectors side by side. Each
/// warp of a block has 8 bytes in either half of the buffer, so have those of the other block.
const std::string kShared =
    "  ref @x dtype @f32 extents [3, 1024] vectors dense\n"
    "  ref @z dtype @f32 extents [3, 1024] vectors dense\n"
    "  buffer @a dtype @u8 rows 2 columns 32 slots 1 at -1\n"
    "  warps @all first 0 count 4 registers 0\n"
    "  layout @row shape [1024] reg [1, 2, 128] lane [4, 8, 16, 32, 64] warp [256, 512]\n"
    "  layout @one shape [1] reg [] lane [0, 0, 0, 0, 0] warp [0, 0]\n"
    "  program_ids\n"
    "  meet begin\n"
    "  operation of @scan\n"
    "  %x = declare : f32[1024] @row\n"
    "  %s = scan %x sum axis 0 parts : f32[1024] @row\n"
    "  meet end\n"
    "  write_totals %s sum axis 0 blocks writes @a\n"
    "  meet\n"
    "  %j, %t = join_totals %s sum axis 0 totals blocks reads @a : f32[1024] @row, f32[1] @one\n"
    "  access stores @z\n"
    "  comment text \"stored\"\n"
    "  access stores @z\n"
    "  comment text \"stored again\"\n"
    "  access uses @a\n";

Program shared_program(const std::string& text = kShared) {
    return program_without_roles(text, "[3] blocks 2");
}

TEST(ScheduleBlocks, WarpsAreNumberedThroughTheClusterAndTotalsGoToAllBlocks) {
    const std::string text = text_after_passes(shared_program()).statements;
    EXPECT_THAT(text, HasSubstr("    u32 program = blockIdx.x / 2;\n"));
    EXPECT_THAT(text, HasSubstr("    ptx::cluster_arrive();\n    f32 x_0"));
    // One total leaves a warp.
    EXPECT_THAT(text, HasSubstr("    ptx::cluster_wait();\n"
                                "    f32 s_0_0_run = s_0_0_total;\n"
                                "    s_0_1_before = s_0_0_run + s_0_1_before;\n"
                                "    s_0_0_run = s_0_0_run + s_0_1_total;\n"
                                "    u64* const s_0_0_m = reinterpret_cast<u64*>(memory + a + "
                                "turn * 32);\n"
                                "    if (lane < 2) send(s_0_0_m + warp, lane, s_0_0_run);\n"
                                "    ptx::cluster_arrive();\n"
                                "    ptx::cluster_wait();\n"));
    EXPECT_THAT(text, HasSubstr("received<f32>(s_0_0_m[(warp & 28) + 3])"));
    EXPECT_THAT(text, HasSubstr("    turn ^= 1;\n"));
    // Effects on one array are ordered by the whole cluster.
    EXPECT_THAT(text, HasSubstr("    // stored\n"
                                "    ptx::cluster_arrive();\n"
                                "    ptx::cluster_wait();\n"
                                "    // stored again\n"));
    EXPECT_THAT(text, Not(HasSubstr("__syncthreads")));
}

TEST(ScheduleBlocks, TextIsReadBack) {
    const Program program = shared_program();
    EXPECT_EQ(program.blocks, 2);
    EXPECT_EQ(program.cluster(), 2);
    EXPECT_EQ(print(parse(print(program))), print(program));
    EXPECT_THAT(print(program), HasSubstr(" blocks 2 {\n"));
    EXPECT_EQ(broken_sharing(program), std::nullopt);
}

TEST(ScheduleBlocks, RulesAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V26", Level::split, "reg [1, 2, 128] lane [4, 8, 16, 32, 64]",
         "reg [1, 128, 2] lane [8, 4, 16, 32, 64]"},
        {"V26", Level::split, "reg [1, 2, 128] lane [4, 8, 16, 32, 64] warp [256, 512]",
         "reg [1, 2, 512] lane [4, 8, 16, 32, 64] warp [256, 128]"},
        {"V27", Level::split, "columns 32", "columns 16"},
        {"V38", Level::split, "  meet\n", ""},
        {"V38", Level::split, "  meet\n", "  barrier\n"},
        {"V38", Level::split, "  access uses @a\n", "  barrier\n"},
        {"V38", Level::split, "  access uses @a\n", "  access reads @a\n"},
        {"V38", Level::split, "  access uses @a\n", "  print text \"done\"\n"},
        {"V38", Level::split, " blocks writes @a", " writes @a"},
        {"V38", Level::split, " blocks reads @a", " reads @a"},
    };
    expect_all_broken(
        breaches, [&](Level) { return shared_program(); }, apply);
    EXPECT_THAT(broken_sharing(shared_program("  comment text \"none\"\n")).value_or(""),
                HasSubstr("no totals to exchange"));
}

}  // namespace
}  // namespace tilewright::cuda::schedule
