// Programs without roles of the scheduled form: lifetimes and places of buffers, barriers, rules.
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
    return program_without_roles(R"(  ref @x dtype @f32 extents [64]
  buffer @a dtype @u8 rows 1 columns 256 slots 1 at -1 purpose "`scan`"
  buffer @b dtype @u8 rows 1 columns 128 slots 1 at -1
  warps @all first 0 count 4 registers 0
  layout @lanes shape [32] reg [] lane [1, 2, 4, 8, 16] warp [0, 0]
  layout @swapped shape [32] reg [] lane [2, 1, 4, 8, 16] warp [0, 0]
  layout @quads shape [32] reg [1, 2] lane [4, 8, 16, 0, 0] warp [0, 0]
  layout @warps shape [32] reg [] lane [1, 2, 4, 0, 0] warp [8, 16]
)" + body);
}

/// The statements after both passes, without the places of buffers.
std::string statements(const std::string& body) {
    std::string text = text_after_passes(program_with(body)).statements;
    while (text.starts_with("    constexpr")) text.erase(0, text.find('\n') + 1);
    return text;
}

std::int64_t shared_bytes(const std::string& body) {
    Program program = program_with(body);
    place_shared(program);
    return program.shared_bytes;
}

const std::string kScalars = "%eight = constant is 8 : i64\n%yes = constant is true : bool\n";
constexpr const char* kUseA = "operation of @one\n access writes @a\n comment text \"a\"\n";
constexpr const char* kUseB = "operation of @two\n access writes @b\n comment text \"b\"\n";

TEST(ScheduleThreads, BuffersShareAPlaceWhereTheirLifetimesDoNotMeet) {
    EXPECT_EQ(shared_bytes(std::string(kUseA) + kUseB), 256);
    // Within one operation all buffers are in use at once.
    EXPECT_EQ(shared_bytes("operation of @one\n access writes @a\n access writes @b\n"), 384);
    EXPECT_EQ(shared_bytes(std::string(kUseA) + kUseB + "operation of @three\n access uses @a\n"),
              384);
}

TEST(ScheduleThreads, ABufferFromBeforeALoopLivesUntilTheLoopEnds) {
    const std::string body = kScalars + kUseA +
                             "loop {\n leave %yes\n"
                             "operation of @for_loop\n operation of @read\n access reads @a\n" +
                             kUseB + "}\n";
    EXPECT_EQ(shared_bytes(body), 384);
    const auto lives = lifetimes(program_with(body));
    EXPECT_EQ(lives.at("a").last, lives.at("b").last);
    // In a branch nothing is repeated.
    std::string branch = body;
    branch.replace(branch.find("loop"), 4, "branch %yes");
    EXPECT_EQ(shared_bytes(branch), 256);
}

TEST(ScheduleThreads, ABarrierStandsBetweenWritesAndReadsOfOneBuffer) {
    EXPECT_EQ(statements(std::string(kUseA) + "access reads @a\n comment text \"read\"\n"
                                              "access reads @a\n comment text \"again\"\n"
                                              "access writes @a\n comment text \"write\"\n"),
              "    // a\n    __syncthreads();\n    // read\n    // again\n    __syncthreads();\n   "
              " // write\n");
    // One barrier is enough for all reads after it.
    EXPECT_EQ(
        statements("operation of @one\n access writes @a\n access writes @b\n comment text \"w\"\n"
                   "access reads @a reads @b\n comment text \"r\"\n"
                   "access reads @b\n comment text \"s\"\n"),
        "    // w\n    __syncthreads();\n    // r\n    // s\n");
}

TEST(ScheduleThreads, BuffersAtOnePlaceAreOrderedLikeOne) {
    EXPECT_EQ(statements(std::string(kUseA) + kUseB), "    // a\n    __syncthreads();\n    // b\n");
    EXPECT_EQ(statements(std::string(kUseA) + kUseB + "operation of @three\n access uses @a\n"),
              "    // a\n    // b\n");
}

