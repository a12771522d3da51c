// Facts about values: divisors, signs and ranges, for code generation and engines.
#include "ir/passes/facts.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ir/parse.h"
#include "ir/passes/affine.h"
#include "ir/passes/tile_form.h"

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

/// The form of the value that the last store writes.
std::optional<TileForm> stored_form(const Function& function) {
    TileForms forms(function);
    walk(function.body, [&](const Instruction& instruction) { forms.define(instruction); });
    return forms.form(stored(function));
}

TEST(TileForms, KeepTheStepOfEachAxis) {
    const Function function = function_of(
        "  %p = program_id axis 0 : i64\n  %0 = constant 0 : i64\n"
        "  %i = iota axis 0 : i64[4, 1]\n  %j = iota axis 1 : i64[1, 8]\n"
        "  %ib = broadcast %i : i64[4, 8]\n  %jb = broadcast %j : i64[4, 8]\n"
        "  %c = constant 16 : i64[4, 8]\n  %row = mul %c, %ib : i64[4, 8]\n"
        "  %s = sub %row, %jb : i64[4, 8]\n  %b = broadcast %p : i64[4, 8]\n"
        "  %m = add %s, %b : i64[4, 8]\n  %k = add %m, %b : i64[4, 8]\n"
        "  %t = transpose %k permutation [1, 0] : i64[8, 4]\n"
        "  %r = reshape %t : i64[8, 1, 4]\n"
        "  store %x[tile %r], %r\n");
    const std::optional<TileForm> form = stored_form(function);
    ASSERT_TRUE(form);
    EXPECT_EQ(form->offset, 0);
    EXPECT_EQ(form->steps, (std::vector<std::int64_t>{-1, 0, 16}));
    ASSERT_EQ(form->terms.size(), 1U);
    EXPECT_EQ(form->terms[0].second, 2);
    EXPECT_FALSE(form->is_constant());
}

TEST(TileForms, ScalarsThatAreNotLinearAreTermsAndSuchTilesHaveNone) {
    const char* const scalar =
        "  %p = program_id axis 0 : i64\n  %q = mul %p, %p : i64\n"
        "  %c = constant 3 : i64\n  %d = sub %c, %q : i64\n  store %x[%p], %d\n";
    const std::optional<TileForm> form = stored_form(function_of(scalar));
    ASSERT_TRUE(form);
    EXPECT_EQ(form->offset, 3);
    ASSERT_EQ(form->terms.size(), 1U);
    EXPECT_EQ(form->terms[0].second, -1);
    const char* const tile =
        "  %p = program_id axis 0 : i64\n  %i = iota axis 0 : i64[8]\n"
        "  %q = mul %i, %i : i64[8]\n  store %x[tile %i], %q\n";
    EXPECT_FALSE(stored_form(function_of(tile)));
}

TEST(TileForms, TermsThatCancelAreGoneAndOverflowsHaveNoForm) {
    const char* const cancelled =
        "  %p = program_id axis 0 : i64\n  %c = constant 5 : i64\n  %a = add %p, %c : i64\n"
        "  %d = sub %a, %p : i64\n  store %x[%p], %d\n";
    const std::optional<TileForm> form = stored_form(function_of(cancelled));
    ASSERT_TRUE(form);
    EXPECT_TRUE(form->is_constant());
    EXPECT_EQ(form->offset, 5);
    const char* const large =
        "  %i = iota axis 0 : i64[8]\n  %c = constant 9223372036854775807 : i64[8]\n"
        "  %j = add %i, %i : i64[8]\n  %d = mul %j, %c : i64[8]\n  store %x[tile %i], %d\n";
    EXPECT_FALSE(stored_form(function_of(large)));
}

}  // namespace
}  // namespace tilewright::ir
