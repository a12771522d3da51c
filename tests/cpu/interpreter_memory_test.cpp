// The reference machine: loads, stores, atomics and checks of arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/interpreter.h"
#include "tests/cpu/kernel_fixture.h"
#include "tilewright/error.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(InterpreterMemory, LanesOutsideReadOtherAndAreNotWritten) {
    // Blocks of 4 over arrays of 6 and 5: the second block is cut by both.
    Kernel k("copy", {2});
    const Value x = k.ref("x", DType::i32, {6}), y = k.ref("y", DType::i32, {5});
    const Value start = k.b.binary(Op::mul, k.b.program_id(0), k.index(4));
    const Value tile = k.load(x, {IndexOperand::slice(start, 4)});
    k.store(y, {IndexOperand::slice(start, 4)}, tile);
    Array<std::int32_t> in({1, 2, 3, 4, 5, 6}), out({9, 9, 9, 9, 9});
    out.data.push_back(77);  // just after the array
    interpret(k.done(), arguments({in.argument(), out.argument()}, {2}));
    EXPECT_THAT(out.data, ElementsAre(1, 2, 3, 4, 5, 77));
}

TEST(InterpreterMemory, NegativeIndicesAreOutside) {
    Kernel k;
    const Value x = k.ref("x", DType::f32, {4}), y = k.ref("y", DType::f32, {4});
    const Value zero = k.load(x, {k.slice(-2, 4)});
    const Value other = k.load(x, {k.slice(-2, 4)}, {}, k.b.constant({DType::f32, {}}, 7));
    k.store(y, {k.slice(0, 4)}, k.b.binary(Op::add, zero, other));
    k.store(y, {k.slice(-3, 4)}, k.b.constant({DType::f32, {4}}, 100));
    Array<float> in({1, 2, 3, 4}), out({0, 0, 0, 0});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(100, 7, 2, 4));
}

TEST(InterpreterMemory, AnIndexThatOverflowsIsOutside) {
    Kernel k;
    const Value x = k.ref("x", DType::i8, {4}), y = k.ref("y", DType::i8, {3});
    const Value huge = k.index(std::numeric_limits<std::int64_t>::max());
    k.store(y, {k.slice(0, 3)}, k.load(x, {IndexOperand::slice(huge, 3, 1)}));
    Array<std::int8_t> in({1, 2, 3, 4}), out({9, 9, 9});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0, 0, 0));
}

TEST(InterpreterMemory, StridesOfSlicesAndOfArrays) {
    Kernel k;
    const Value x = k.ref("x", DType::i32, {2, ir::kDynamic}), y = k.ref("y", DType::i32, {2, 2});
    k.store(y, {k.slice(0, 2), k.slice(0, 2)}, k.load(x, {k.slice(0, 2), k.slice(1, 2, 2)}));
    Array<std::int32_t> in({0, 1, 2, 3, 4, 5, 6, 7}), out({0, 0, 0, 0}, {2, 2});
    ir::RefArgument transposed = in.argument();  // x[i, j] = in[i + 2 * j]
    transposed.extents = {2, 4};
    transposed.strides = {1, 2};
    interpret(k.done(), arguments({transposed, out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(2, 6, 3, 7));
}

TEST(InterpreterMemory, IndexTilesBroadcastWhereTheFirstStands) {
    // x[rows[:, None], :2, columns[None, :]] has shape [2, 3, 2]: joint dims first, then the slice.
    Kernel k;
    const Value x = k.ref("x", DType::i32, {2, 2, 3}), y = k.ref("y", DType::i32, {2, 3, 2});
    const Value rows = k.b.iota({DType::i32, {2, 1}}, 0),
                columns = k.b.iota({DType::i64, {1, 3}}, 1);
    const Value tile =
        k.load(x, {IndexOperand::tile(rows), k.slice(0, 2), IndexOperand::tile(columns)});
    ASSERT_EQ(k.b.type(tile).shape, ir::Shape({2, 3, 2}));
    k.store(y, {k.slice(0, 2), k.slice(0, 3), k.slice(0, 2)}, tile);
    std::vector<std::int32_t> values(12);
    for (int i = 0; i < 12; ++i) values[static_cast<std::size_t>(i)] = i;
    Array<std::int32_t> in(values, {2, 2, 3}), out(std::vector<std::int32_t>(12), {2, 3, 2});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));
}

