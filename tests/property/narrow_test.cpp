// Random mods give the same results with integers in fewer bits, or summed as floats.
#include "ir/passes/narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <span>

#include "ir/builder.h"
#include "ir/parse.h"
#include "ir/passes/float_sums.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "mod/evaluate.h"
#include "tests/support/random_mod.h"
#include "tests/support/seeds.h"

namespace tilewright::ir {
namespace {

constexpr std::int64_t kLast = (std::int64_t{1} << 31) - 1;

std::map<Value, Interval> positions(const Function& function, std::int64_t last) {
    std::map<Value, Interval> ranges;
    for (Value parameter : function.parameters()) {
        if (!function.is_ref(parameter) && function.type(parameter).dtype == DType::i64) {
            ranges[parameter] = Interval::integers(0, last);
        }
    }
    return ranges;
}

NarrowReport narrow_positions(Function& function) {
    return narrow(function, positions(function, kLast));
}

int count(const Function& function, DType dtype, Op op) {
    int found = 0;
    walk(function.body, [&](const Instruction& instruction) {
        found += instruction.op == op && function.type(instruction.operands[0]).dtype == dtype;
    });
    return found;
}

/// Runs a mod of (b, h, q, kv) and its changed form on positions near `from`.
void expect_same(const Function& function, const Function& changed, std::uint64_t seed,
                 std::span<const std::int64_t> from) {
    verify(changed);
    const Type result = function.type(function.body.terminator().operands[0]);
    const std::vector<Tensor> tensors = testing::random_mod_arrays(seed % 5);
    mod::Evaluator before(function, tensors), after(changed, tensors);
    std::mt19937_64 random(seed);
    const auto position = [&] {
        return static_cast<std::uint64_t>(from[random() % from.size()]) + random() % 20;
    };
    for (int i = 0; i < 24; ++i) {
        const std::uint64_t scalars[] = {random() % 2, random() % 4, position(), position()};
        const std::uint64_t expected = before.run(scalars)[0], got = after.run(scalars)[0];
        const bool both_nan = is_float(result.dtype) &&
                              std::isnan(std::bit_cast<double>(expected)) &&
                              std::isnan(std::bit_cast<double>(got));
        ASSERT_TRUE(expected == got || both_nan)
            << "seed " << seed << " q " << scalars[2] << " kv " << scalars[3] << "\n"
            << print(function) << print(changed);
    }
}

TEST(Narrow, RandomModsGiveTheSame) {
    const auto seeds = testing::seeds(1500);
    const std::int64_t from[] = {0, 100, 46340, std::int64_t{1} << 30, kLast - 20};
    int narrowed = 0;
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const Function function = testing::random_mod(seed, false);
        Function changed = function;
        narrowed += narrow_positions(changed).changed();
        expect_same(function, changed, seed, from);
    }
    if (seeds.normal) {
        EXPECT_GT(narrowed, 700);
    }
}

/// f32 of a random sum of batch, head, positions and numbers, times that of another sum.
Function random_sums(std::uint64_t seed) {
    Function function;
    function.name = "mod";
    std::vector<Value> terms;
    for (const char* name : {"b", "h", "q", "kv"}) {
        terms.push_back(function.add_parameter(Type{DType::i64, {}}, name));
    }
    function.add_parameter(RefType{DType::i32, {kDynamic}}, "ids");
    function.add_parameter(RefType{DType::boolean, {kDynamic, kDynamic}}, "flags");
    function.add_parameter(RefType{DType::f32, {kDynamic}}, "table");
    function.add_parameter(RefType{DType::i64, {kDynamic}}, "starts");
    Builder builder(function);
    std::mt19937_64 random(seed);
    const auto sum = [&](const auto& self, int depth) -> Value {
        if (depth == 0 || random() % 4 == 0) {
            if (random() % 4 == 0) {
                const auto number = static_cast<std::int64_t>(random() % 200) - 100;
                return builder.constant_int({DType::i64, {}}, number);
            }
            return terms[random() % terms.size()];
        }
        if (random() % 6 == 0) return builder.unary(Op::abs, self(self, depth - 1));
        const Op ops[] = {Op::add, Op::sub, Op::sub, Op::min, Op::max};
        const Value left = self(self, depth - 1);
        return builder.binary(ops[random() % 5], left, self(self, depth - 1));
    };
    const Value one = builder.cast(sum(sum, 3), DType::f32);
    const Value product = builder.binary(Op::mul, one, builder.cast(sum(sum, 2), DType::f32));
    builder.yield({&product, 1});
    return function;
}

TEST(FloatSums, RandomSumsGiveTheSame) {
    const auto seeds = testing::seeds(1500);
    constexpr std::int64_t kShort = 1 << 23;
    const std::int64_t from[] = {0, 100, 46340, kShort - 20};
    int casts = 0;
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const Function function = random_sums(seed);
        Function changed = function;
        if (seed % 2 == 0) narrow(changed, positions(changed, kShort));
        casts += float_sums(changed, positions(changed, kShort)).casts;
        expect_same(function, changed, seed, from);
    }
    if (seeds.normal) {
        EXPECT_GT(casts, 300);
    }
}

