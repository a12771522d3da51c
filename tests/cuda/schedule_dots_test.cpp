// Products in programs without roles of the scheduled form: their text and their rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A program of one warp at level `split`, with tiles in registers.
Program dots_with(const std::string& body) {
    return program_without_roles(R"(  buffer @a dtype @u8 rows 1 columns 512 slots 1 at -1
  buffer @b dtype @u8 rows 1 columns 1024 slots 1 at -1
  buffer @c dtype @u8 rows 1 columns 2048 slots 1 at -1
  warps @all first 0 count 1 registers 0
  layout @sums shape [16, 16] reg [1, 128, 8] lane [2, 4, 16, 32, 64] warp []
  layout @few shape [4, 8] reg [1] lane [2, 4, 8, 16, 0] warp []
  layout @small shape [8, 8] reg [1] lane [2, 4, 8, 16, 32] warp []
  layout @rows shape [16, 16] reg [1, 2, 4] lane [8, 16, 32, 64, 128] warp []
  layout @bytes shape [16, 32] reg [1, 2, 4, 8] lane [16, 32, 64, 128, 256] warp []
  layout @left shape [4, 16] reg [1, 8] lane [2, 4, 16, 32, 0] warp []
  layout @matrix shape [8, 4] reg [] lane [1, 2, 4, 8, 16] warp []
  operation of @dot
  %x = declare : f32[16, 16] @rows
  %p = declare : f32[16, 16] @sums
  %i = declare : i8[16, 32] @bytes
  %d = declare : f64[8, 4] @matrix
  %s = declare zero : f32[16, 16] @sums
  %t = declare zero : i32[16, 16] @sums
  %f = declare zero : f32[4, 8] @few
  %h = declare zero : f16[16, 16] @sums
  %e = declare zero : f64[8, 8] @small
)" + body);
}

/// The text after both passes.
ThreadText text_of_dots(const std::string& body) {
    return text_after_passes(dots_with(body));
}

std::string broken_dots(const std::string& body) {
    return broken_rule(dots_with(body)).value_or("nothing");
}

const std::string kRight = "%b = write_operand %x writes @b row_bytes 32 group 32 : bf16[16, 16]\n";
const std::string kLeft = "%a = write_operand %x writes @a row_bytes 32 group 32 : bf16[16, 16]\n";
const std::string kProduct = "mma %s, %a, %b reads @b reads @a\n";

TEST(ScheduleDots, OperandsAreWrittenOnceAndReadByLdmatrix) {
    const ThreadText text = text_of_dots(kLeft + kRight + kProduct);
    EXPECT_THAT(text.statements,
                HasSubstr("    // operand into shared memory, rows of 32 bytes\n"
                          "    store_vector(reinterpret_cast<bf16*>(memory + a + swizzled<32, 32>("
                          "(at0 * 1), (at1) * 2)), x_0, x_1, x_2, x_3, x_4, x_5, x_6, x_7);\n"));
    EXPECT_THAT(text.statements,
                HasSubstr("    __syncthreads();\n"
                          "    // k 0\n"
                          "    const u32 from1 = at2 + a;\n"
                          "    u32 left0_0, left0_1, left0_2, left0_3; "
                          "ptx::ldmatrix(left0_0, left0_1, left0_2, left0_3, from1 + 0);\n"
                          "    const u32 from2 = at2 + b;\n"
                          "    ptx::multiply(Bf16{}, ptx::Blocks<1, 2>{}, ptx::Moved<true>{}, s_0, "
                          "s_1, s_2, s_3, s_4, s_5, s_6, s_7, left0_0, left0_1, left0_2, left0_3, "
                          "from2 + 0);\n"));
    EXPECT_THAT(text.functions, HasSubstr("multiply(Bf16, Blocks<1, 2>, Moved<true>,"));
    // Both as the instruction does not read them: the other instruction of loads.
    const ThreadText moved =
        text_of_dots(kLeft + kRight + "mma %s, %a, %b transpose_a transpose_b reads @b reads @a\n");
    EXPECT_THAT(moved.statements, HasSubstr("ptx::ldmatrix_transposed(left0_0"));
    EXPECT_THAT(moved.statements, HasSubstr("ptx::Moved<false>{}"));
    EXPECT_THAT(moved.functions, HasSubstr("multiply(Bf16, Blocks<1, 2>, Moved<false>,"));
}

TEST(ScheduleDots, StepsOfAProductAreOneStatement) {
    const std::string operands =
        "%a = shared_tile uses @b row_bytes 64 group 64 : bf16[16, 32]\n"
        "%b = shared_tile uses @c row_bytes 32 group 32 : bf16[32, 16]\n"
        "mma %s, %a, %b reads @c reads @b\n";
    const ThreadText text = text_of_dots(operands);
    EXPECT_THAT(text.statements,
                HasSubstr("ptx::multiply(Bf16{}, ptx::Blocks<1, 2>{}, ptx::Moved<true>{}, "
                          "ptx::Loads<2, false>{}, s_0, s_1, s_2, s_3, s_4, s_5, s_6, s_7, "
                          "from0 + 0, (from0 ^ 32) + 0, from1 + 0, from1 + 512);\n"));
    EXPECT_THAT(text.functions,
                HasSubstr("multiply(Bf16, Blocks<1, 2>, Moved<true>, Loads<2, false>,"));
}

