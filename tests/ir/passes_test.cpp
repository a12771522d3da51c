// Each pass on small functions: what it changes, and what it must not change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/evaluate.h"
#include "ir/parse.h"
#include "ir/passes/bounds.h"
#include "ir/passes/contract.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "ir/passes/licm.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "tests/ir/run_pass.h"
#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <typename Pass>
int count(Pass pass, std::string_view body, Op op) {
    Function f = kernel(body);
    pass(f);
    verify(f);
    int result = 0;
    walk(f.body, [&](const Instruction& i) { result += i.op == op; });
    return result;
}

void clean_fold(Function& f) {
    fold(f);
    dce(f);
}

// What is stored to y after folding: a parameter name, a literal or an op.
std::string folded(std::string_view type, const std::string& expression) {
    const std::string body = "  %v = constant 3 : " + std::string(type) + "\n  %r = " + expression +
                             " : " + std::string(type) + "\n  %s = cast %r : f64\n" +
                             "  debug_print %r text \"{}\"\n";
    Function f = kernel(body);
    clean_fold(f);
    verify(f);
    std::string result;
    walk(f.body, [&](const Instruction& i) {
        if (i.op != Op::debug_print) return;
        const Value shown = i.operands[0];
        if (std::ranges::find(f.parameters(), shown) != f.parameters().end()) {
            result = f.value_name(shown);
        }
        walk(f.body, [&](const Instruction& each) {
            if (each.results.empty() || each.results[0] != shown) return;
            result = each.op == Op::constant
                         ? print_element(f.type(shown).dtype, each.get<ConstantAttributes>().bits)
                         : std::string(name(each.op));
        });
    });
    return result;
}

TEST(Fold, EvaluatesConstants) {
    EXPECT_EQ(folded("i32", "add %v, %v"), "6");
    EXPECT_EQ(folded("f32", "exp2 %v"), "8");
    EXPECT_EQ(folded("bf16", "div %v, %v"), "1");
    EXPECT_EQ(folded("u8", "sub %v, %v"), "0");
}

TEST(Fold, FloatIdentitiesKeepNanAndSignedZeros) {
    const auto with = [](std::string literal, std::string expression) {
        const std::string body = "  %k = constant " + literal + " : f32\n  %r = " + expression +
                                 " : f32\n  debug_print %r text \"{}\"\n";
        Function f = kernel(body);
        clean_fold(f);
        return print(f);
    };
    EXPECT_THAT(with("1", "mul %a, %k"), HasSubstr("debug_print %a"));
    EXPECT_THAT(with("0", "sub %a, %k"), HasSubstr("debug_print %a"));
    EXPECT_THAT(with("-0", "add %a, %k"), HasSubstr("debug_print %a"));
    EXPECT_THAT(with("8", "div %a, %k"), HasSubstr("mul %a, %"));
    EXPECT_THAT(with("-1", "mul %k, %a"), HasSubstr("neg %a"));
    // These would change -0, NaN or the rounding.
    EXPECT_THAT(with("0", "add %a, %k"), HasSubstr("add"));
    EXPECT_THAT(with("0", "mul %a, %k"), HasSubstr("mul"));
    EXPECT_THAT(with("-0", "sub %a, %k"), HasSubstr("sub"));
    EXPECT_THAT(with("3", "div %a, %k"), HasSubstr("div"));
    EXPECT_THAT(with("0", "sub %a, %a"), HasSubstr("sub"));
}

// An op by a constant after folding: the op that is printed, and its constant.
struct FoldedOp {
    Op op = Op::yield;
    std::uint64_t bits = 0;
    bool of_parameter = false;  // not on a value computed from it
};
FoldedOp folded_op(std::string_view type, std::string_view op, std::int64_t by,
                   std::string_view value = "%x") {
    const std::string t(type);
    Function f = parse("func @f(%x: " + t + ") grid [1] {\n  %k = constant " + std::to_string(by) +
                       " : " + t + "\n  %a = abs %x : " + t + "\n  %n = neg %x : " + t +
                       "\n  %m = max %x, %k : " + t + "\n  %w = add %m, %k : " + t +
                       "\n  %l = bitwise_and %x, %k : " + t + "\n  %s = add %l, %k : " + t +
                       "\n  %r = " + std::string(op) + " " + std::string(value) + ", %k : " + t +
                       "\n  debug_print %r text \"{}\"\n  yield\n}\n");
    clean_fold(f);
    verify(f);
    std::map<Value, Instruction> made;
    FoldedOp result;
    walk(f.body, [&](const Instruction& i) {
        for (Value each : i.results) made[each] = i;
        if (i.op != Op::debug_print || !made.contains(i.operands[0])) return;
        const Instruction& shown = made[i.operands[0]];
        result.op = shown.op;
        if (shown.operands.size() < 2) return;
        result.of_parameter = shown.operands[0] == f.parameters()[0];
        result.bits = made[shown.operands[1]].get<ConstantAttributes>().bits;
    });
    return result;
}

