// Programs of text of the scheduled form: lifetimes and places of buffers, barriers, rules.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/schedule/insert_barriers.h"
#include "cuda/schedule/lifetimes.h"
#include "cuda/schedule/place_shared.h"
#include "cuda/schedule/print_cuda.h"
#include "tests/cuda/schedule_support.h"
#include "tests/run/cuda_programs.h"
#include "tests/support/throws.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;

/// A program at level `split` with the buffers a and b, of 256 and 128 bytes.
Program program_with(const std::string& body) {
    return parse(R"(
schedule @p arch @sm_80 level @split grid [] groups [] rows [] columns [] order 8 stages 0 shared 0 {
  ref @x dtype @f32 extents [64]
  buffer @a dtype @u8 rows 1 columns 256 slots 1 at -1 purpose "`scan`"
  buffer @b dtype @u8 rows 1 columns 128 slots 1 at -1
  warps @all first 0 count 4 registers 0
  layout @lanes shape [32] reg [] lane [1, 2, 4, 8, 16] warp [0, 0]
  layout @swapped shape [32] reg [] lane [2, 1, 4, 8, 16] warp [0, 0]
  layout @quads shape [32] reg [1, 2] lane [4, 8, 16, 0, 0] warp [0, 0]
  layout @warps shape [32] reg [] lane [1, 2, 4, 0, 0] warp [8, 16]
)" + body + "}");
}

/// The statements after both passes, without the places of buffers.
std::string statements(const std::string& body) {
    Program program = program_with(body);
    place_shared(program);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    insert_barriers(program);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    std::string text = print_statements(program);
    while (text.starts_with("    constexpr")) text.erase(0, text.find('\n') + 1);
    return text;
}

std::int64_t shared_bytes(const std::string& body) {
    Program program = program_with(body);
    place_shared(program);
    return program.shared_bytes;
}

constexpr const char* kUseA = "operation of @one\n access writes @a\n raw text \"a\"\n";
constexpr const char* kUseB = "operation of @two\n access writes @b\n raw text \"b\"\n";

TEST(ScheduleText, BuffersShareAPlaceWhereTheirLifetimesDoNotMeet) {
    EXPECT_EQ(shared_bytes(std::string(kUseA) + kUseB), 256);
    // Within one operation all buffers are in use at once.
    EXPECT_EQ(shared_bytes("operation of @one\n access writes @a\n access writes @b\n"), 384);
    EXPECT_EQ(shared_bytes(std::string(kUseA) + kUseB + "operation of @three\n access uses @a\n"),
              384);
}

TEST(ScheduleText, ABufferFromBeforeALoopLivesUntilTheLoopEnds) {
    const std::string body = std::string(kUseA) +
                             "loop text \"for (;;)\" {\n"
                             "operation of @for_loop\n operation of @read\n access reads @a\n" +
                             kUseB + "}\n";
    EXPECT_EQ(shared_bytes(body), 384);
    const auto lives = lifetimes(program_with(body));
    EXPECT_EQ(lives.at("a").last, lives.at("b").last);
    // In a branch nothing is repeated.
    std::string branch = body;
    branch.replace(branch.find("loop"), 4, "branch");
    EXPECT_EQ(shared_bytes(branch), 256);
}

TEST(ScheduleText, ABarrierStandsBetweenWritesAndReadsOfOneBuffer) {
    EXPECT_EQ(
        statements(std::string(kUseA) + "access reads @a\n raw text \"read\"\n"
                                        "access reads @a\n raw text \"again\"\n"
                                        "access writes @a\n raw text \"write\"\n"),
        "    a\n    __syncthreads();\n    read\n    again\n    __syncthreads();\n    write\n");
    // One barrier is enough for all reads after it.
    EXPECT_EQ(
        statements("operation of @one\n access writes @a\n access writes @b\n raw text \"w\"\n"
                   "access reads @a reads @b\n raw text \"r\"\n"
                   "access reads @b\n raw text \"s\"\n"),
        "    w\n    __syncthreads();\n    r\n    s\n");
}

