// Accesses to arrays in programs without roles of the scheduled form: their text and their rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;

/// A program at level `split` with arrays and layouts.
Program program_with(const std::string& body) {
    return program_without_roles(R"(  ref @x dtype @f32 extents [-1, 64] vectors dense
  ref @y dtype @f32 extents [40, 30]
  ref @s dtype @f32 extents [64] vectors dense scratch
  ref @z dtype @f32 extents [64, -1] vectors
  scalar @yes %yes : bool
  buffer @a dtype @u8 rows 1 columns 256 slots 1 at -1
  buffer @c dtype @u8 rows 1 columns 4096 slots 1 at -1
  warps @all first 0 count 4 registers 0
  layout @rows shape [16, 32] reg [1, 2] lane [4, 8, 16, 32, 64] warp [128, 256]
  layout @column shape [16] reg [] lane [0, 0, 0, 1, 2] warp [4, 8]
  layout @narrow shape [16, 1] reg [] lane [0, 0, 0, 1, 2] warp [4, 8]
  layout @lanes shape [32] reg [] lane [1, 2, 4, 8, 16] warp [0, 0]
  operation of @one
  %n = program_id axis 0 : i64
  %i = cast %n : i32
  %zero = constant is 0 : i64
  %one = constant is 1 : f32
)" + body);
}

/// The statements after both passes, without the places of buffers and threads.
std::string statements(const std::string& body) {
    std::string text = text_after_passes(program_with(body)).statements;
    const auto drop = [&](const char* start) {
        while (text.starts_with(start)) text.erase(0, text.find('\n') + 1);
    };
    drop("    constexpr");
    drop("    const int at");
    drop("    const bool yes =");
    drop("    const i32 i =");
    return text;
}

TEST(ScheduleArrays, TilesAreLoadedInWordsByNeighboursOrOneByOne) {
    EXPECT_EQ(statements("%w = load %n, %zero of @x index [16, 32] vector 4 words "
                         ": f32[16, 32] @rows\n"
                         "keep_words %w\n"
                         "%v = neg %w : f32[16, 32] @rows\n"),
              "    auto* const p0 = x.data + (program0) * 64ll + at0 * 64ll + 0ll + at1;\n"
              "    uint4 w = {};\n"
              "    load_raw(p0, w);\n"
              "    ptx::keep_bits(w);\n"
              "    const f32 v_0 = -unpacked<f32, 0>(w);\n"
              "    const f32 v_1 = -unpacked<f32, 1>(w);\n"
              "    const f32 v_2 = -unpacked<f32, 2>(w);\n"
              "    const f32 v_3 = -unpacked<f32, 3>(w);\n");
}

TEST(ScheduleArrays, WhatLiesOutsideOfBoundsAndMaskReadsOther) {
    const std::string text = statements(
        "%v = load %i, %zero, %yes, %one of @y index [16, 32] bounds [1, 2] masked other "
        ": f32[16, 32] @rows\n");
    EXPECT_THAT(text,
                HasSubstr("    const int p0_n0 = count_inside(static_cast<i64>(i), 40ll, 16);\n"
                          "    const Window p0_w1 = window(0ll, 30ll, 32);\n"
                          "    const i64 p0_1_1 = 1 * y.stride[1];\n"));
    EXPECT_THAT(text, HasSubstr("    f32 v_0 = 1.0f;\n"
                                "    if (at0 < p0_n0 && p0_w1.contains(at1) && yes) "
                                "load_vector(p0, v_0);\n"
                                "    f32 v_1 = 1.0f;\n"
                                "    if (at0 < p0_n0 && p0_w1.contains((at1 + 1)) && yes) "
                                "load_vector(p0 + p0_1_1, v_1);\n"));
}

TEST(ScheduleArrays, AnArrayMayEndBetweenNeighbours) {
    const std::string text = statements(
        "%v = load %n, %zero of @z index [16, 32] bounds [0, 1] vector 4 : f32[16, 32] @rows\n"
        "store %n, %zero, %v of @z index [16, 32] bounds [0, 1] vector 4\n");
    EXPECT_THAT(text, HasSubstr("    const Window p0_w1 = window(0ll, z.extent[1], 32);\n"));
    EXPECT_THAT(text, HasSubstr("    f32 v_0, v_1, v_2, v_3;\n"
                                "    load_vector_part(p0, true ? p0_w1.left(at1) : 0, 0.0f, v_0, "
                                "v_1, v_2, v_3);\n"));
    EXPECT_THAT(text, HasSubstr("    if (true) store_vector_part(p1, p1_w1.left(at1), v_0, v_1, "
                                "v_2, v_3);\n"));
}