TEST(Fold, DivisionByPowersOfTwoIsAShiftOrAMaskForEverySign) {
    constexpr DType kTypes[] = {DType::i8,  DType::u8,  DType::i16, DType::u16,
                                DType::i32, DType::u32, DType::i64, DType::u64};
    for (const DType dtype : kTypes) {
        const int bits = 8 * static_cast<int>(size_of(dtype));
        const int most = std::min(is_signed(dtype) ? bits - 2 : bits - 1, 62);
        for (const Op op : {Op::floordiv, Op::floormod, Op::div, Op::rem}) {
            for (const int power : {1, 3, most}) {
                const std::int64_t by = std::int64_t{1} << power;
                const FoldedOp found = folded_op(name(dtype), name(op), by);
                const bool quotient = op == Op::floordiv || op == Op::div;
                const bool truncates = is_signed(dtype) && (op == Op::div || op == Op::rem);
                EXPECT_EQ(found.op, truncates  ? op
                                    : quotient ? Op::shift_right
                                               : Op::bitwise_and)
                    << name(dtype) << " " << name(op);
                const std::uint64_t low = std::uint64_t{1} << (bits - 1);
                for (const std::uint64_t sample :
                     {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{8},
                      std::uint64_t{100}, ~std::uint64_t{0}, ~std::uint64_t{7}, ~std::uint64_t{8},
                      ~std::uint64_t{99}, low, low - 1, low + 1}) {
                    const std::uint64_t x = wrap_to(dtype, sample);
                    const std::uint64_t before[] = {x, static_cast<std::uint64_t>(by)};
                    const std::uint64_t after[] = {x, found.bits};
                    EXPECT_EQ(evaluate(op, dtype, dtype, before),
                              evaluate(found.op, dtype, dtype, after))
                        << name(dtype) << " " << name(op) << " of " << x << " by " << by;
                }
            }
        }
    }
}

TEST(Fold, WhatIsNotNegativeIsTruncatedByAShiftOrAMask) {
    EXPECT_EQ(folded_op("i32", "div", 8, "%m").op, Op::shift_right);  // max(x, 8)
    EXPECT_EQ(folded_op("i32", "rem", 8, "%m").op, Op::bitwise_and);
    // The absolute value of the lowest integer is itself, negative and a multiple of every 2^k.
    EXPECT_EQ(folded_op("i32", "rem", 8, "%a").op, Op::bitwise_and);
    EXPECT_EQ(folded_op("i32", "div", 8, "%a").op, Op::shift_right);
    for (const int power : {1, 8, 30}) {
        const std::uint64_t lowest = wrap_to(DType::i32, std::uint64_t{1} << 31),
                            divisor = std::uint64_t{1} << power;
        const std::uint64_t before[] = {lowest, divisor}, masked[] = {lowest, divisor - 1},
                            shifted[] = {lowest, static_cast<std::uint64_t>(power)};
        EXPECT_EQ(evaluate(Op::rem, DType::i32, DType::i32, before),
                  evaluate(Op::bitwise_and, DType::i32, DType::i32, masked));
        EXPECT_EQ(evaluate(Op::div, DType::i32, DType::i32, before),
                  evaluate(Op::shift_right, DType::i32, DType::i32, shifted));
    }
    EXPECT_EQ(folded_op("i32", "rem", 8, "%s").op, Op::bitwise_and);  // (x & 8) + 8
    EXPECT_EQ(folded_op("i32", "rem", 8, "%w").op, Op::rem);          // max(x, 8) + 8 may wrap
    EXPECT_EQ(folded_op("i32", "rem", 8, "%n").op, Op::rem);
    EXPECT_EQ(folded_op("i32", "floordiv", 6).op, Op::floordiv);
    EXPECT_EQ(folded_op("i32", "floordiv", -8).op, Op::floordiv);
    EXPECT_EQ(folded_op("i8", "floormod", -128).op, Op::floormod);
}