TEST(ScheduleDots, LeftOperandsMayBeInRegisters) {
    const ThreadText text = text_of_dots(kRight + "mma %s, %p, %b reads @b\n");
    EXPECT_THAT(text.statements,
                HasSubstr("    const u32 left0_0 = ptx::pack(Bf16{}, p_0, p_1);\n"
                          "    const u32 left0_1 = ptx::pack(Bf16{}, p_2, p_3);\n"
                          "    const u32 left0_2 = ptx::pack(Bf16{}, p_4, p_5);\n"
                          "    const u32 left0_3 = ptx::pack(Bf16{}, p_6, p_7);\n"));
    // What a loop does not change is loaded before it.
    const ThreadText loaded = text_of_dots(
        kLeft + kRight + "%w = read_fragments %a reads @a : bf16[16, 16] @sums packed\n" +
        "%one = constant is 1 : i64\nscope %one, %one {\nmma %s, %w, %b reads @b\n}\n");
    EXPECT_THAT(loaded.statements,
                HasSubstr("u32 w_0, w_1, w_2, w_3; ptx::ldmatrix(w_0, w_1, w_2, w_3, from0 + 0);\n"
                          "    if (1ll < 1ll) {\n        // k 0\n"));
    EXPECT_THAT(loaded.statements, HasSubstr("s_7, w_0, w_1, w_2, w_3, from1 + 0);"));
}

TEST(ScheduleDots, ATileLiesInASlotOfItsBuffer) {
    const ThreadText text =
        text_of_dots(kLeft +
                     "%n = constant is 1 : i32\n"
                     "%k = shared_tile %n uses @b row_bytes 32 group 32 : bf16[16, 16]\n"
                     "mma %s, %a, %k reads @b reads @a\n");
    EXPECT_THAT(text.statements, HasSubstr("    const u32 k = b + 1 * 512u;\n"));
    EXPECT_THAT(text.statements, HasSubstr("    const u32 from2 = at2 + k;\n"));
}

TEST(ScheduleDots, RowsThatDoNotExistHaveSumsOfTheirOwn) {
    const ThreadText text = text_of_dots(
        "%a = shared_tile uses @a row_bytes 32 group 32 : bf16[4, 16]\n"
        "%b = shared_tile uses @b row_bytes 16 group 16 : bf16[16, 8]\n"
        "mma %f, %a, %b reads @b reads @a\n");
    EXPECT_THAT(text.statements,
                HasSubstr("    { f32 unused2 = 0, unused3 = 0; ptx::mma_m16n8k16(Bf16{}, f_0, f_1, "
                          "unused2, unused3, left0_0, left0_1, left0_2, left0_3, right3_0, "
                          "right3_1); }\n"));
}

TEST(ScheduleDots, OtherTypesAreReadWordByWord) {
    const ThreadText bytes = text_of_dots(
        "%a = write_operand %i writes @a row_bytes 32 group 32 : i8[16, 32]\n"
        "%b = write_operand %i writes @b row_bytes 32 group 32 : i8[16, 32]\n"
        "%u = shared_tile uses @c row_bytes 16 group 16 : u8[32, 16]\n"
        "mma %t, %a, %b transpose_b reads @b reads @a\n"
        "mma %t, %a, %u reads @c reads @a\n");
    EXPECT_THAT(bytes.statements, HasSubstr("ptx::ldmatrix(left0_0"));
    EXPECT_THAT(bytes.statements, HasSubstr("const u32 right2_1 = shared_element<u32>(memory, b + "
                                            "swizzled<32, 32>(at3, (at4 + 16)));\n"));
    EXPECT_THAT(bytes.statements,
                HasSubstr("ptx::mma_m16n8k32(S8{}, S8{}, t_0, t_1, t_2, t_3, left0_0"));
    // Bytes are not transposed by ldmatrix.
    EXPECT_THAT(bytes.statements, HasSubstr("= shared_bytes(memory, c + swizzled<16, 16>("));
    EXPECT_THAT(bytes.statements, HasSubstr("ptx::mma_m16n8k32(S8{}, U8{}, "));
    const ThreadText tf32 = text_of_dots(
        "%a = write_operand %x writes @b row_bytes 64 group 64 : f32[16, 16]\n"
        "mma %s, %a, %a reads @b\n");
    EXPECT_THAT(tf32.statements, HasSubstr("ptx::to_tf32(shared_element<f32>(memory, b + "));
    EXPECT_THAT(tf32.statements, HasSubstr("    // k 8\n"));
    EXPECT_THAT(tf32.statements, HasSubstr("ptx::mma_m16n8k8(Tf32{}, s_0, s_1, s_2, s_3, left"));
    const ThreadText doubles = text_of_dots(
        "%a = write_operand %d writes @b row_bytes 32 group 32 : f64[8, 4]\n"
        "mma %e, %a, %a transpose_b reads @b\n");
    EXPECT_THAT(doubles.statements, HasSubstr("ptx::mma_m8n8k4(e_0, e_1, left0, right1);"));
}