TEST(ScheduleArrays, SlicesHaveStepsAndIndexTilesGather) {
    EXPECT_THAT(statements("%v = load %n, %zero of @y index [16, 32] steps [1, 2] "
                           ": f32[16, 32] @rows\n"),
                HasSubstr(" + at1 * (2ll * y.stride[1]);\n"));
    EXPECT_THAT(statements("%c = declare : i32[16] @column\n"
                           "%v = load %c, %zero of @x index [-1, 32] bounds [2, 0] vector 2 "
                           ": f32[16, 32] @rows\n"),
                HasSubstr("    f32 v_2 = 0.0f, v_3 = 0.0f;\n"
                          "    if (static_cast<u64>(static_cast<i64>(c)) < x.extent[0]) "
                          "load_vector(p0 + (static_cast<i64>(c)) * 64ll + 2, v_2, v_3);\n"));
}

TEST(ScheduleArrays, LoadsOfALaterIterationGoToVariables) {
    EXPECT_EQ(statements("%d = declare zero words : f32[16, 32] @rows\n"
                         "load %n, %zero, %d of @x index [16, 32] bounds [1, 0] vector 4 into\n"
                         "%e = copy %d : f32[16, 32] @rows\n"
                         "%f = declare zero : f32\n"
                         "load %n, %zero, %f of @x index [0, 0] into\n"),
              "    uint4 d = {};\n"
              "    const int p0_n0 = count_inside(program0, x.extent[0], 16);\n"
              "    auto* const p0 = x.data + (program0) * 64ll + at0 * 64ll + 0ll + at1;\n"
              "    d = {};\n"
              "    if (at0 < p0_n0) load_raw(p0, d);\n"
              "    const uint4 e = d;\n"
              "    f32 f = {};\n"
              "    auto* const p1 = x.data + (program0) * 64ll + 0ll;\n"
              "    load_vector(p1 + ptx::lane_zero(), f);\n");
}

constexpr const char* kScatter =
    "%l = declare : f32[32] @lanes\n"
    "%k = declare : i32[32] @lanes\n"
    "%o = atomic_add %zero, %l of @s index [32] : f32[32] @lanes\n"
    "%t = targets %k of @s index [-1] bounds [2] writes @a : u64[32] @lanes\n"
    "%w = last_writers %t reads @a : bool[32] @lanes\n"
    "store_targets %t, %w, %l\n";

TEST(ScheduleArrays, OwnersChangeArraysAndLastWritersStore) {
    EXPECT_EQ(
        statements(kScatter),
        "    f32 l;\n"
        "    i32 k;\n"
        "    auto* const p0 = s_data + 0ll + at0;\n"
        "    f32 o = {};\n"
        "    if (warp == 0) {\n"
        "        o = atomic_add(p0, l);\n"
        "    }\n"
        "    auto* const p1 = s_data;\n"
        "    auto* const a_data = reinterpret_cast<u64*>(memory + a);\n"
        "    if (warp == 0) a_data[(0) * 32 + at0] = (static_cast<u64>(static_cast<i64>(k)) < "
        "64ll) ? reinterpret_cast<u64>(p1 + static_cast<i64>(k)) : 0;\n"
        "    __syncthreads();\n"
        "    bool w = warp == 0 && static_cast<u64>(static_cast<i64>(k)) < 64ll;\n"
        "    if (w) for (int i = ((0) * 32 + at0) + 1; i < 32 && w; ++i) w = a_data[i] != "
        "a_data[((0) * 32 + at0)];\n"
        "    if (warp == 0 && w) store_vector(p1 + static_cast<i64>(k), l);\n");
}

TEST(ScheduleArrays, ThreadsCopyPiecesOfRows) {
    const std::string copy = "access uses @c\ncopy_tile %n, %zero of @x index [16, 32] ";
    EXPECT_EQ(statements(copy + "bounds [1, 0] row_bytes 128 group 128 to @c\n"),
              "    {\n"
              "        auto* const from = x.data + (program0) * 64ll + 0ll;\n"
              "        const int row = threadIdx.x / 8, piece = threadIdx.x % 8;\n"
              "        const u32 to = memory_address + c + swizzled<128, 128>(row, piece * 16);\n"
              "        auto* const rows_from = from + piece * 4 + row * 64ll;\n"
              "        const int rows = count_inside(program0, x.extent[0], 16);\n"
              "        ptx::cp_async_16(to + 0, rows_from + 0 * 64ll, row < rows - 0 ? 16 : 0);\n"
              "    }\n");
    // Rows that may lie before the array are tested one by one.
    std::string text = copy + "bounds [2, 0] row_bytes 128 group 128 to @c slotted\n";
    text.replace(text.find("%zero of"), 5, "%zero, %slot");
    EXPECT_EQ(statements("%slot = constant is 1 : i32\n" + text),
              "    {\n"
              "        auto* const from = x.data + (program0) * 64ll + 0ll;\n"
              "        const Window w0 = window(program0, x.extent[0], 16);\n"
              "        #pragma unroll\n"
              "        for (int i = 0; i < 1; ++i) {\n"
              "            const int at = threadIdx.x + i * 128;\n"
              "            const int row = at / 8, piece = at % 8;\n"
              "            ptx::cp_async_16(memory_address + c + 1 * 2048u + swizzled<128, "
              "128>(row, piece * 16), from + piece * 4 + row * 64ll, w0.contains(row) ? 16 : 0);\n"
              "        }\n"
              "    }\n");
}

