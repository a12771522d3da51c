// Sorts and prints in programs without roles of the scheduled form: their text and their rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;

/// A program of one warp at level `split`, with tiles to sort.
Program sort_with(const std::string& body) {
    return program_without_roles(R"(  scalar @n %n : u16
  buffer @a dtype @u8 rows 1 columns 256 slots 1 at -1
  buffer @b dtype @u8 rows 1 columns 512 slots 1 at -1
  warps @all first 0 count 1 registers 0
  layout @line shape [24] reg [] lane [1, 2, 4, 8, 16] warp []
  layout @first shape [5] reg [] lane [1, 2, 4, 0, 0] warp []
  layout @rows shape [2, 32] reg [32] lane [1, 2, 4, 8, 16] warp []
  layout @three shape [48] reg [] lane [1, 2, 4, 8, 0] warp []
  operation of @sort
  %x = declare : f32[24] @line
  %r = declare : i16[2, 32] @rows
)" + body);
}

std::string text_of_sort(const std::string& body) {
    return text_after_passes(sort_with(body)).statements;
}

constexpr const char* kSort =
    "%w = write_lines %x axis 0 word 8 writes @a descending : f32[24]\n"
    "%s = sort_lines %w axis 0 word 8 reads @a keep 8 : f32[24]\n"
    "%y = read_lines %s axis 0 word 8 reads @a descending : f32[5] @first\n"
    "%p = read_lines %s axis 0 word 8 reads @a places descending : i32[5] @first\n";

TEST(ScheduleSort, ElementsAreSortedAsWordsInSharedMemory) {
    const std::string text = text_of_sort(kSort);
    EXPECT_THAT(text, HasSubstr("    auto* const a_data = reinterpret_cast<u64*>(memory + a);\n"
                                "    a_data[sorting::slot<u64>((0) * 32 + at0)] = at0 < 24 ? "
                                "sorting::word_of<u64, true>(x, at0) : sorting::last_word<u64>();\n"
                                "    __syncthreads();\n"
                                "    sorting::keep_first<8, 32, 32, 32>(a_data);\n"));
    // Results are in the lines of what was sorted, of which they may be the beginning.
    EXPECT_THAT(text, HasSubstr("    const f32 y = sorting::element_of<f32, true>(a_data["
                                "sorting::slot<u64>((0) * 32 + at1)]);\n"
                                "    const i32 p = sorting::place_of<u64>(a_data["
                                "sorting::slot<u64>((0) * 32 + at1)]);\n"));
}

TEST(ScheduleSort, LinesOfATileLieOneAfterTheOther) {
    const std::string text = text_of_sort(
        "%w = write_lines %r axis 0 word 4 writes @b : i16[2, 32]\n"
        "%s = sort_lines %w axis 0 word 4 reads @b : i16[2, 32]\n"
        "%y = read_lines %s axis 0 word 4 reads @b : i16[2, 32] @rows\n");
    EXPECT_THAT(text, HasSubstr("    b_data[sorting::slot<u32>(((0) * 32 + at0) * 2 + 0)] = "
                                "sorting::word_of<u32, false>(r_0, 0);\n"
                                "    b_data[sorting::slot<u32>(((0) * 32 + at0) * 2 + 1)] = "
                                "sorting::word_of<u32, false>(r_1, 1);\n"));
    EXPECT_THAT(text, HasSubstr("    sorting::sort_runs<2, 2, 64, 32>(b_data);\n"));
    EXPECT_THAT(text, HasSubstr("    const i16 y_1 = sorting::element_of<i16, false>(b_data["
                                "sorting::slot<u32>(((0) * 32 + at0) * 2 + 1)]);\n"));
}

TEST(ScheduleSort, TheEndsOfLinesAreFilledBeforeElementsAreWritten) {
    const std::string text = text_of_sort(
        "%t = declare : f32[48] @three\n"
        "%f = fill_lines axis 0 word 8 writes @b : f32[48]\n"
        "%w = write_lines %t, %f axis 0 word 8 writes @b : f32[48]\n"
        "%s = sort_lines %w axis 0 word 8 reads @b : f32[48]\n");
    EXPECT_THAT(text, HasSubstr("    auto* const b_data = reinterpret_cast<u64*>(memory + b);\n"
                                "    for (int i = threadIdx.x; i < 64; i += 32) "
                                "b_data[sorting::slot<u64>(i)] = sorting::last_word<u64>();\n"
                                "    __syncthreads();\n"
                                "    if ((lane & 16) == 0) b_data[sorting::slot<u64>((0) * 64 + "
                                "at0)] = sorting::word_of<u64, false>(t_0, at0);\n"));
    EXPECT_THAT(text, HasSubstr("    __syncthreads();\n"
                                "    sorting::sort_runs<64, 64, 64, 32>(b_data);\n"));
}