TEST(Fold, TheLowestBitNeedsNoSign) {
    EXPECT_EQ(folded_op("i64", "floormod", 2, "%a").op, Op::bitwise_and);
    EXPECT_EQ(folded_op("i64", "floormod", 2, "%a").bits, 1u);
    EXPECT_TRUE(folded_op("i64", "floormod", 2, "%a").of_parameter);
    EXPECT_TRUE(folded_op("i64", "floormod", 2, "%n").of_parameter);
    EXPECT_FALSE(folded_op("i64", "floormod", 4, "%a").of_parameter);
    EXPECT_EQ(folded_op("i64", "floormod", 1, "%a").op, Op::constant);
    EXPECT_EQ(folded_op("i64", "floordiv", 1).op, Op::yield);  // %x itself
}

TEST(Fold, AConditionAndItsOpposite) {
    const auto with = [](std::string expression) {
        return after(clean_fold, "  %d = bitwise_not %c : bool\n  %r = " + expression +
                                     " : bool\n  debug_print %r text \"{}\"\n");
    };
    EXPECT_THAT(with("bitwise_or %c, %d"), HasSubstr("constant true"));
    EXPECT_THAT(with("bitwise_and %d, %c"), HasSubstr("constant false"));
}

TEST(Fold, IntegerChains) {
    const std::string text = after(clean_fold,
                                   "  %b = add %n, %16 : i64\n  %c2 = sub %b, %1 : i64\n"
                                   "  %d = add %0, %c2 : i64\n  debug_print %d text \"{}\"\n");
    EXPECT_THAT(text, HasSubstr("constant 15 : i64"));
    EXPECT_THAT(text, HasSubstr("add %n, "));
    EXPECT_THAT(text, Not(HasSubstr("sub")));
}

TEST(Fold, CastsThatLoseNothing) {
    const auto cast_chain = [](std::string via, std::string to) {
        return after(clean_fold, "  %b = cast %a : " + via + "\n  %r = cast %b : " + to +
                                     "\n  debug_print %r text \"{}\"\n");
    };
    EXPECT_THAT(cast_chain("f64", "f32"), HasSubstr("debug_print %a"));
    EXPECT_THAT(cast_chain("bf16", "f32"), Not(HasSubstr("debug_print %a")));
    // i8 -> f32 -> u8 saturates where i8 -> u8 would wrap.
    const std::string text =
        after(clean_fold,
              "  %i = load %x[%0] : f32\n  %j = cast %i : i8\n  %k = cast %j : f32\n"
              "  %l = cast %k : u8\n  debug_print %l text \"{}\"\n");
    EXPECT_THAT(text, HasSubstr(": u8"));
    EXPECT_THAT(text, HasSubstr("cast %k"));
}

TEST(Fold, ResolvesControlFlow) {
    EXPECT_EQ(
        count(clean_fold,
              "  %yes = constant true : bool\n  %r = if_else %yes : f32 {\n    %e = exp %a : "
              "f32\n    yield %e\n  } else {\n    yield %a\n  }\n  debug_print %r text \"{}\"\n",
              Op::if_else),
        0);
    const std::string loop =
        " carry (%s = %a) : f32 {\n    %e = exp %s : f32\n    yield %e\n  }\n"
        "  debug_print %r text \"{}\"\n";
    EXPECT_EQ(count(clean_fold, "  %r = for_loop %i = %16, %0, %1" + loop, Op::exp), 0);
    EXPECT_EQ(count(clean_fold, "  %r = for_loop %i = %0, %1, %1" + loop, Op::for_loop), 0);
    EXPECT_EQ(count(clean_fold, "  %r = for_loop %i = %0, %1, %1" + loop, Op::exp), 1);
    EXPECT_EQ(count(clean_fold, "  %r = for_loop %i = %0, %16, %1" + loop, Op::for_loop), 1);
    // With a step that is not positive the loop has no iterations.
    EXPECT_EQ(count(clean_fold, "  %r = for_loop %i = %0, %16, %0" + loop, Op::exp), 0);
    // A carry that yields itself.
    const std::string text = after(clean_fold,
                                   "  %r, %s = for_loop %i = %0, %n, %1 carry (%u = %a, %v = %a) : "
                                   "f32, f32 {\n    %w = add %u, %v : f32\n    yield %u, %w\n  }\n"
                                   "  debug_print %r, %s text \"{} {}\"\n");
    EXPECT_THAT(text, HasSubstr("carry (%v = %a) : f32"));
    EXPECT_THAT(text, HasSubstr("add %a, %v"));
}

