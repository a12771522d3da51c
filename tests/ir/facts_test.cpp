// Facts about values: divisors, signs and ranges, as code generation and engines ask for them.
#include "ir/passes/facts.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>

#include "ir/parse.h"
#include "ir/passes/affine.h"

namespace tilewright::ir {
namespace {

Function function_of(const std::string& body) {
    return parse("func @f(%x: ref<i64[?]>, %y: ref<i64[48]>, %n: i64) grid [?] {\n" + body +
                 "  yield\n}\n");
}

/// The value that the last store writes.
Value stored(const Function& function) {
    Value result;
    walk(function.body, [&](const Instruction& instruction) {
        if (instruction.op == Op::store) result = instruction.operands.back();
    });
    return result;
}

TEST(Facts, DivisorsComeFromConstantsExtentsAndProducts) {
    const Function function = function_of(
        "  %0 = constant 12 : i64\n  %1 = program_id axis 0 : i64\n  %2 = mul %1, %0 : i64\n"
        "  %3 = extent %y axis 0 : i64\n  %4 = add %2, %3 : i64\n  %5 = constant 0 : i64\n"
        "  store %x[%5], %4\n");
    const Facts facts(function);
    const Value sum = stored(function);
    EXPECT_EQ(facts.divisor(sum), 4);
    const Instruction* const made = facts.definition(sum);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(facts.divisor(made->operands[1]), 16);  // 48
    EXPECT_EQ(facts.divisor(function.parameters()[2]), 1);
    EXPECT_EQ(facts.users(made->operands[0]).size(), 1U);
}

TEST(Facts, PositionsAreNotNegativeWhereParametersMayBe) {
    const Function function = function_of(
        "  %0 = constant 3 : i64\n  %1 = program_id axis 0 : i64\n  %2 = mul %1, %0 : i64\n"
        "  %3 = extent %x axis 0 : i64\n  %4 = add %2, %3 : i64\n  store %x[%1], %4\n");
    const Facts facts(function);
    const Value sum = stored(function);
    EXPECT_TRUE(facts.non_negative(sum));
    EXPECT_FALSE(facts.non_negative(function.parameters()[2]));
    EXPECT_EQ(facts.range(sum).low, 0);
    EXPECT_EQ(facts.range(sum).high, 3 * ((std::int64_t{1} << 31) - 1) + (std::int64_t{1} << 40));
    EXPECT_FALSE(facts.range(function.parameters()[2]).inside(0, 1));
}

TEST(Facts, InductionVariablesLieBetweenTheBounds) {
    const Function function = function_of(
        "  %0 = constant 8 : i64\n  %1 = constant 32 : i64\n"
        "  for_loop %i = %0, %1, %0 {\n    store %x[%i], %i\n    yield\n  }\n");
    const Facts facts(function);
    const Value iv = stored(function);
    ASSERT_NE(facts.loop_of(iv), nullptr);
    EXPECT_EQ(facts.definition(iv), nullptr);
    EXPECT_EQ(facts.divisor(iv), 8);
    EXPECT_TRUE(facts.non_negative(iv));
    EXPECT_TRUE(facts.range(iv).inside(8, 32));
}

TEST(Facts, ConstantsAreSeenThroughViews) {
    const Function function = function_of(
        "  %0 = constant 7 : i64\n  %1 = broadcast %0 : i64[16]\n  %2 = constant 0 : i64\n"
        "  store %x[%2 : 16], %1\n");
    const Facts facts(function);
    EXPECT_TRUE(facts.is_constant(stored(function), 7));
    EXPECT_FALSE(facts.is_constant(stored(function), 8));
    EXPECT_FALSE(facts.is_constant(function.parameters()[2], 7));
}

TEST(LinearCombination, OpsThatAreLinearSayOfWhat) {
    const auto of = [](Op op, std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
        const auto parts = linear_combination(op, [&](std::size_t i) { return i == 0 ? a : b; });
        return parts ? std::optional(parts->factor) : std::nullopt;
    };
    using Factors = std::array<std::int64_t, 2>;
    EXPECT_EQ(of(Op::add, {}, {}), (Factors{1, 1}));
    EXPECT_EQ(of(Op::sub, {}, {}), (Factors{1, -1}));
    EXPECT_EQ(of(Op::neg, {}, {}), (Factors{-1, 0}));
    EXPECT_EQ(of(Op::cast, {}, {}), (Factors{1, 0}));
    EXPECT_EQ(of(Op::mul, {}, 6), (Factors{6, 0}));
    EXPECT_EQ(of(Op::mul, 7, {}), (Factors{0, 7}));
    EXPECT_EQ(of(Op::mul, {}, {}), std::nullopt);
    EXPECT_EQ(of(Op::div, {}, 2), std::nullopt);
}

}  // namespace
}  // namespace tilewright::ir