TEST(ScheduleSort, WhatSortsIncludesItsDeviceCode) {
    EXPECT_EQ(print_threads(sort_with("")).includes, "");
    EXPECT_THAT(print_threads(sort_with(kSort)).includes, HasSubstr("sort.cuh"));
}

TEST(ScheduleSort, OneThreadPrints) {
    EXPECT_THAT(text_of_sort("print text \"90% \\\"of\\\" \\\\ {}\\n\"\n"
                             "print %n\n"
                             "write_tile %x writes @a extents [24] guarded\n"
                             "print_tile reads @a dtype @f32 elements 24\n"),
                HasSubstr("    if (threadIdx.x == 0) printf(\"90%% \\\"of\\\" \\\\ {}\\n\");\n"
                          "    if (threadIdx.x == 0) printf(\"%llu\", static_cast<u64>(n));\n"
                          "    auto* const a_data = reinterpret_cast<f32*>(memory + a);\n"
                          "    if (at0 < 24) store_vector<f32>(a_data + (at0), x);\n"
                          "    __syncthreads();\n"
                          "    if (threadIdx.x == 0) printf(\"[\");\n"
                          "    if (threadIdx.x == 0) for (int i = 0; i < 24; ++i) printf(i == 0 ? "
                          "\"%g\" : \", %g\", static_cast<double>(widen(a_data[i])));\n"
                          "    if (threadIdx.x == 0) printf(\"]\");\n"));
}

TEST(ScheduleRules, V35LinesAreReadAsTheyWereWrittenAndSorted) {
    const std::string fill =
        "%t = declare : f32[48] @three\n"
        "%f = fill_lines axis 0 word 8 writes @b : f32[48]\n"
        "%v = write_lines %t, %f axis 0 word 8 writes @b : f32[48]\n"
        "%r1 = sort_lines %v axis 0 word 8 reads @b : f32[48]\n";
    const Program program = sort_with(kSort + fill);
    const Breach breaches[] = {
        {"V35", Level::split, "%x axis 0 word 8", "%x axis 1 word 8"},
        {"V35", Level::split, "%x axis 0 word 8", "%x axis 0 word 4"},
        {"V35", Level::split, "%x axis 0 word 8", "%x axis 0 word 16"},
        {"V35", Level::split, "columns 256", "columns 128"},
        {"V35", Level::split, "write_lines %x", "write_lines %r"},
        {"V35", Level::split, "write_lines %x", "write_lines %n"},
        {"V35", Level::split, "write_lines %t, %f", "write_lines %t"},
        {"V35", Level::split, "write_lines %t, %f", "write_lines %t, %w"},
        {"V35", Level::split, "writes @b : f32[48]", "writes @a : f32[48]"},
        {"V35", Level::split, "keep 8", "keep 4"},
        {"V35", Level::split, "keep 8", "keep 12"},
        {"V35", Level::split, "keep 8", "keep 32"},
        {"V35", Level::split, "sort_lines %w", "sort_lines %x"},
        {"V35", Level::split, "reads @a keep", "reads @b keep"},
        {"V35", Level::split, "read_lines %s axis 0 word 8 reads @a descending",
         "read_lines %s axis 0 word 8 reads @b descending"},
        {"V35", Level::split, "read_lines %s axis 0 word 8 reads @a descending",
         "read_lines %w axis 0 word 8 reads @a descending"},
        {"V35", Level::split, "read_lines %s axis 0 word 8 reads @a descending",
         "read_lines %s axis 0 word 8 reads @a"},
        {"V35", Level::split, "read_lines %s axis 0 word 8 reads @a descending",
         "read_lines %s axis 0 word 8 reads @a places descending"},
        {"V35", Level::split, "places descending", "descending"},
        {"V35", Level::split, "reads @a descending : f32[5] @l2",
         "reads @a descending : f32[24] @l0"},
        {"V35", Level::split, "  %r1 = sort_lines %v", "  print %v\n  %r1 = sort_lines %v"},
    };
    expect_all_broken(
        breaches, [&](Level) { return program; }, apply);
}

TEST(ScheduleRules, V36WhatIsPrintedIsATextAScalarOrATile) {
    const auto broken = [](const std::string& body) {
        return broken_rule(sort_with(body)).value_or("nothing");
    };
    EXPECT_EQ(broken("print\n"), "V36: a text or a scalar is printed");
    EXPECT_EQ(broken("print %n text \"a\"\n"), "V36: a text or a scalar is printed");
    EXPECT_EQ(broken("print %x\n"), "V36: %x is no scalar");
    EXPECT_EQ(broken("print_tile reads @a dtype @f32 elements 65\n"),
              "V36: 65 elements do not fit @a");
    EXPECT_EQ(broken("print_tile reads @a dtype @f23 elements 24\n"),
              "V36: @f23 is no element type");
}

}  // namespace
}  // namespace tilewright::cuda::schedule
