// Random mods with integers in fewer bits give what they gave before.
#include "ir/passes/narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "mod/evaluate.h"
#include "tests/support/random_mod.h"
#include "tests/support/seeds.h"

namespace tilewright::ir {
namespace {

constexpr std::int64_t kLast = (std::int64_t{1} << 31) - 1;

NarrowReport narrow_positions(Function& function) {
    std::map<Value, Interval> ranges;
    for (Value parameter : function.parameters()) {
        if (!function.is_ref(parameter) && function.type(parameter).dtype == DType::i64) {
            ranges[parameter] = Interval::integers(0, kLast);
        }
    }
    return narrow(function, ranges);
}

int count(const Function& function, DType dtype, Op op) {
    int found = 0;
    walk(function.body, [&](const Instruction& instruction) {
        found += instruction.op == op && function.type(instruction.operands[0]).dtype == dtype;
    });
    return found;
}

TEST(Narrow, RandomModsGiveTheSame) {
    const auto seeds = testing::seeds(1500);
    int narrowed = 0;
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const Function function = testing::random_mod(seed, false);
        Function changed = function;
        narrowed += narrow_positions(changed).changed();
        verify(changed);
        const Type result = function.type(function.body.terminator().operands[0]);
        const std::vector<Tensor> tensors = testing::random_mod_arrays(seed % 5);
        mod::Evaluator before(function, tensors), after(changed, tensors);
        std::mt19937_64 random(seed);
        const auto position = [&] {
            const std::int64_t from[] = {0, 100, 46340, std::int64_t{1} << 30, kLast - 20};
            return static_cast<std::uint64_t>(from[random() % std::size(from)]) + random() % 20;
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
    if (seeds.normal) {
        EXPECT_GT(narrowed, 700);
    }
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
    const Interval positions = Interval::integers(0, kLast);
    const NarrowReport report =
        narrow(function, {{parameters[0], positions}, {parameters[1], positions}});
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