TEST(ScheduleThreads, WhatLoopsAndBranchesAccessIsPendingWhereTheyBeginAndEnd) {
    EXPECT_EQ(statements(kScalars + "operation of @one\n access writes @a\n"
                                    "loop {\n leave %yes\n"
                                    "operation of @two\n access reads @a\n comment text \"r\"\n"
                                    "}\n access writes @a\n comment text \"w\"\n"),
              "    while (true) {\n        if (!(true)) break;\n        __syncthreads();\n        "
              "// r\n    }\n"
              "    __syncthreads();\n    // w\n");
    // What an iteration writes last is read by the next one.
    EXPECT_EQ(
        statements(kScalars + "loop {\n leave %yes\n"
                              "operation of @two\n access reads @a\n comment text \"r\"\n"
                              "access writes @a\n comment text \"w\"\n}\n"),
        "    while (true) {\n        if (!(true)) break;\n        __syncthreads();\n        // r\n"
        "        __syncthreads();\n        // w\n    }\n");
    // An array that one branch stores to is loaded after a barrier; one that is only loaded is not.
    const std::string branches =
        kScalars +
        "branch %yes {\n access {} @x\n comment text \"s\"\n} {\n comment text \"t\"\n}\n"
        "access loads @x\n comment text \"l\"\n";
    const auto with = [&](const char* how) {
        std::string text = branches;
        return statements(text.replace(text.find("{} @x"), 2, how));
    };
    EXPECT_THAT(with("stores"),
                HasSubstr("else {\n        // t\n    }\n    __syncthreads();\n    // l"));
    EXPECT_THAT(with("loads"), HasSubstr("else {\n        // t\n    }\n    // l"));
}

TEST(ScheduleThreads, AScopeIsPartOfTheStatementsAroundIt) {
    EXPECT_EQ(
        statements(kScalars + "operation of @one\n access writes @a\n scope %eight, %eight {\n"
                              "access reads @a\n comment text \"r\"\n}\n"),
        "    if (8ll < 8ll) {\n        __syncthreads();\n        // r\n    }\n");
}

TEST(ScheduleThreads, CopiesAreWaitedForBeforeTheyAreRead) {
    const std::string copy =
        "operation of @load\n access writes @a\n comment text \"copy\"\n access copies @a\n";
    EXPECT_EQ(
        statements(copy + "access writes @b\n comment text \"b\"\n"
                          "access reads @a\n comment text \"r\"\n"),
        "    // copy\n    // b\n    ptx::cp_async_wait<0>();\n    __syncthreads();\n    // r\n");
    EXPECT_EQ(statements(copy + "settle_copies pending 2\n comment text \"r\"\n"),
              "    // copy\n    ptx::cp_async_wait<2>();\n    // r\n");
    // Where none are under way, nothing is waited for.
    EXPECT_EQ(statements("settle_copies pending 0\n comment text \"r\"\n"), "    // r\n");
    // So are they before a barrier that orders accesses to an array.
    EXPECT_EQ(statements("access stores @x\n" + copy + "access loads @x\n comment text \"r\"\n"),
              "    // copy\n    ptx::cp_async_wait<0>();\n    __syncthreads();\n    // r\n");
}

constexpr const char* kTile =
    "operation of @reshape\n"
    "%x = declare : f32[32] @quads\n"
    "write_tile %x writes @a extents [32] vector 4\n"
    "%y = read_tile reads @a extents [32] : f32[32] @lanes\n"
    "%z = shuffle %y : f32[32] @swapped\n"
    "comment text \"use z\"\n";

TEST(ScheduleThreads, TilesGoThroughSharedMemoryAndFromLaneToLane) {
    EXPECT_EQ(
        statements(kTile),
        "    const int at0 = (lane & 7) * 4;\n"
        "    const int at1 = lane;\n"
        "    f32 x_0, x_1, x_2, x_3;\n"
        "    auto* const a_data = reinterpret_cast<f32*>(memory + a);\n"
        "    if ((lane & 24) == 0 && warp == 0) store_vector<f32>(a_data + (at0), x_0, x_1, x_2, "
        "x_3);\n"
        "    __syncthreads();\n"
        "    f32 y;\n"
        "    load_vector(a_data + (at1), y);\n"
        "    // shuffle from [32] reg [] lane [0:1 0:2 0:4 0:8 0:16] warp [- -] to [32] reg [] "
        "lane [0:2 0:1 0:4 0:8 0:16] warp [- -]\n"
        "    const int z_lane = ((lane >> 0 & 1) * 2) ^ ((lane >> 1 & 1) * 1) ^ "
        "((lane >> 2 & 1) * 4) ^ ((lane >> 3 & 1) * 8) ^ ((lane >> 4 & 1) * 16);\n"
        "    const f32 z = __shfl_sync(0xffffffffu, y, z_lane ^ 0);\n"
        "    // use z\n");
}