TEST(Cse, MergesPureOpsAndLoadsBetweenWrites) {
    EXPECT_EQ(count(cse, "  %b = exp %a : f32\n  %d = exp %a : f32\n", Op::exp), 1);
    EXPECT_EQ(count(cse, "  %b = add %n, %1 : i64\n  %d = add %1, %n : i64\n", Op::add), 1);
    EXPECT_EQ(count(cse, "  %b = sub %n, %1 : i64\n  %d = sub %1, %n : i64\n", Op::sub), 2);
    const std::string load = " = load %x[%0 : 8] : f32[8]\n";
    EXPECT_EQ(count(cse, "  %b" + load + "  %d" + load, Op::load), 1);
    EXPECT_EQ(count(cse, "  %b" + load + "  store %y[%0 : 8], %b\n  %d" + load, Op::load), 1);
    EXPECT_EQ(count(cse, "  %b" + load + "  store %x[%0 : 8], %b\n  %d" + load, Op::load), 2);
    // p and q share an alias group.
    EXPECT_EQ(count(cse, "  %b = load %p[%0] : f32\n  store %q[%0], %b\n  %d = load %p[%0] : f32\n",
                    Op::load),
              2);
    // A write later in the loop reaches the load in the next iteration.
    EXPECT_EQ(
        count(cse,
              "  %b = load %x[%0] : f32\n  for_loop %i = %0, %n, %1 {\n    %d = load %x[%0] : "
              "f32\n    store %x[%0], %d\n    yield\n  }\n",
              Op::load),
        2);
    // Values of one branch are not visible in the other.
    EXPECT_EQ(
        count(cse,
              "  if_else %c {\n    %b = exp %a : f32\n    yield\n  } else {\n    %d = exp %a : "
              "f32\n    yield\n  }\n",
              Op::exp),
        2);
    EXPECT_EQ(
        count(cse,
              "  %z = exp %a : f32\n  if_else %c {\n    %b = exp %a : f32\n    yield\n  } else "
              "{\n    yield\n  }\n",
              Op::exp),
        1);
}

TEST(Dce, RemovesWhatNobodyNeeds) {
    EXPECT_EQ(count(dce, "  %b = exp %a : f32\n  %d = load %x[%0] : f32\n", Op::yield), 1);
    EXPECT_EQ(count(dce, "  %b = exp %a : f32\n", Op::exp), 0);
    EXPECT_EQ(count(dce, "  %d = load %x[%0] : f32\n", Op::load), 0);
    EXPECT_EQ(count(dce, "  %d = load %x[%0] : f32\n  store %y[%0], %d\n", Op::load), 1);
    EXPECT_EQ(
        count(dce, "  %d = constant 1 : f32\n  %e = atomic_add %x[%0], %d : f32\n", Op::atomic_add),
        1);
    // One of two carries feeds the store; the other only itself.
    const std::string text = after(
        dce,
        "  %r, %s = for_loop %i = %0, %n, %1 carry (%u = %a, %v = %a) : f32, f32 {\n    %w = "
        "add %u, %a : f32\n    %t = exp %v : f32\n    yield %w, %t\n  }\n  store %y[%0], %r\n");
    EXPECT_THAT(text, HasSubstr("carry (%u = %a) : f32"));
    EXPECT_THAT(text, Not(HasSubstr("exp")));
    // Here the unused result feeds the used one in the next iteration.
    EXPECT_EQ(
        count(dce,
              "  %r, %s = for_loop %i = %0, %n, %1 carry (%u = %a, %v = %a) : f32, f32 {\n    "
              "%w = add %u, %v : f32\n    %t = exp %v : f32\n    yield %w, %t\n  }\n  store "
              "%y[%0], %r\n",
              Op::exp),
        1);
    // Unused results of a branch.
    EXPECT_EQ(
        count(dce,
              "  %r, %s = if_else %c : f32, f32 {\n    %e = exp %a : f32\n    yield %a, %e\n  } "
              "else {\n    yield %a, %a\n  }\n  store %y[%0], %r\n",
              Op::exp),
        0);
}

