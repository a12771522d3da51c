// The reference machine: grids, loops, branches, calls and debug printing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/interpreter.h"
#include "tests/cpu/kernel_fixture.h"
#include "tilewright/error.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;
using testing::ElementsAre;

const ir::Type kIndex{DType::i64, {}};

TEST(InterpreterControl, TheLastGridAxisIsFastest) {
    Kernel k("order", {2, 3});
    const Value y = k.ref("y", DType::i64, {7});
    // Every program appends its number to a list whose length is in y[0].
    const Value count = k.load(y, {k.at(0)});
    const Value row = k.b.binary(Op::mul, k.b.program_id(0), k.b.num_programs(1));
    const Value next = k.b.binary(Op::add, count, k.index(1));
    k.store(y, {IndexOperand::scalar(next)}, k.b.binary(Op::add, row, k.b.program_id(1)));
    k.store(y, {k.at(0)}, next);
    Array<std::int64_t> out(std::vector<std::int64_t>(7));
    interpret(k.done(), arguments({out.argument()}, {2, 3}));
    EXPECT_THAT(out.data, ElementsAre(6, 0, 1, 2, 3, 4, 5));
}

TEST(InterpreterControl, AnEmptyGridAxisRunsNothing) {
    Kernel k("nothing", {ir::kDynamic, 2});
    const Value y = k.ref("y", DType::i64, {1});
    k.store(y, {k.at(0)}, k.index(1));
    Array<std::int64_t> out({0});
    interpret(k.done(), arguments({out.argument()}, {0, 2}));
    EXPECT_THAT(out.data, ElementsAre(0));
}

TEST(InterpreterControl, ManyPrograms) {
    Kernel k("count", {ir::kDynamic});
    const Value y = k.ref("y", DType::i64, {1});
    k.store(y, {k.at(0)}, k.b.program_id(0));
    Array<std::int64_t> out({0});
    interpret(k.done(), arguments({out.argument()}, {100000}));
    EXPECT_THAT(out.data, ElementsAre(99999));
}