TEST(InterpreterMemory, MasksHideLanes) {
    Kernel k;
    const Value x = k.ref("x", DType::f32, {4}), y = k.ref("y", DType::f32, {4});
    const Value lane = k.b.iota({DType::i32, {4}}, 0);
    const Value mask = k.b.binary(Op::lt, lane, k.b.constant_int({DType::i32, {4}}, 2));
    const Value tile = k.load(x, {k.slice(0, 4)}, mask, k.b.constant({DType::f32, {4}}, -1));
    k.store(y, {k.slice(0, 4)}, tile);
    k.store(y, {k.slice(0, 4)}, k.b.constant({DType::f32, {4}}, 5),
            k.b.unary(Op::bitwise_not, mask));
    Array<float> in({1, 2, 3, 4}), out({0, 0, 0, 0});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(1, 2, 5, 5));
}

TEST(InterpreterMemory, MovementKeepsEveryBit) {
    Kernel k;
    const Value x = k.ref("x", DType::f32, {2}), y = k.ref("y", DType::f32, {2});
    k.store(y, {k.slice(0, 2)}, k.load(x, {k.slice(0, 2)}));
    Array<std::uint32_t> in({0x7f800001, 0xffc12345}), out({0, 0});  // a signalling NaN, a payload
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0x7f800001, 0xffc12345));
}

TEST(InterpreterMemory, BooleansReadAnyByteAsTrue) {
    Kernel k;
    const Value x = k.ref("x", DType::boolean, {3}), y = k.ref("y", DType::boolean, {3});
    k.store(y, {k.slice(0, 3)}, k.load(x, {k.slice(0, 3)}));
    Array<std::uint8_t> in({0, 7, 1}), out({9, 9, 9});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0, 1, 1));
}

TEST(InterpreterMemory, HistogramByAtomics) {
    Kernel k("histogram", {2});
    const Value x = k.ref("x", DType::i32, {8}), bins = k.ref("bins", DType::i32, {3});
    const Value start = k.b.binary(Op::mul, k.b.program_id(0), k.index(4));
    const Value keys = k.load(x, {IndexOperand::slice(start, 4)});
    const IndexOperand where[] = {IndexOperand::tile(keys)};
    k.b.atomic(Op::atomic_add, bins, where, k.b.constant_int({DType::i32, {4}}, 1));
    Array<std::int32_t> in({0, 2, 2, 1, 2, 3, -1, 0}), out({0, 0, 0});
    interpret(k.done(), arguments({in.argument(), out.argument()}, {2}));
    EXPECT_THAT(out.data, ElementsAre(2, 1, 3));  // the keys 3 and -1 have no bin
}

TEST(InterpreterMemory, AtomicsReturnWhatWasThere) {
    Kernel k;
    const Value x = k.ref("x", DType::f32, {1}), y = k.ref("y", DType::f32, {5});
    const std::vector<IndexOperand> first = {k.at(0)};
    int next = 0;
    const auto keep = [&](Value old) { k.store(y, {k.at(next++)}, old); };
    const auto number = [&](double value) { return k.b.constant({DType::f32, {}}, value); };
    keep(k.b.atomic(Op::atomic_add, x, first, number(2)));   // 1 -> 3
    keep(k.b.atomic(Op::atomic_max, x, first, number(10)));  // 3 -> 10
    keep(k.b.atomic(Op::atomic_min, x, first, number(4)));   // 10 -> 4
    keep(k.b.atomic(Op::atomic_xchg, x, first, number(6)));  // 4 -> 6
    keep(k.b.atomic(Op::atomic_add, x, first, number(1)));   // 6 -> 7
    Array<float> in({1}), out({0, 0, 0, 0, 0});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(1, 3, 10, 4, 6));
    EXPECT_THAT(in.data, ElementsAre(7));
}

TEST(InterpreterMemory, CompareAndSwap) {
    Kernel k;
    const Value x = k.ref("x", DType::i32, {2}), y = k.ref("y", DType::i32, {2});
    const IndexOperand all[] = {k.slice(0, 2)};
    const auto tile = [&](std::int64_t value) {
        return k.b.constant_int({DType::i32, {2}}, value);
    };
    k.store(y, {k.slice(0, 2)}, k.b.atomic_cas(x, all, tile(5), tile(9)));
    Array<std::int32_t> in({5, 6}), out({0, 0});
    interpret(k.done(), arguments({in.argument(), out.argument()}));
    EXPECT_THAT(in.data, ElementsAre(9, 6));
    EXPECT_THAT(out.data, ElementsAre(5, 6));
}