TEST(ScheduleArrays, RulesOfAccessesAreCheckedInProgramsThatBreakThem) {
    const Program program = program_with(
        "%w1 = load %n, %zero of @x index [16, 32] vector 4 words : f32[16, 32] @rows\n"
        "keep_words %w1\n"
        "%v = load %i, %zero, %yes, %one of @y index [16, 32] bounds [1, 2] masked other "
        ": f32[16, 32] @rows\n"
        "%c = declare : i32[16] @column\n"
        "%g = load %c, %zero of @x index [-1, 32] : f32[16, 32] @rows\n"
        "store %n, %zero, %v of @z index [16, 32] bounds [0, 1]\n"
        "%d = declare zero words : f32[16, 32] @rows\n"
        "load %n, %zero, %d of @x index [16, 32] vector 4 into\n"
        "copy_tile %n, %zero of @x index [16, 32] row_bytes 128 group 128 to @c\n"
        "%along = iota axis 1 : i32[16, 32] @rows\n"
        "%down = iota axis 0 : i32[16, 32] @rows\n"
        "%q = declare : i32[16] @column\n"
        "%r = expand_dims %q axis 1 : i32[16, 1] @narrow\n"
        "%b = broadcast %r : i32[16, 32] @rows\n"
        "%h = lt %down, %b : bool[16, 32] @rows\n"
        "%m = load %n, %zero, %h of @x index [16, 32] vector 4 masked : f32[16, 32] @rows\n" +
        std::string(kScatter));
    const Breach breaches[] = {
        {"V28", Level::split, "index [16, 32] vector 4 words", "index [0, 32] vector 4 words"},
        {"V28", Level::split, "index [16, 32] vector 4 words", "index [32] vector 4 words"},
        {"V28", Level::split, "bounds [1, 2]", "bounds [1]"},
        {"V28", Level::split, "masked other", "masked"},
        {"V28", Level::split, "%i, %zero, %yes", "%one, %zero, %yes"},
        {"V28", Level::split, "%zero, %yes, %one", "%zero, %one, %one"},
        {"V28", Level::split, "%zero, %yes, %one", "%zero, %yes, %zero"},
        {"V28", Level::split, "load %c, %zero", "load %zero, %c"},
        {"V28", Level::split, "i32[16] @l1", "i32[16] @l4"},
        {"V28", Level::split, "store %n, %zero, %v", "store %n, %zero, %c"},
        {"V28", Level::split, "copy_tile %n, %zero", "copy_tile %n, %one"},
        {"V29", Level::split, "lt %down, %b", "lt %along, %b"},
        {"V29", Level::split, "vector 4 words", "vector 8 words"},
        {"V29", Level::split, "vector 4 words", "vector 2 words"},
        {"V29", Level::split, "of @x index [16, 32] vector 4 words",
         "of @y index [16, 32] vector 4 words"},
        {"V29", Level::split, "of @x index [16, 32] vector 4 words",
         "of @z index [16, 32] bounds [0, 1] vector 4 words"},
        {"V29", Level::split, "keep_words %w1", "keep_words %n"},
        {"V29", Level::split, "%zero, %d of @x", "%zero, %v of @x"},
        {"V30", Level::split, "columns 256", "columns 128"},
        {"V30", Level::split, "reads @a", "reads @c"},
        {"V30", Level::split, "store_targets %t, %w, %l", "store_targets %t, %w, %v"},
        {"V30", Level::split, "store_targets %t, %w, %l", "store_targets %t, %k, %l"},
        {"V31", Level::split, "row_bytes 128 group 128", "row_bytes 120 group 8"},
        {"V31", Level::split, "row_bytes 128 group 128", "row_bytes 64 group 64"},
        {"V31", Level::split, "to @c", "to @a"},
        {"V31", Level::split, "of @x index [16, 32] row_bytes", "of @y index [16, 32] row_bytes"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        text.insert(text.find("  warps"),
                    "  layout @l4 shape [16] reg [] lane [1, 2, 4, 8, 0] warp [0, 0]\n");
        apply(breach, text);
    };
    expect_all_broken(
        breaches, [&](Level) { return Program(program); }, change);
}

}  // namespace
}  // namespace tilewright::cuda::schedule