TEST(ScheduleThreads, TilesLieBesideEachOtherInRowsAndInSteps) {
    const std::string text = statements(
        "operation of @concatenate\n"
        "%x = declare : f32[32] @lanes\n"
        "%y = declare : f32[32] @lanes\n"
        "write_tile %x, %y writes @a extents [64] starts [0, 32]\n"
        "%z = read_tile reads @a extents [64] starts [1] steps [2] : f32[32] @lanes\n");
    EXPECT_THAT(text, HasSubstr("store_vector<f32>(a_data + (at0), x);"));
    EXPECT_THAT(text, HasSubstr("store_vector<f32>(a_data + ((at0 + 32)), y);"));
    EXPECT_THAT(text, HasSubstr("load_vector(a_data + ((at0 * 2 + 1)), z);"));
}

constexpr const char* kElementwise =
    "layout @pairs shape [2, 32] reg [32] lane [1, 2, 4, 8, 16] warp [0, 0]\n"
    "layout @row shape [1, 32] reg [] lane [1, 2, 4, 8, 16] warp [0, 0]\n"
    "operation of @mul\n"
    "%n = program_id axis 0 : i64\n"
    "%f = cast %n : f32\n"
    "%x = declare : f32[2, 32] @pairs\n"
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

TEST(ScheduleThreads, ElementwiseOperationsHaveAVariableForEachRegister) {
    EXPECT_EQ(statements(kElementwise),
              "    const int at0 = lane;\n"
              "    const f32 f = ops::cast<f32>(program0);\n"
              "    f32 x_0, x_1;\n"
              "    const f32 z = ops::cast<f32>(at0);\n"
              // Registers with the same operands share a variable.
              "    const f32 s_0 = ops::exp2_approx(z);\n"
              "    const f32 w_0 = rounded(bf16{}, ops::fma(x_0, s_0, f));\n"
              "    const f32 w_1 = rounded(bf16{}, ops::fma(x_1, s_0, f));\n"
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

constexpr const char* kReductions =
    "layout @tile shape [2, 256] reg [1, 256] lane [2, 4, 8, 16, 32] warp [64, 128]\n"
    "layout @rows shape [2] reg [1] lane [0, 0, 0, 0, 0] warp [0, 0]\n"
    "layout @row shape [128] reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]\n"
    "layout @one shape [1] reg [] lane [0, 0, 0, 0, 0] warp [0, 0]\n"
    "operation of @reduce\n"
    "%x = declare : bf16[2, 256] @tile\n"
    "%l = declare : i16[32] @lanes\n"
    "%s = declare : f32[2] @rows\n"
    "%p = reduce %x sum axis 1 parts : f32[2] @rows\n"
    "write_parts %p warps [0, 1] writes @a\n"
    "%q = join_parts %p sum warps [0, 1] reads @a : f32[2] @rows\n"
    "%n = narrow %q : bf16[2] @rows\n"
    "%m, %i = reduce %l argmax axis 0 : i16, i32\n"
    "%t = reduce %x sum axis 0 partial : f32[256] @columns\n"
    "clear %s lanes 6\n"
    "%j = join_lanes %s lanes 6 : f32[2] @rows\n"
    "operation of @scan\n"
    "%y = declare : f16[128] @row\n"
    "%z = scan %y sum axis 0 reverse parts : f32[128] @row\n"
    "write_totals %z sum axis 0 reverse writes @c\n"
    "%u, %o = join_totals %z sum axis 0 reverse totals reads @c : f16[128] @row, f16[1] @one\n"
    "%v = scan %l max axis 0 exclusive : i16[32] @lanes\n";

/// A recurrence over several warps, and one in a warp.
const std::string kCombinations =
    "operation of @associative_scan\n"
    "%y = declare : f16[128] @row\n"
    "%k = declare : i64[128] @row\n"
    "%l = declare : i16[32] @lanes\n"
    "%two = constant is 2 : i16\n"
    "%f, %g = associative_scan %y, %k axis 0 reverse parts : f16[128] @row, i64[128] @row "
    "{ (%fa: f16, %ga: i64, %fb: f16, %gb: i64)\n"
    "%fp = mul %fa, %fb : f16\n"
    "%gp = add %ga, %gb : i64\n"
    "yield %fp, %gp\n"
    "}\n"
    "write_totals %f, %g axis 0 reverse combine writes @c writes @d\n"
    "%u, %w = join_totals %f, %g axis 0 reverse combine reads @c reads @d : "
    "f16[128] @row, i64[128] @row\n"
    "%v, %o = associative_scan %l axis 0 totals : i16[32] @lanes, i16[1] @one "
    "{ (%va: i16, %vb: i16)\n"
    "%vp = mul %va, %two : i16\n"
    "%vq = sub %vb, %vp : i16\n"
    "yield %vq\n"
    "}\n";

Program program_with_combinations() {
    std::string body = kCombinations;
    body.insert(0,
                "layout @row shape [128] reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]\n"
                "layout @one shape [1] reg [] lane [0, 0, 0, 0, 0] warp [0, 0]\n"
                "buffer @c dtype @u8 rows 1 columns 1024 slots 1 at -1\n"
                "buffer @d dtype @u8 rows 1 columns 1024 slots 1 at -1\n");
    return program_with(body);
}

/// With a buffer for the totals of 128 threads.
Program program_with_reductions() {
    std::string body = kReductions;
    body.insert(body.find("operation"),
                "layout @columns shape [256] reg [1] lane [2, 4, 8, 16, 32] warp [64, 128]\n"
                "buffer @c dtype @u8 rows 1 columns 1024 slots 1 at -1\n");
    return program_with(body);
}

TEST(ScheduleThreads, ReductionsGoFromRegistersToLanesToWarps) {
    const std::string text = text_after_passes(program_with_reductions()).statements;
    EXPECT_THAT(text, HasSubstr("    const f32 pt0_0_0 = x_0 + x_1;\n"
                                "    f32 p_0 = pt0_0_0;\n"
                                "    const f32 pt1_0_0 = x_2 + x_3;\n"
                                "    f32 p_1 = pt1_0_0;\n"
                                "    const f32 p_0l0 = __shfl_xor_sync(0xffffffffu, p_0, 1);\n"
                                "    p_0 = p_0 + p_0l0;\n"));
    EXPECT_THAT(
        text,
        HasSubstr("    auto* const pm = reinterpret_cast<f32*>(memory + a);\n"
                  "    if ((lane & 31) == 0) pm[((warp >> 0 & 1) * 1 + (warp >> 1 & 1) * 2) * 2 + "
                  "(0) * 2 + 0] = p_0;\n"));
    EXPECT_THAT(text, HasSubstr("    __syncthreads();\n"
                                "    p_0 = pm[(0) * 2 + 0];\n"
                                "    f32 p_0w1 = pm[2 + (0) * 2 + 0];\n"
                                "    f32 p_0w2 = pm[4 + (0) * 2 + 0];\n"
                                "    f32 p_0w3 = pm[6 + (0) * 2 + 0];\n"
                                "    p_0 = p_0 + p_0w1;\n"
                                "    p_0w2 = p_0w2 + p_0w3;\n"
                                "    p_0 = p_0 + p_0w2;\n"));
    EXPECT_THAT(text, HasSubstr("    const f32 n_0 = rounded(bf16{}, p_0);\n"));
    EXPECT_THAT(text,
                HasSubstr("    const i16 ml0 = __shfl_xor_sync(0xffffffffu, static_cast<int>(m), "
                          "1);\n"
                          "    const int ml0i = __shfl_xor_sync(0xffffffffu, i, 1);\n"
                          "    if (ops::replaces_extreme<true>(m, i, ml0, ml0i)) m = ml0, i = "
                          "ml0i;\n"));
    EXPECT_THAT(text, HasSubstr("    f32 t_0 = tt0_0_0;\n    const f32 tt1_0_0 = x_1 + x_3;\n"
                                "    f32 t_1 = tt1_0_0;\n"
                                "    if ((lane & 6) != 0) s_0 = 0.0f;\n"
                                "    if ((lane & 6) != 0) s_1 = 0.0f;\n"
                                "    s_0 += __shfl_xor_sync(0xffffffffu, s_0, 2);\n"));
}

TEST(ScheduleThreads, ScansGoFromRegistersToLanesToWarps) {
    const std::string text = text_after_passes(program_with_reductions()).statements;
    EXPECT_THAT(text, HasSubstr("    const int z_lane = 31 - (lane & 31);\n"
                                "    const int z_warp = 1 - (warp & 1);\n"
                                "    f32 z_0_carry = 0.0f;\n"
                                "    const f32 z_1 = y_1;\n"
                                "    const f32 z_0 = z_1 + y_0;\n"
                                "    f32 z_0_0_before = 0.0f;\n"
                                "    f32 z_0_0_sum = z_0;\n"));
    EXPECT_THAT(text, HasSubstr("    z_0_0_m[warp * 32 + lane] = z_0_0_total;\n"
                                "    __syncthreads();\n"
                                "    f32 z_0_0_all = 0.0f, z_0_0_warps = 0.0f;\n"
                                "    if (z_warp == 0) z_0_0_warps = z_0_0_all;\n"
                                "    z_0_0_all = z_0_0_all + z_0_0_m[((warp & 30) + 1) * 32 + "
                                "lane];\n"));
    EXPECT_THAT(text, HasSubstr("    const f32 u_1 = rounded(f16{}, z_0_0_before + z_1);\n"
                                "    const f32 u_0 = rounded(f16{}, z_0_0_before + z_0);\n"));
    EXPECT_THAT(text, HasSubstr("    z_0_carry = z_0_carry + z_0_0_all;\n"
                                "    const f32 o = rounded(f16{}, z_0_carry);\n"));
    EXPECT_THAT(text, HasSubstr("    const i16 v = v_0_0_before;\n"));
}

TEST(ScheduleThreads, ParametersThatAreScalarsAreVariables) {
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

TEST(ScheduleThreads, ProgramsOfEveryPathAreReadBack) {
    for (const auto& one : testing_support::cuda_programs()) {
        SCOPED_TRACE(one.name);
        const ir::Function function = cuda::prepare(ir::parse(one.text));
        for (const Level level : {Level::split, Level::placed, Level::synchronised}) {
            const Program program = scheduled_without_roles(function, target_of("sm_80"), level);
            EXPECT_EQ(program.level, level);
            const std::string text = print(program);
            EXPECT_EQ(print(parse(text)), text);
            if (level < Level::synchronised) continue;
            EXPECT_THAT(generate(function, target_of("sm_80")).source,
                        HasSubstr(print_threads(parse(text)).statements));
        }
    }
}

TEST(ScheduleThreads, OtherKernelsThanThoseOfWgmmaAreProgramsOfText) {
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

TEST(ScheduleThreads, RulesOfTilesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(kTile);
    place_shared(program);
    insert_barriers(program);
    const Breach breaches[] = {
        {"V19", Level::synchronised, "  barrier\n", ""},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : f32[32] @l3"},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : f32[32]"},
        {"V22", Level::split, "%y : f32[32] @l2", "%y : i32[32] @l2"},
        {"V23", Level::split, "extents [32] vector", "extents [65] vector"},
        {"V23", Level::split, "extents [32] vector", "extents [4, 8] vector"},
        {"V23", Level::split, "extents [32] vector", "pitch 32 extents [32] vector"},
        {"V23", Level::split, "extents [32] vector", "pitch 65 vector"},
        {"V23", Level::split, "vector 4", "vector 8"},
        {"V23", Level::split, "extents [32] vector", "extents [32] within [0, 32] vector"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        text.insert(text.find("  buffer"),
                    "  layout @l3 shape [32] reg [] lane [1, 2, 4, 0, 0] warp [8, 16]\n");
        apply(breach, text);
    };
    expect_all_broken(
        breaches, [&](Level) { return program; }, change);
}

TEST(ScheduleThreads, FunctionsCombineRegistersThenLanesThenWarps) {
    const std::string text = text_after_passes(program_with_combinations()).statements;
    EXPECT_THAT(text, HasSubstr("    const auto f_combine = [&](const f32 fa, const i64 ga, f32& "
                                "fb, i64& gb) {\n"));
    EXPECT_THAT(text, HasSubstr("        const f32 fp = rounded(f16{}, fa * fb);\n"
                                "        const i64 gp = ops::add(ga, gb);\n"
                                "        const f32 f_y0 = fp;\n"
                                "        const i64 f_y1 = gp;\n"
                                "        fb = f_y0;\n"
                                "        gb = f_y1;\n"
                                "    };\n"));
    // In reverse the higher register of a thread comes first.
    EXPECT_THAT(text, HasSubstr("    f32 f_0 = y_0;\n"
                                "    i64 g_0 = k_0;\n"
                                "    f_combine(f_1, g_1, f_0, g_0);\n"));
    EXPECT_THAT(text, HasSubstr("        if (f_lane >= 16) f_combine(up0, up1, f_0_0_sum0, "
                                "f_0_0_sum1);\n"));
    EXPECT_THAT(text, HasSubstr("    f_0_0_m1[warp * 32 + lane] = f_0_0_total1;\n"
                                "    __syncthreads();\n"));
    EXPECT_THAT(text, HasSubstr("    if (f_warp > 0) {\n"
                                "        if (f_0_0_has) {\n"));
    EXPECT_THAT(text, HasSubstr("ops::mul(va, i16(2))"));
    EXPECT_THAT(text, HasSubstr("    i16 v_0_carry0 = v_0_0_total0;\n"
                                "    const i16 o = v_0_carry0;\n"));
}

TEST(ScheduleThreads, RulesOfFunctionsOfScansAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V26", Level::split, "scan %y, %k axis 0", "scan %y, %k axis 1"},
        {"V26", Level::split, "reverse parts", "reverse"},
        {"V26", Level::split, "totals : i16[32] @l", "totals : i32[32] @l"},
        {"V26", Level::split, "i16[1] @l", "i32[1] @l"},
        {"V26", Level::split, "%l axis 0 totals : i16[32]", "%l axis 0 : i16[32]"},
        {"V26", Level::split, "%va : i16, %vb : i16", "%va : i16, %vb : i32"},
        {"V26", Level::split, "%va : i16, %vb : i16", "%va : i16, %vb : i16, %vc : i16"},
        {"V26", Level::split, "yield %vq", "yield %vq, %vp"},
        {"V26", Level::split, "yield %fp, %gp", "yield %gp, %fp"},
        {"V26", Level::split, "    yield %vq\n", ""},
        {"V26", Level::split, "%vq = sub %vb, %vp : i16\n",
         "%vq = sub %vb, %vp : i16\n comment text \"a\"\n"},
        {"V26", Level::split, "reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]",
         "reg [1] lane [4, 2, 8, 16, 32] warp [64, 0]"},
        {"V27", Level::split, "reverse combine writes", "reverse writes"},
        {"V27", Level::split, "reverse combine reads", "reverse reads"},
        {"V27", Level::split, "axis 0 reverse combine reads", "axis 0 combine reads"},
        {"V27", Level::split, "reads @c reads @d", "reads @d reads @c"},
        {"V27", Level::split, "@d dtype @u8 rows 1 columns 1024",
         "@d dtype @u8 rows 1 columns 512"},
        {"V27", Level::split, "write_totals %f, %g", "write_totals %g, %f"},
    };
    expect_all_broken(
        breaches, [&](Level) { return program_with_combinations(); }, apply);
}

TEST(ScheduleThreads, RulesOfReductionsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V26", Level::split, "reduce %x sum axis 1", "reduce %x sum axis 2"},
        {"V26", Level::split, "reduce %x sum axis 1", "reduce %x sum axis 0"},
        {"V26", Level::split, "axis 1 parts : f32[2]", "axis 1 parts : bf16[2]"},
        {"V26", Level::split, "sum axis 1 parts", "argmin axis 1 parts"},
        {"V26", Level::split, "argmax axis 0 : i16, i32", "argmax axis 0 : i16, i16"},
        {"V26", Level::split, "sum axis 1 parts", "sum axis 1"},
        {"V26", Level::split, "argmax axis 0 : i16", "argmax axis 0 parts : i16"},
        {"V26", Level::split, "sum axis 0 partial", "max axis 0 partial"},
        {"V26", Level::split, "narrow %q : bf16", "narrow %q : f32"},
        {"V26", Level::split, "scan %l max axis 0", "scan %l max axis 1"},
        {"V26", Level::split, "exclusive : i16[32] @l", "exclusive : i32[32] @l"},
        {"V26", Level::split, "exclusive : i16[32]", "exclusive parts : i16[32]"},
        {"V26", Level::split, "reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]",
         "reg [2] lane [1, 4, 8, 16, 32] warp [64, 0]"},
        {"V26", Level::split, "reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]",
         "reg [1] lane [4, 2, 8, 16, 32] warp [64, 0]"},
        {"V26", Level::split, "reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]",
         "reg [1] lane [2, 4, 8, 16, 32] warp [0, 64]"},
        {"V26", Level::split, "reg [1] lane [2, 4, 8, 16, 32] warp [64, 0]",
         "reg [3] lane [1, 2, 4, 8, 16] warp [32, 0]"},
        {"V27", Level::split, "join_totals %z sum axis 0 reverse totals reads",
         "join_totals %z sum axis 0 reverse exclusive totals reads"},
        {"V27", Level::split, "f16[1] @l", "f32[1] @l"},
        {"V27", Level::split, "f16[1] @l5", "f16[128] @l4"},
        {"V27", Level::split, "narrow %q", "narrow %p"},
        {"V27", Level::split, "reads @a : f32[2]", "reads @b : f32[2]"},
        {"V27", Level::split, "  write_parts %p warps [0, 1] writes @a\n", ""},
        {"V27", Level::split, "  write_totals %z sum axis 0 reverse writes @c\n", ""},
        {"V27", Level::split, "write_parts %p", "write_parts %s"},
        {"V27", Level::split, "write_totals %z", "write_totals %p"},
        {"V27", Level::split, "write_parts %p warps [0, 1]", "write_parts %p warps [0]"},
        {"V27", Level::split, "sum warps [0, 1] reads", "max warps [0, 1] reads"},
        {"V27", Level::split, "totals %z sum axis 0 reverse totals", "totals %z sum axis 0 totals"},
        {"V27", Level::split, "columns 1024", "columns 512"},
        {"V27", Level::split, "columns 256", "columns 24"},
        {"V27", Level::split, "reads @c : f16[128]", "reads @c : f64[128]"},
    };
    expect_all_broken(
        breaches, [&](Level) { return program_with_reductions(); }, apply);
}

TEST(ScheduleThreads, RulesOfValuesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(kElementwise);
    const Breach breaches[] = {
        {"V1", Level::split, "fma %x, %s", "fma %x, %z"},
        {"V1", Level::split, "neg %f", "neg %x"},
        {"V22", Level::split, "relabel %z : f32[32] @l1\n  %k = neg %l : f32[32] @l1",
         "relabel %z : f32[32] @l3\n  %k = neg %l : f32[32] @l3"},
        {"V22", Level::split, "%a = declare : f32[32]", "%a = declare : f32[16]"},
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

TEST(ScheduleThreads, RulesAreCheckedInProgramsThatBreakThem) {
    Program program = program_with(std::string(kUseA) +
                                   "access writes @b\n comment text \"b\"\n access copies @b\n"
                                   "access reads @a reads @b\n comment text \"r\"\n");
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