TEST(ScheduleText, BuffersAtOnePlaceAreOrderedLikeOne) {
    EXPECT_EQ(statements(std::string(kUseA) + kUseB), "    a\n    __syncthreads();\n    b\n");
    EXPECT_EQ(statements(std::string(kUseA) + kUseB + "operation of @three\n access uses @a\n"),
              "    a\n    b\n");
}

TEST(ScheduleText, WhatLoopsAndBranchesAccessIsPendingWhereTheyBeginAndEnd) {
    EXPECT_EQ(statements("operation of @one\n access writes @a\n"
                         "loop text \"for (;;)\" {\n"
                         "operation of @two\n access reads @a\n raw text \"r\"\n"
                         "}\n access writes @a\n raw text \"w\"\n"),
              "    for (;;) {\n        __syncthreads();\n        r\n    }\n"
              "    __syncthreads();\n    w\n");
    // What an iteration writes last is read by the next one.
    EXPECT_EQ(statements("loop text \"for (;;)\" {\n"
                         "operation of @two\n access reads @a\n raw text \"r\"\n"
                         "access writes @a\n raw text \"w\"\n}\n"),
              "    for (;;) {\n        __syncthreads();\n        r\n"
              "        __syncthreads();\n        w\n    }\n");
    // An array that one branch stores to is loaded after a barrier; one that is only loaded is not.
    const std::string branches =
        "branch text \"if (c)\" {\n access {} @x\n raw text \"s\"\n} {\n raw text \"t\"\n}\n"
        "access loads @x\n raw text \"l\"\n";
    const auto with = [&](const char* how) {
        std::string text = branches;
        return statements(text.replace(text.find("{} @x"), 2, how));
    };
    EXPECT_THAT(with("stores"), HasSubstr("else {\n        t\n    }\n    __syncthreads();\n    l"));
    EXPECT_THAT(with("loads"), HasSubstr("else {\n        t\n    }\n    l"));
}

TEST(ScheduleText, AScopeIsPartOfTheStatementsAroundIt) {
    EXPECT_EQ(statements("operation of @one\n access writes @a\n scope text \"\" {\n"
                         "access reads @a\n raw text \"r\"\n}\n"),
              "    {\n        __syncthreads();\n        r\n    }\n");
}

TEST(ScheduleText, CopiesAreWaitedForBeforeTheyAreRead) {
    const std::string copy =
        "operation of @load\n access writes @a\n raw text \"copy\"\n access copies @a\n";
    EXPECT_EQ(statements(copy + "access writes @b\n raw text \"b\"\n"
                                "access reads @a\n raw text \"r\"\n"),
              "    copy\n    b\n    ptx::cp_async_wait<0>();\n    __syncthreads();\n    r\n");
    EXPECT_EQ(statements(copy + "settle_copies pending 2\n raw text \"r\"\n"),
              "    copy\n    ptx::cp_async_wait<2>();\n    r\n");
    // Where none are under way, nothing is waited for.
    EXPECT_EQ(statements("settle_copies pending 0\n raw text \"r\"\n"), "    r\n");
    // So are they before a barrier that orders accesses to an array.
    EXPECT_EQ(statements("access stores @x\n" + copy + "access loads @x\n raw text \"r\"\n"),
              "    copy\n    ptx::cp_async_wait<0>();\n    __syncthreads();\n    r\n");
}