TEST(InterpreterMemory, ScratchIsPrivateToAProgram) {
    Kernel k("twice", {3});
    const Value y = k.ref("y", DType::i64, {3}), s = k.scratch("s", DType::i64, {2});
    const Value p = k.b.program_id(0);
    k.store(s, {k.at(1)}, p);
    k.store(y, {IndexOperand::scalar(p)},
            k.b.binary(Op::add, k.load(s, {k.at(1)}), k.load(s, {k.at(1)})));
    Array<std::int64_t> out({0, 0, 0});
    interpret(k.done(), arguments({out.argument()}, {3}));
    EXPECT_THAT(out.data, ElementsAre(0, 2, 4));
}

TEST(InterpreterMemory, RankZeroRefsAndExtents) {
    Kernel k;
    const Value x = k.ref("x", DType::i64, {}), m = k.ref("m", DType::i8, {ir::kDynamic, 0});
    k.store(x, {}, k.b.binary(Op::add, k.load(x, {}), k.b.extent(m, 0)));
    Array<std::int64_t> scalar({40}, {});
    Array<std::int8_t> empty({}, {2, 0});
    interpret(k.done(), arguments({scalar.argument(), empty.argument()}));
    EXPECT_THAT(scalar.data, ElementsAre(42));
}

TEST(InterpreterMemory, ZeroSizeArraysReadOther) {
    Kernel k;
    const Value x = k.ref("x", DType::f32, {ir::kDynamic}), y = k.ref("y", DType::f32, {2});
    k.store(x, {k.slice(0, 2)}, k.b.constant({DType::f32, {2}}, 1));
    k.store(y, {k.slice(0, 2)}, k.load(x, {k.slice(0, 2)}));
    Array<float> empty({}), out({5, 5});
    interpret(k.done(), arguments({empty.argument(), out.argument()}));
    EXPECT_THAT(out.data, ElementsAre(0, 0));
}

// ---- Arguments.

std::string error_of(const ir::Function& kernel, const ir::Arguments& call) {
    try {
        interpret(kernel, call);
    } catch (const UserError& error) {
        return error.what();
    }
    return "no error";
}

TEST(InterpreterMemory, ArgumentsMustFitTheKernel) {
    Kernel k("copy", {2, ir::kDynamic});
    k.ref("x", DType::f32, {4, ir::kDynamic});
    const ir::Function& kernel = k.done();
    Array<float> good(std::vector<float>(8), {4, 2}), bad(std::vector<float>(6), {3, 2});
    const auto call = [&](std::vector<ir::RefArgument> refs, std::vector<std::int64_t> grid) {
        return error_of(kernel, arguments(std::move(refs), std::move(grid)));
    };
    EXPECT_EQ(call({good.argument()}, {2, 3}), "no error");
    EXPECT_EQ(call({good.argument()}, {2}), "[copy] expected a grid of 2 axes but got 1");
    EXPECT_EQ(call({good.argument()}, {3, 3}), "[copy] expected grid axis 0 to be 2 but got 3");
    EXPECT_EQ(call({good.argument()}, {2, -1}),
              "[copy] expected grid axis 1 to be >= 0 but got -1");
    EXPECT_EQ(call({}, {2, 3}), "[copy] expected 1 arrays and 0 scalars but got 0 and 0");
    EXPECT_EQ(call({bad.argument()}, {2, 3}), "[copy] expected extent 0 of x to be 4 but got 3");
    ir::RefArgument null = good.argument();
    null.data = nullptr;
    EXPECT_THAT(call({null}, {2, 3}), HasSubstr("expected an array for x but got a null pointer"));
    ir::RefArgument negative = good.argument();
    negative.extents[1] = -2;
    EXPECT_THAT(call({negative}, {2, 3}),
                HasSubstr("expected extent 1 of x to be >= 0 but got -2"));
}

TEST(InterpreterMemory, ScalarsArriveByTheirBits) {
    Kernel k;
    const Value y = k.ref("y", DType::f32, {2});
    const Value a = k.function.add_parameter(ir::Type{DType::f32, {}}, "a");
    const Value i = k.function.add_parameter(ir::Type{DType::i32, {}}, "i");
    k.store(y, {k.at(0)}, a);
    k.store(y, {k.at(1)}, k.b.cast(i, DType::f32));
    Array<float> out({0, 0});
    ir::Arguments call = arguments({out.argument()});
    const double value = 1.5;
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    call.scalars = {bits, static_cast<std::uint64_t>(std::int64_t{-3})};
    interpret(k.done(), call);
    EXPECT_THAT(out.data, ElementsAre(1.5F, -3.0F));
}

}  // namespace
}  // namespace tilewright::cpu