TEST(Licm, HoistsInvariants) {
    const auto in_loop = [](std::string body) {
        return after(licm, "  for_loop %i = %0, %n, %1 {\n" + body + "    yield\n  }\n");
    };
    const std::string hoisted = in_loop(
        "    %b = load %x[%0 : 8] in_bounds : f32[8]\n    %d = exp %b : f32[8]\n    store %y[%i : "
        "8], "
        "%d\n");
    EXPECT_LT(hoisted.find("exp"), hoisted.find("for_loop"));
    EXPECT_THAT(hoisted, Not(HasSubstr("in_bounds")));
    const std::string written =
        in_loop("    %b = load %x[%0 : 8] : f32[8]\n    store %x[%i : 8], %b\n");
    EXPECT_GT(written.find("load"), written.find("for_loop"));
    const std::string aliased = in_loop("    %b = load %p[%0] : f32\n    store %q[%i], %b\n");
    EXPECT_GT(aliased.find("load"), aliased.find("for_loop"));
    const std::string varying =
        in_loop("    %b = add %i, %1 : i64\n    debug_print %b text \"{}\"\n");
    EXPECT_GT(varying.find("add"), varying.find("for_loop"));
}

int proved(std::string_view head, std::string_view body) {
    Function f = parse(std::string(head) +
                       "  %zero = constant 0 : i64\n  %one = constant 1 : i64\n"
                       "  %c64 = constant 64 : i64\n" +
                       std::string(body) + "  yield\n}\n");
    const int result = bounds(f).proved;
    verify(f);
    return result;
}

TEST(Contract, TakesProductsThatOneAdditionReads) {
    const auto made = [](std::string body) {
        return after(contract, "  %b = load %x[%0 : 8] : f32[8]\n" + body);
    };
    const std::string store = "  store %y[%0 : 8], %d\n";
    for (const char* sum : {"add %m, %b", "add %b, %m"}) {
        const std::string fused =
            made("  %m = mul %b, %b : f32[8]\n  %d = " + std::string(sum) + " : f32[8]\n" + store);
        EXPECT_THAT(fused, HasSubstr("fma"));
        EXPECT_THAT(fused, Not(HasSubstr("mul")));
    }
    // The product has another use.
    EXPECT_THAT(made("  %m = mul %b, %b : f32[8]\n  %d = add %m, %m : f32[8]\n" + store),
                Not(HasSubstr("fma")));
    // Narrow floats round after each op, integers have no fma.
    for (const char* type : {"bf16[8]", "i32[8]"}) {
        const std::string t(type);
        EXPECT_THAT(made("  %h = cast %b : " + t + "\n  %m = mul %h, %h : " + t +
                         "\n  %e = add %m, %h : " + t + "\n  %d = cast %e : f32[8]\n" + store),
                    Not(HasSubstr("fma")));
    }
    // The product is before the loop: it is computed once.
    EXPECT_THAT(made("  %m = mul %b, %b : f32[8]\n  for_loop %i = %0, %n, %1 {\n    %d = add %m, "
                     "%b : f32[8]\n    store %y[%i : 8], %d\n    yield\n  }\n"),
                Not(HasSubstr("fma")));
}

TEST(Bounds, ProgramIdsTimesBlock) {
    const std::string body =
        "  %p = program_id axis 0 : i64\n  %s = mul %p, %c64 : i64\n  %t = load %x[%s : 64] : "
        "f32[64]\n";
    EXPECT_EQ(proved("func @f(%x: ref<f32[256]>) grid [4] {\n", body), 1);
    EXPECT_EQ(proved("func @f(%x: ref<f32[255]>) grid [4] {\n", body), 0);
    EXPECT_EQ(proved("func @f(%x: ref<f32[256]>) grid [5] {\n", body), 0);
    EXPECT_EQ(proved("func @f(%x: ref<f32[256]>) grid [?] {\n", body), 0);
    EXPECT_EQ(proved("func @f(%x: ref<f32[?]>) grid [4] {\n", body), 0);
}