TEST(ScheduleText, StepsOfProductsCallFunctionsOfTheText) {
    const Program program = program_with(
        "mma rows 1 columns 2 dtype @f16 text \"d, a, b\"\n"
        "mma rows 1 columns 2 dtype @f16 moved text \"d, a, b\"\n");
    const std::string text = print_statements(program);
    EXPECT_THAT(text, HasSubstr("ptx::multiply(F16{}, ptx::Blocks<1, 2>{}, ptx::Moved<false>{}, "
                                "d, a, b);\n"));
    EXPECT_THAT(text, HasSubstr("ptx::Moved<true>{}, d, a, b);\n"));
    const std::string functions = print_functions(program);
    EXPECT_THAT(functions, HasSubstr("multiply(F16, Blocks<1, 2>, Moved<false>,"));
    EXPECT_THAT(functions, HasSubstr("multiply(F16, Blocks<1, 2>, Moved<true>,"));
    EXPECT_EQ(print_includes(program), "");
    EXPECT_THAT(print_includes(program_with("operation of @argsort\n")), HasSubstr("sort.cuh"));
}

constexpr const char* kTile =
    "operation of @reshape\n"
    "%x = registers text \"p; q; r; s\" : f32[32] @quads\n"
    "write_tile %x writes @a extents [32] vector 4\n"
    "%y = read_tile reads @a extents [32] : f32[32] @lanes\n"
    "%z = shuffle %y : f32[32] @swapped\n"
    "raw text \"use(z);\"\n";

TEST(ScheduleText, TilesGoThroughSharedMemoryAndFromLaneToLane) {
    EXPECT_EQ(
        statements(kTile),
        "    const int at0 = (lane & 7) * 4;\n"
        "    const int at1 = lane;\n"
        "    auto* const a_data = reinterpret_cast<f32*>(memory + a);\n"
        "    if ((lane & 24) == 0 && warp == 0) store_vector<f32>(a_data + (at0), p, q, r, s);\n"
        "    __syncthreads();\n"
        "    f32 y;\n"
        "    load_vector(a_data + (at1), y);\n"
        "    // shuffle from [32] reg [] lane [0:1 0:2 0:4 0:8 0:16] warp [- -] to [32] reg [] "
        "lane [0:2 0:1 0:4 0:8 0:16] warp [- -]\n"
        "    const int z_lane = ((lane >> 0 & 1) * 2) ^ ((lane >> 1 & 1) * 1) ^ "
        "((lane >> 2 & 1) * 4) ^ ((lane >> 3 & 1) * 8) ^ ((lane >> 4 & 1) * 16);\n"
        "    const f32 z = __shfl_sync(0xffffffffu, y, z_lane ^ 0);\n"
        "    use(z);\n");
    // Positions that other statements name are declared once.
    EXPECT_THAT(statements("position called @at0 text \"lane\"\n" + std::string(kTile)),
                HasSubstr("load_vector(a_data + (at0), y);"));
}

TEST(ScheduleText, TilesLieBesideEachOtherInRowsAndInSteps) {
    const std::string text = statements(
        "operation of @concatenate\n"
        "%x = registers text \"p\" : f32[32] @lanes\n"
        "%y = registers text \"q\" : f32[32] @lanes\n"
        "write_tile %x, %y writes @a extents [64] starts [0, 32]\n"
        "%z = read_tile reads @a extents [64] starts [1] steps [2] : f32[32] @lanes\n");
    EXPECT_THAT(text, HasSubstr("store_vector<f32>(a_data + (at0), p);"));
    EXPECT_THAT(text, HasSubstr("store_vector<f32>(a_data + ((at0 + 32)), q);"));
    EXPECT_THAT(text, HasSubstr("load_vector(a_data + ((at0 * 2 + 1)), z);"));
}