TEST(ScheduleDots, MultiplyAddsReadElementByElement) {
    const ThreadText text = text_of_dots(
        "%a = write_operand %x writes @b row_bytes 64 group 16 : f32[16, 16]\n"
        "multiply_add %s, %a, %a transpose_b reads @b\n");
    EXPECT_THAT(text.statements,
                HasSubstr("    #pragma unroll 4\n"
                          "    for (int k = 0; k < 16; ++k) {\n"
                          "        const f32 left0 = shared_element<f32>(memory, b + "
                          "swizzled<64, 16>(at2, (k) * 4));\n"
                          "        const f32 right1 = shared_element<f32>(memory, b + "
                          "swizzled<64, 16>(at3, (k) * 4));\n"
                          "        s_0 = ops::fma(left0, right1, s_0);\n"));
    EXPECT_THAT(text.statements, Not(HasSubstr("rounded")));
    // Sums of narrow floats are rounded once.
    const ThreadText narrow = text_of_dots(kRight + "mma %h, %p, %b reads @b\n");
    EXPECT_THAT(narrow.statements, HasSubstr("    h_0 = rounded(f16{}, h_0);\n"));
}

TEST(ScheduleRules, V32WhatProductsReadOfSharedMemoryFitsItsBuffer) {
    const std::string product = kLeft + kRight + kProduct;
    EXPECT_EQ(broken_dots(product), "nothing");
    const auto with = [&](std::string_view old, std::string_view by) {
        std::string text = product;
        return broken_dots(text.replace(text.find(old), old.size(), by));
    };
    EXPECT_EQ(with("row_bytes 32", "row_bytes 48"),
              "V32: rows of 48 bytes in groups of 32 do not fit %a");
    EXPECT_EQ(with("row_bytes 32 group 32", "row_bytes 16 group 16"),
              "V32: rows of 16 bytes in groups of 16 do not fit %a");
    EXPECT_EQ(with("row_bytes 32", "row_bytes 64"), "V32: %a is larger than @a");
    EXPECT_EQ(with("bf16[16, 16]", "i8[16, 16]"), "V32: %a is not %x in shared memory");
    EXPECT_EQ(with("reads @b reads @a", "reads @b"), "V32: an operand reads @a without saying so");
    EXPECT_EQ(broken_dots(kLeft + "write_tile %a writes @b extents [16, 16]\n"),
              "V32: %a is in shared memory, and is read as if in registers");
    EXPECT_EQ(broken_dots("%k = shared_tile uses @a row_bytes 16 group 16 : bf16[8]\n"),
              "V32: %k is no matrix in shared memory");
}

TEST(ScheduleRules, V33OperandsOfProductsFitTheirSums) {
    EXPECT_EQ(broken_dots(kLeft + kRight +
                          "%z = constant is 0 : f32[16, 16] @sums\n"
                          "mma %z, %a, %b reads @a reads @b\n"),
              "V33: %z is not declared");
    EXPECT_EQ(broken_dots(kLeft + "mma %s, %a, %p reads @a\n"), "V33: %p is not in shared memory");
    EXPECT_EQ(broken_dots(kRight + "multiply_add %s, %p, %b reads @b\n"),
              "V33: %p is not in shared memory");
    EXPECT_EQ(broken_dots("%b = shared_tile uses @b row_bytes 32 group 32 : bf16[32, 16]\n"
                          "mma %s, %p, %b reads @b\n"),
              "V33: the operands of %s do not fit its shape");
    EXPECT_EQ(broken_dots(kLeft + kRight + "mma %t, %a, %b reads @a reads @b\n"),
              "V33: %t is no sum of products of bf16");
    EXPECT_EQ(broken_dots(kLeft + kRight +
                          "%r = declare zero : f32[16, 16] @rows\n"
                          "mma %r, %a, %b reads @a reads @b\n"),
              "V33: %r has another layout than sums of mma.sync");
    EXPECT_EQ(broken_dots("%a = shared_tile uses @a row_bytes 32 group 32 : f16[16, 16]\n" +
                          kRight + kProduct),
              "V33: %a and %b have different types");
    EXPECT_EQ(broken_dots(kRight + "mma %s, %x, %b reads @b\n"),
              "V33: %x is not in the registers from which products read");
    EXPECT_EQ(broken_dots(kLeft + "%w = read_fragments %a reads @a : f16[16, 16] @sums packed\n"),
              "V33: %w is no operand of %a");
}

}  // namespace
}  // namespace tilewright::cuda::schedule