TEST(Bounds, LoopsOverSymbolicExtents) {
    const std::string head = "func @f(%x: ref<f32[?]>) {\n  %e = extent %x axis 0 : i64\n";
    const std::string floor = "  %q = floordiv %e, %c64 : i64\n";
    const auto loop = [](std::string hi, std::string start) {
        return "  for_loop %i = %zero, " + hi + ", %one {\n    %s = mul %i, %c64 : i64\n" + start +
               "    yield\n  }\n";
    };
    const std::string tile = "    %t = load %x[%s : 64] : f32[64]\n";
    EXPECT_EQ(proved(head, floor + loop("%q", tile)), 1);
    EXPECT_EQ(proved(head, floor + loop("%e", tile)), 0);
    const std::string longer = "    %t = load %x[%s : 65] : f32[65]\n";
    EXPECT_EQ(proved(head, floor + loop("%q", longer)), 0);
    // A loop with a stride: the last start is known if lengths are static.
    const auto stride = [](std::string extent) {
        return proved("func @f(%x: ref<f32[" + extent + "]>) {\n",
                      "  %h = constant 256 : i64\n  for_loop %i = %zero, %h, %c64 {\n    %t = load "
                      "%x[%i : 64] : f32[64]\n    yield\n  }\n");
    };
    EXPECT_EQ(stride("256"), 1);
    EXPECT_EQ(stride("255"), 0);
    // min(end, extent) bounds a single row.
    EXPECT_EQ(
        proved("func @f(%x: ref<f32[?]>, %n: i64) {\n",
               "  %e = extent %x axis 0 : i64\n  %m = min %e, %n : i64\n  for_loop %i = %zero, "
               "%m, %one {\n    %t = load %x[%i] : f32\n    yield\n  }\n"),
        1);
    EXPECT_EQ(
        proved("func @f(%x: ref<f32[?]>, %n: i64) {\n",
               "  %e = extent %x axis 0 : i64\n  %m = max %e, %n : i64\n  for_loop %i = %zero, "
               "%m, %one {\n    %t = load %x[%i] : f32\n    yield\n  }\n"),
        0);
}

TEST(Bounds, GathersAndNarrowIntegers) {
    const std::string head = "func @f(%x: ref<f32[128]>, %t: ref<i32[64]>, %n: i64) {\n";
    EXPECT_EQ(
        proved(head,
               "  %i = iota axis 0 : i32[64]\n  %k = constant 2 : i32[64]\n  %j = mul %i, %k : "
               "i32[64]\n  %r = load %x[tile %j] : f32[64]\n"),
        1);
    // A clamped gather: the load of the index is proved, and so is the one through it.
    EXPECT_EQ(proved(head,
                     "  %i = load %t[%zero : 64] : i32[64]\n  %lo = constant 0 : i32[64]\n  %hi = "
                     "constant 127 : i32[64]\n  %j = clamp %i, %lo, %hi : i32[64]\n  %r = load "
                     "%x[tile %j] : f32[64]\n"),
              2);
    // i8 arithmetic wraps: 100 + iota does not stay below 128.
    EXPECT_EQ(
        proved(head,
               "  %i = iota axis 0 : i8[28]\n  %k = constant 100 : i8[28]\n  %j = add %i, %k : "
               "i8[28]\n  %m = cast %j : i32[28]\n  %r = load %x[tile %m] : f32[28]\n"),
        1);
    EXPECT_EQ(
        proved(head,
               "  %i = iota axis 0 : i8[29]\n  %k = constant 100 : i8[29]\n  %j = add %i, %k : "
               "i8[29]\n  %m = cast %j : i32[29]\n  %r = load %x[tile %m] : f32[29]\n"),
        0);
    // Positions differ after a transpose: row minus column is not zero.
    EXPECT_EQ(
        proved(head,
               "  %i = iota axis 0 : i32[8, 8]\n  %j = transpose %i permutation [1, 0] : "
               "i32[8, 8]\n  %d = sub %i, %j : i32[8, 8]\n  %r = load %x[tile %d] : f32[8, 8]\n"),
        0);
    EXPECT_EQ(proved(head,
                     "  %i = iota axis 0 : i32[8, 8]\n  %d = sub %i, %i : i32[8, 8]\n  %r = load "
                     "%x[tile %d] : f32[8, 8]\n"),
              1);
}