constexpr const char* kElementwise =
    "layout @pairs shape [2, 32] reg [32] lane [1, 2, 4, 8, 16] warp [0, 0]\n"
    "layout @row shape [1, 32] reg [] lane [1, 2, 4, 8, 16] warp [0, 0]\n"
    "operation of @mul\n"
    "%n = program_id axis 0 : i64\n"
    "%f = cast %n : f32\n"
    "%x = registers text \"p; q\" : f32[2, 32] @pairs\n"
    "%i = iota axis 0 : i32[32] @lanes\n"
    "%z = cast %i : f32[32] @lanes\n"
    "%u = expand_dims %z axis 0 : f32[1, 32] @row\n"
    "%v = broadcast %u : f32[2, 32] @pairs\n"
    "%s = exp2 %v approx : f32[2, 32] @pairs\n"
    "%w = fma %x, %s, %f : bf16[2, 32] @pairs\n"
    "%two = constant is 2 : f32\n"
    "%d = mul %w, %two : f32[2, 32] @pairs\n"
    "%l = relabel %z : f32[32] @lanes\n"
    "%k = neg %l : f32[32] @lanes\n"
    "%g = neg %f : f32\n"
    "%a = declare : f32[32] @lanes\n"
    "%b = declare %z : f32[32] @lanes\n"
    "%h = cast %w : f32[2, 32] @pairs\n"
    "%c = declare %h : f32[2, 32] @pairs\n"
    "assign %a, %b, %c, %b, %a, %c\n"
    "comment text \"end\"\n";

TEST(ScheduleText, ElementwiseOperationsHaveAVariableForEachRegister) {
    EXPECT_EQ(statements(kElementwise),
              "    const int at0 = lane;\n"
              "    const f32 f = ops::cast<f32>(program0);\n"
              "    const f32 z = ops::cast<f32>(at0);\n"
              // Registers with the same operands share a variable.
              "    const f32 s_0 = ops::exp2_approx(z);\n"
              "    const f32 w_0 = rounded(bf16{}, ops::fma(p, s_0, f));\n"
              "    const f32 w_1 = rounded(bf16{}, ops::fma(q, s_0, f));\n"
              "    const f32 d_0 = w_0 * 2.0f;\n"
              "    const f32 d_1 = w_1 * 2.0f;\n"
              "    const f32 k = -z;\n"
              "    const f32 g = -f;\n"
              "    f32 a;\n"
              "    f32 b = z;\n"
              "    f32 c_0 = w_0;\n"
              "    f32 c_1 = w_1;\n"
              // Each is read before it is assigned.
              "    const f32 y0 = b;\n"
              "    const f32 y1 = a;\n"
              "    a = y0;\n"
              "    b = y1;\n"
              "    // end\n");
}

TEST(ScheduleText, ParametersThatAreScalarsAreVariables) {
    const ir::Function function = ir::parse(R"(
func @scale(%x: ref<bf16[64]>, %by: f32, %start: i32) {
  %tile = load %x[%start : 64] : bf16[64]
  %wide = cast %tile : f32[64]
  %all = broadcast %by : f32[64]
  %product = mul %wide, %all : f32[64]
  %half = mul %by, %by : f32
  %halves = broadcast %half : f32[64]
  %sum = add %product, %halves : f32[64]
  %narrow = cast %sum : bf16[64]
  store %x[%start : 64], %narrow
  yield
}
)");
    const std::string text = generate(cuda::prepare(function), target_of("sm_80")).source;
    EXPECT_THAT(text, HasSubstr("const u64 bits_r1_by, const u64 bits_r2_start"));
    EXPECT_THAT(text, HasSubstr("    const f32 v1 = ops::cast<f32>(__longlong_as_double("
                                "bits_r1_by));\n    const i32 v2 = ops::cast<i32>("
                                "bits_r2_start);\n"));
    EXPECT_THAT(text, HasSubstr(" * v1;\n"));
}

TEST(ScheduleText, ProgramsOfEveryPathAreReadBack) {
    for (const auto& one : testing_support::cuda_programs()) {
        SCOPED_TRACE(one.name);
        const ir::Function function = cuda::prepare(ir::parse(one.text));
        for (const Level level : {Level::split, Level::placed, Level::synchronised}) {
            const Program program = scheduled_text(function, target_of("sm_80"), level);
            EXPECT_EQ(program.level, level);
            const std::string text = print(program);
            EXPECT_EQ(print(parse(text)), text);
            if (level < Level::synchronised) continue;
            EXPECT_THAT(generate(function, target_of("sm_80")).source,
                        HasSubstr(print_statements(parse(text))));
        }
    }
}

