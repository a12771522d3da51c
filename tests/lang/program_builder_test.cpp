// Programs built instruction by instruction: their text, the checks, ranges of integers.
#include "tilewright/program_builder.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ir/print.h"
#include "tilewright/error.h"

namespace tilewright {
namespace {

using Index = ProgramBuilder::Index;
using Kind = ProgramBuilder::Index::Kind;
using Values = ProgramBuilder::Values;

constexpr std::int64_t kEight[] = {8};

std::string error_of(const std::function<void()>& act) {
    try {
        act();
    } catch (const UserError& error) {
        return error.what();
    }
    return "nothing";
}

TEST(ProgramBuilder, WritesWhatTheParserReads) {
    ProgramBuilder builder("scale");
    const auto x = builder.ref("x", f32, {32}), o = builder.ref("o", f32, {32}, 1);
    builder.add_grid_axis(4);
    builder.set_hints(8, 3);
    builder.set_location("kernel.py", 7);
    const auto i = builder.apply("program_id", {}, i64, {}, {});
    const Values start = {i, builder.constant_int(i64, {}, 8)};
    const auto first = builder.apply("mul", start, i64, {}, {});
    const Index slice{Kind::slice, first, 8};
    const auto loaded = builder.load(x, {&slice, 1});
    const auto init = Values{loaded};
    const auto low = builder.constant_int(i64, {}, 0), one = builder.constant_int(i64, {}, 1);
    const auto sums = builder.for_loop(low, start[1], one, init, [&](auto, const Values& carries) {
        const Values both = {carries[0], builder.constant(f32, kEight, 0.5)};
        return Values{builder.apply("add", both, f32, kEight, {})};
    });
    builder.store(o, {&slice, 1}, sums[0]);
    const std::string text = builder.text();
    EXPECT_EQ(
        ir::print(ir::parse(text)),
        R"(func @scale(%x: ref<f32[32]>, %o: ref<f32[32]> alias 1) grid [4] num_warps 8 num_stages 3 {
  %0 = constant 8 : i64
  %1 = constant 0 : i64
  %2 = constant 1 : i64
  %3 = constant 0.5 : f32[8]
  %4 = program_id axis 0 : i64
  %5 = mul %4, %0 : i64
  %6 = load %x[%5 : 8] : f32[8]
  %9 = for_loop %7 = %1, %0, %2 carry (%8 = %6) : f32[8] {
    %10 = add %8, %3 : f32[8]
    yield %10
  }
  store %o[%5 : 8], %9
  yield
}
)");
    EXPECT_NE(text.find("loc \"kernel.py\" 7"), std::string::npos) << text;
    EXPECT_EQ(text, builder.text()) << "asking twice changes the program";
}

TEST(ProgramBuilder, EqualConstantsAreOne) {
    ProgramBuilder builder("constants");
    EXPECT_EQ(builder.constant(f32, kEight, 1), builder.constant(f32, kEight, 1));
    EXPECT_NE(builder.constant(f32, kEight, 1), builder.constant(f64, kEight, 1));
    EXPECT_NE(builder.constant(f32, kEight, 1), builder.constant(f32, {}, 1));
    EXPECT_NE(builder.constant(f32, kEight, 0.0), builder.constant(f32, kEight, -0.0));
}

TEST(ProgramBuilder, RefusesWhatDoesNotFit) {
    ProgramBuilder builder("wrong");
    const auto x = builder.ref("x", f32, {8});
    const Values mixed = {builder.constant(f32, {}, 1), builder.constant(f64, {}, 1)};
    builder.set_location("kernel.py", 3);
    EXPECT_EQ(error_of([&] { builder.apply("add", mixed, f32, {}, {}); }),
              "[add] expected operand 1 of type f32 but got f64 (at kernel.py:3)");
    const Values one = {mixed[0]};
    EXPECT_EQ(error_of([&] { builder.apply("exp", one, f64, {}, {}); }),
              "[exp] expected a result of f64 but got f32");
    EXPECT_EQ(error_of([&] { builder.apply("exponential", one, f32, {}, {}); }),
              "[program] expected an operation of the tile IR but got `exponential`");
    EXPECT_EQ(error_of([&] { builder.apply("yield", one, f32, {}, {}); }),
              "[program] expected an operation of one result but got `yield`, which has a function "
              "of its own");
    EXPECT_EQ(error_of([&] { builder.store(x, {}, 99); }),
              "[program] expected a value of `wrong` but got number 99");
    EXPECT_EQ(error_of([&] { builder.atomic("atomic_cas", x, {}, one); }),
              "[atomic_cas] expected an atomic of 2 values but got 1");
}

std::string range(std::string_view op, DType in, DType out, std::vector<IntegerRange> operands) {
    const auto found = integer_range(op, in, out, operands);
    return found ? std::to_string(found->low) + ".." + std::to_string(found->high) : "any";
}

TEST(IntegerRange, FollowsOperations) {
    EXPECT_EQ(range("add", i64, i64, {{1, 2}, {10, 20}}), "11..22");
    EXPECT_EQ(range("mul", i64, i64, {{-3, 2}, {-5, 4}}), "-12..15");
    EXPECT_EQ(range("add", i32, i32, {{0, INT32_MAX}, {0, 1}}), "any");
    EXPECT_EQ(range("lt", i64, boolean, {{0, 4}, {5, 9}}), "1..1");
    EXPECT_EQ(range("lt", i64, boolean, {{0, 5}, {5, 9}}), "0..1");
    EXPECT_EQ(range("select", i64, i64, {{0, 1}, {1, 2}, {8, 9}}), "1..9");
    EXPECT_EQ(range("bitwise_not", boolean, boolean, {{0, 0}}), "1..1");
    EXPECT_EQ(range("floormod", i64, i64, {{-100, 100}, {7, 7}}), "0..6");
    EXPECT_EQ(error_of([] {
                  range("add", i64, i64, {{0, 1}});
              }),
              "[integer_range] expected 2 integers for an elementwise operation but got 1 for "
              "`add`");
}

TEST(ProgramBuilder, KnowsTheFormsAndRangesOfIntegers) {
    ProgramBuilder builder("facts");
    builder.add_grid_axis(4);
    const auto x = builder.ref("x", i64, {64});
    const auto i = builder.apply("program_id", {}, i64, {}, {});
    const auto eight = builder.constant_int(i64, {}, 8), two = builder.constant_int(i64, kEight, 2);
    const auto first = builder.apply("mul", Values{i, eight}, i64, {}, {});
    const auto lanes = builder.apply("iota", {}, i64, kEight, {});
    const auto even = builder.apply("mul", Values{lanes, two}, i64, kEight, {});
    const auto all = builder.apply("broadcast", Values{first}, i64, kEight, {});
    const auto places = builder.apply("add", Values{even, all}, i64, kEight, {});

    const auto form = builder.index_form(places);
    ASSERT_TRUE(form);
    EXPECT_EQ(form->offset, 0);
    EXPECT_EQ(form->steps, (std::vector<std::int64_t>{2}));
    ASSERT_EQ(form->terms.size(), 1U);
    EXPECT_EQ(form->terms[0].scalar, i);
    EXPECT_EQ(form->terms[0].dtype, i64);
    EXPECT_EQ(form->terms[0].factor, 8);

    const auto range = builder.range(even);
    ASSERT_TRUE(range);
    EXPECT_EQ(range->low, 0);
    EXPECT_EQ(range->high, 14);

    const Index slice{Kind::slice, builder.constant_int(i64, {}, 0), 8};
    const auto loaded = builder.load(x, {&slice, 1});
    EXPECT_FALSE(builder.index_form(loaded));
    EXPECT_FALSE(builder.range(loaded));
    EXPECT_FALSE(builder.range(builder.constant(f32, kEight, 0.5)));
    EXPECT_EQ(error_of([&] { builder.range(4096); }),
              "[program] expected a value of `facts` but got number 4096");
}

}  // namespace
}  // namespace tilewright