TEST(Inline, KeepsTheSmallestShape) {
    Function f = parse(
        "func @mod(%s: f32, %h: i32, %q: i32, %kv: i32, %table: ref<f32[?]>) {\n"
        "  %slope = load %table[%h] : f32\n  %d = sub %q, %kv : i32\n  %f = cast %d : f32\n"
        "  %b = mul %slope, %f : f32\n  %r = add %s, %b : f32\n  %row = load %table[%q] : f32\n"
        "  %c = lt %q, %kv : bool\n  %e = if_else %c : f32 {\n    yield %r\n  } else {\n    yield "
        "%row\n  }\n  yield %e\n}\n"
        "func @f(%t: ref<f32[?]>, %h: i32, %y: ref<f32[8, 4]>) {\n  %0 = constant 0 : i64\n"
        "  %s = constant 1 : f32[8, 4]\n  %q = iota axis 0 : i32[8, 1]\n  %kv = iota axis 1 : "
        "i32[1, "
        "4]\n  %r = call @mod(%s, %h, %q, %kv, %t) : f32[8, 4]\n  store %y[%0 : 8, %0 : 4], %r\n  "
        "yield\n}\n");
    EXPECT_EQ(inline_calls(f).calls, 1);
    verify(f);
    const std::string text = print(f);
    EXPECT_THAT(text, HasSubstr("load %t[%h] : f32\n"));
    EXPECT_THAT(text, HasSubstr("load %t[tile %q] : f32[8, 1]\n"));
    EXPECT_THAT(text, HasSubstr("select"));
    EXPECT_THAT(text, Not(HasSubstr("call")));
}

TEST(Inline, RefusesWhatIsNotElementwise) {
    const auto error = [](std::string body) -> std::string {
        Function f = parse("func @mod(%s: f32) {\n" + body +
                           "}\nfunc @f() {\n  %s = constant 1 : "
                           "f32[8]\n  %r = call @mod(%s) : f32[8]\n  yield\n}\n");
        try {
            inline_calls(f);
        } catch (const UserError& e) {
            return e.what();
        }
        return "no error";
    };
    EXPECT_THAT(error("  %i = iota axis 0 : f32[4]\n  yield %s\n"),
                HasSubstr("[call] expected scalars only in @mod but got iota of type f32[4]"));
    EXPECT_THAT(
        error("  %r = while_loop carry (%a = %s) : f32 {\n    %c = lt %a, %a : bool\n    yield "
              "%c\n  } do (%b) {\n    yield %b\n  }\n  yield %r\n"),
        HasSubstr("no while_loop in @mod"));
    EXPECT_THAT(
        error("  %h = cast %s : i64\n  %z = constant 0 : i64\n  %o = constant 1 : i64\n  %r = "
              "for_loop %i = %z, %h, %o carry (%a = %s) : f32 {\n    yield %a\n  }\n  yield "
              "%r\n"),
        HasSubstr("expected loop bounds in @mod"));
}

TEST(Pipeline, RunsEveryPassAndReports) {
    Function f = kernel(
        "  %b = exp %a : f32\n  %d = exp %a : f32\n  %e = add %b, %d : f32\n  store %y[%0], %e\n");
    std::vector<std::string> names;
    bool merged = false;
    optimise(f, [&](std::string_view pass, const Function& now, bool changed) {
        verify(now);
        names.emplace_back(pass);
        merged |= pass == "cse" && changed;
    });
    EXPECT_TRUE(merged);
    EXPECT_EQ(names.front(), "inline");
    EXPECT_EQ(names.back(), "bounds");
    EXPECT_THAT(print(f), HasSubstr("in_bounds"));
}

}  // namespace
}  // namespace tilewright::ir