TEST(ScheduleText, OtherKernelsThanThoseOfWgmmaAreProgramsOfText) {
    const ir::Function function = kernel_of(kMatmul);
    Target target = target_of("sm_80");
    EXPECT_THAT(print(schedule_any(function, target)), HasSubstr("operation of @dot"));
    EXPECT_THAT(print(schedule_any(function, dense_target(function))), HasSubstr("wgmma_commit"));
    EXPECT_THAT([&] { schedule_any(function, target, Level::staged); },
                tilewright::testing::throws("expected a level of split, placed, synchronised for "
                                            "kernels without wgmma but got `staged`: it is not for "
                                            "sm_90a"));
}

// ---- Rules.

TEST(ScheduleText, RulesOfTilesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(kTile);
    place_shared(program);
    insert_barriers(program);
    const Breach breaches[] = {
        {"V19", Level::synchronised, "  barrier\n", ""},
        {"V22", Level::split, "p; q; r; s", "p; q; r"},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : f32[32] @l3"},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : f32[32]"},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : i32[32] @l2"},
        {"V23", Level::split, "extents [32] vector", "extents [65] vector"},
        {"V23", Level::split, "extents [32] vector", "extents [4, 8] vector"},
        {"V23", Level::split, "extents [32] vector", "pitch 32 extents [32] vector"},
        {"V23", Level::split, "extents [32] vector", "pitch 65 vector"},
        {"V23", Level::split, "vector 4", "vector 8"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        text.insert(text.find("  buffer"),
                    "  layout @l3 shape [32] reg [] lane [1, 2, 4, 0, 0] warp [8, 16]\n");
        apply(breach, text);
    };
    expect_all_broken(
        breaches, [&](Level) { return program; }, change);
}

TEST(ScheduleText, RulesOfValuesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(kElementwise);
    const Breach breaches[] = {
        {"V1", Level::split, "fma %x, %s", "fma %x, %z"},
        {"V1", Level::split, "neg %f", "neg %x"},
        {"V22", Level::split, "p; q", "p"},
        {"V22", Level::split, "relabel %z : f32[32] @l1\n  %k = neg %l : f32[32] @l1",
         "relabel %z : f32[32] @l3\n  %k = neg %l : f32[32] @l3"},
        {"V24", Level::split, "expand_dims %z axis 0", "expand_dims %z axis 1"},
        {"V24", Level::split, "broadcast %u", "broadcast %z"},
        {"V25", Level::split, "declare %h", "declare %z"},
        {"V25", Level::split, "assign %a, %b, %c, %b, %a", "assign %a, %b, %c, %b, %x"},
        {"V25", Level::split, "assign %a", "assign %z"},
        {"V25", Level::split, "assign %a, %b, %c", "assign %b, %c"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        text.insert(text.find("  warps"),
                    "  layout @l3 shape [32] reg [] lane [1, 2, 4, 0, 0] warp [8, 16]\n");
        apply(breach, text);
    };
    expect_all_broken(
        breaches, [&](Level) { return program; }, change);
}

TEST(ScheduleText, RulesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(std::string(kUseA) +
                                   "access writes @b\n raw text \"b\"\n access copies @b\n"
                                   "access reads @a reads @b\n raw text \"r\"\n");
    place_shared(program);
    insert_barriers(program);
    const Breach breaches[] = {
        {"V12", Level::placed, "slots 1 at 256", "slots 1 at 128"},
        {"V12", Level::placed, "slots 1 at 256", "slots 1 at 384"},
        {"V12", Level::placed, "slots 1 at 256", "slots 1 at -1"},
        {"V19", Level::synchronised, "  barrier\n", ""},
        {"V19", Level::synchronised, "  wait_copies pending 0\n", ""},
        {"V19", Level::synchronised, "  wait_copies", "  settle_copies"},
    };
    expect_all_broken(
        breaches, [&](Level) { return program; }, apply);
}

}  // namespace
}  // namespace tilewright::cuda::schedule