TEST(FloatSums, TermsThatVaryLess) {
    Function function = parse(R"(func @mod(%q: i64, %kv: i64, %n: i64) {
  %0 = constant 16 : i64
  %1 = sub %kv, %q : i64
  %2 = min %1, %0 : i64
  %3 = abs %2 : i64
  %4 = cast %3 : f32
  %5 = add %q, %0 : i64
  %6 = cast %5 : f32
  %7 = sub %q, %kv : i64
  %8 = cast %7 : f32
  %9 = cast %7 : f32
  %10 = mul %q, %kv : i64
  %11 = cast %10 : f32
  %12 = sub %n, %q : i64
  %13 = cast %12 : f32
  %14 = add %4, %6 : f32
  %15 = fma %8, %9, %14 : f32
  %16 = fma %11, %13, %15 : f32
  yield %16
}
)");
    const auto& parameters = function.parameters();
    const Interval known = Interval::integers(0, 1 << 23);
    const FloatSumsReport report =
        float_sums(function, {{parameters[0], known}, {parameters[1], known}});
    verify(function);
    // Unchanged: q plus a number, which varies like q; a value that is used twice; a product; and
    // n, which is unbounded.
    EXPECT_EQ(report.casts, 1) << print(function);
    EXPECT_EQ(count(function, DType::f32, Op::sub), 1);
    EXPECT_EQ(count(function, DType::f32, Op::min), 1);
    EXPECT_EQ(count(function, DType::f32, Op::abs), 1);
    EXPECT_EQ(count(function, DType::i64, Op::cast), 8) << print(function);
}

TEST(Narrow, WhatFitsAlone) {
    Function function = parse(R"(func @mod(%q: i64, %kv: i64, %n: i64) {
  %0 = sub %q, %kv : i64
  %1 = cast %0 : f32
  %2 = mul %q, %kv : i64
  %3 = cast %2 : f32
  %4 = div %q, %n : i64
  %5 = cast %4 : f32
  %6 = ge %q, %kv : bool
  %7 = add %1, %3 : f32
  %8 = add %7, %5 : f32
  %9 = select %6, %8, %1 : f32
  yield %9
}
)");
    const auto& parameters = function.parameters();
    const Interval known = Interval::integers(0, kLast);
    const NarrowReport report = narrow(function, {{parameters[0], known}, {parameters[1], known}});
    verify(function);
    EXPECT_EQ(report.instructions, 4) << print(function);  // sub, ge, casts to f32
    EXPECT_EQ(count(function, DType::i32, Op::sub), 1);
    EXPECT_EQ(count(function, DType::i32, Op::ge), 1);
    EXPECT_EQ(count(function, DType::i64, Op::mul), 1);  // up to 2^62
    EXPECT_EQ(count(function, DType::i64, Op::div), 1);  // by anything
}

TEST(Narrow, InsideOfBlocks) {
    Function function = parse(R"(func @mod(%q: i64, %kv: i64) {
  %0 = ge %q, %kv : bool
  %1 = if_else %0 : f32 {
    %2 = sub %q, %kv : i64
    %3 = cast %2 : f32
    yield %3
  } else {
    %4 = sub %kv, %q : i64
    %5 = cast %4 : f32
    yield %5
  }
  yield %1
}
)");
    narrow_positions(function);
    verify(function);
    EXPECT_EQ(count(function, DType::i64, Op::sub), 0) << print(function);
    EXPECT_EQ(count(function, DType::i32, Op::sub), 2);
}

}  // namespace
}  // namespace tilewright::ir