TEST(InterpreterControl, ForLoopSwapsItsCarries) {
    // Fibonacci: (a, b) -> (b, a + b), and the induction variable summed.
    Kernel k;
    const Value y = k.ref("y", DType::i64, {3});
    const Value init[] = {k.index(0), k.index(1), k.index(0)};
    const auto results = k.b.for_loop(k.index(2), k.index(13), k.index(3), init,
                                      [&](Value iv, std::span<const Value> c) {
                                          return std::vector{c[1], k.b.binary(Op::add, c[0], c[1]),
                                                             k.b.binary(Op::add, c[2], iv)};
                                      });
    for (int i = 0; i < 3; ++i) k.store(y, {k.at(i)}, results[static_cast<std::size_t>(i)]);
    Array<std::int64_t> out({0, 0, 0});
    interpret(k.done(), arguments({out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(3, 5, 2 + 5 + 8 + 11));
}

TEST(InterpreterControl, ForLoopThatNeverRunsGivesItsInitialValues) {
    Kernel k;
    const Value y = k.ref("y", DType::i64, {1});
    const Value init[] = {k.index(5)};
    const auto results =
        k.b.for_loop(k.index(3), k.index(3), k.index(1), init,
                     [&](Value iv, std::span<const Value>) { return std::vector{iv}; });
    k.store(y, {k.at(0)}, results[0]);
    Array<std::int64_t> out({0});
    interpret(k.done(), arguments({out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(5));
}

TEST(InterpreterControl, ForLoopWithoutAPositiveStepDoesNotRun) {
    Kernel k("stuck");
    const Value x = k.ref("x", DType::i64, {2});
    const Value step = k.load(x, {k.at(0)});
    const Value init[] = {k.index(5)};
    k.line(4);
    const auto results =
        k.b.for_loop(k.index(0), k.index(3), step, init,
                     [](Value iv, std::span<const Value>) { return std::vector<Value>{iv}; });
    k.store(x, {k.at(1)}, results[0]);
    Array<std::int64_t> in({-1, 0});
    const ir::Function& kernel = k.done();
    interpret(kernel, arguments({in.argument()}));
    EXPECT_THAT(in.data, ElementsAre(-1, 5));
    try {
        interpret_checked(kernel, arguments({in.argument()}));
        FAIL() << "no error";
    } catch (const UserError& error) {
        EXPECT_STREQ(error.what(),
                     "[interpret_checked] kernel stuck, program (): expected the for_loop at "
                     "kernel.cpp:4 to have step > 0 but got -1");
    }
}

TEST(InterpreterControl, WhileLoopSeesItsCarries) {
    // Halve 1000 until it is below 10, and count.
    Kernel k;
    const Value y = k.ref("y", DType::i64, {2});
    const Value init[] = {k.index(1000), k.index(0)};
    const auto results = k.b.while_loop(
        init, [&](std::span<const Value> c) { return k.b.binary(Op::ge, c[0], k.index(10)); },
        [&](std::span<const Value> c) {
            return std::vector{k.b.binary(Op::div, c[0], k.index(2)),
                               k.b.binary(Op::add, c[1], k.index(1))};
        });
    k.store(y, {k.at(0)}, results[0]);
    k.store(y, {k.at(1)}, results[1]);
    Array<std::int64_t> out({0, 0});
    interpret(k.done(), arguments({out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(7, 7));
}

TEST(InterpreterControl, IfRunsOneBranch) {
    Kernel k("sides", {2});
    const Value y = k.ref("y", DType::i64, {4});
    const Value p = k.b.program_id(0);
    const auto branch = [&](std::int64_t value, std::int64_t slot) {
        return [&k, y, value, slot] {
            k.store(y, {k.at(slot)}, k.index(1));
            return std::vector{k.index(value)};
        };
    };
    const auto results =
        k.b.if_else(k.b.binary(Op::eq, p, k.index(0)), branch(10, 2), branch(20, 3));
    k.store(y, {IndexOperand::scalar(p)}, results[0]);
    const ir::Function& kernel = k.done();
    Array<std::int64_t> out({0, 0, 0, 0});
    interpret(kernel, arguments({out.argument()}, {2}));
    EXPECT_THAT(out.data, ElementsAre(10, 20, 1, 1));
}

/// i, j -> (i > j ? i : 10 * j, i + j), with a real branch inside.
std::shared_ptr<const ir::Function> mod() {
    Kernel k("mod");
    const Value i = k.function.add_parameter(kIndex, "i"),
                j = k.function.add_parameter(kIndex, "j");
    const auto chosen = k.b.if_else(
        k.b.binary(Op::gt, i, j), [&] { return std::vector{i}; },
        [&] { return std::vector{k.b.binary(Op::mul, j, k.index(10))}; });
    const Value results[] = {chosen[0], k.b.binary(Op::add, i, j)};
    k.b.yield(results);
    return std::make_shared<const ir::Function>(k.function);
}

TEST(InterpreterControl, CallAppliesAModByBroadcasting) {
    Kernel k;
    const Value y = k.ref("y", DType::i64, {2, 2, 3});
    const Value operands[] = {k.b.iota({DType::i64, {2, 1}}, 0), k.b.iota({DType::i64, {1, 3}}, 1)};
    const auto results = k.b.call(mod(), operands);
    ASSERT_EQ(results.size(), 2U);
    for (int r = 0; r < 2; ++r) {
        k.store(y, {k.at(r), k.slice(0, 2), k.slice(0, 3)}, results[static_cast<std::size_t>(r)]);
    }
    Array<std::int64_t> out(std::vector<std::int64_t>(12), {2, 2, 3});
    interpret(k.done(), arguments({out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0, 10, 20, 1, 10, 20, 0, 1, 2, 1, 2, 3));
}

TEST(InterpreterControl, DebugPrintFillsItsBraces) {
    Kernel k("talk", {2});
    const Value p = k.b.program_id(0);
    const Value operands[] = {p, k.b.constant({DType::f32, {1, 2}}, 0.1),
                              k.b.binary(Op::eq, p, k.index(1))};
    k.b.debug_print("p={} x={} {}", operands);
    const ir::Function& kernel = k.done();
    testing::internal::CaptureStderr();
    interpret(kernel, arguments({}, {2}));
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "p=0 x=[[0.1, 0.1]] false\np=1 x=[[0.1, 0.1]] true\n");
}

}  // namespace
}  // namespace tilewright::cpu
