// Sums that pick one element give what the interpreter gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;

/// True if some instruction picks, and no chain sums.
bool picks(const ir::Function& function) {
    bool picks = false, sums = false;
    const auto program = compile(function);
    for (const Instruction& instruction : program->code) {
        picks |= std::holds_alternative<Pick>(instruction);
        sums |= std::holds_alternative<ReduceRows>(instruction);
        const auto* chain = std::get_if<Chain>(&instruction);
        if (chain == nullptr) continue;
        sums |= std::any_of(chain->ops.begin(), chain->ops.end(),
                            [](const StripOp& op) { return op.op == Op::reduce; });
    }
    return picks && !sums;
}

/// sum(where(iota == at, x, 0), axis), or with ne and the operands of where exchanged.
Value picked(ir::Builder& b, Value x, int axis, Value at, bool equal = true) {
    const ir::Type type = b.type(x);
    ir::Shape line;
    for (int a = 0; a < type.shape.rank(); ++a)
        line = line.with_inserted(a, a == axis ? type.shape[a] : 1);
    const DType index = b.type(at).dtype;
    const Value iota = b.iota(ir::Type{index, line}, axis);
    const Value test = b.binary(equal ? Op::eq : Op::ne, iota, b.broadcast(at, line));
    const Value condition = b.broadcast(test, type.shape), zero = b.constant(type, 0);
    const Value chosen = equal ? b.select(condition, x, zero) : b.select(condition, zero, x);
    return b.reduce(ir::Reduction::sum, chosen, axis);
}

TEST(MachinePicks, EveryPlaceOfEveryAxis) {
    const std::vector<std::vector<std::int64_t>> shapes = {
        {16, 16}, {5, 7}, {1, 9}, {9, 1}, {3, 70}, {70, 3}, {40, 24}, {2, 3, 5}, {1}, {33}};
    for (const DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64}) {
        for (const auto& dims : shapes) {
            for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
                const std::int64_t extent = dims[static_cast<std::size_t>(axis)];
                // Indices from -1 to the extent: both ends are outside.
                Agreement test({extent + 2});
                ir::Builder& b = test.k.b;
                const Value x = test.own_tile(dtype, dims);
                const Value at = b.binary(Op::sub, b.program_id(0), test.k.index(1));
                test.keep(picked(b, x, axis, b.cast(at, DType::i32)));
                test.keep(picked(b, x, axis, at, false));
                test.check();
                // The iota of one place is a constant.
                EXPECT_TRUE(extent == 1 || picks(test.k.function)) << name(dtype) << ' ' << axis;
                ASSERT_FALSE(testing::Test::HasFailure());
            }
        }
    }
}

// As where a loop reads a row, a column and an element of what it carries.
TEST(MachinePicks, LoopsReadWhatTheyWrite) {
    for (const std::int64_t n : {16, 5, 20, 40}) {
        Agreement test({3});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const ir::Shape square{n, n};
        const std::array init{test.own_tile(DType::f32, {n, n})};
        const auto result = b.for_loop(
            k.index(0), k.index(n + 1), k.index(1), init,
            [&](Value iv, std::span<const Value> carries) -> std::vector<Value> {
                const Value at = b.cast(iv, DType::i32);
                const Value row = picked(b, carries[0], 0, at),
                            column = picked(b, carries[0], 1, at);
                const Value element = picked(b, row, 0, at);
                const Value sum = b.binary(Op::add, b.broadcast(b.expand_dims(row, 0), square),
                                           b.broadcast(b.expand_dims(column, 1), square));
                return {b.binary(Op::sub, b.binary(Op::add, carries[0], sum),
                                 b.broadcast(element, square))};
            });
        test.keep(result[0]);
        test.check();
        EXPECT_TRUE(picks(k.function)) << n;
    }
}

// The sum of zeros and -0 is 0; what is not picked may be infinite or no number.
TEST(MachinePicks, SpecialValues) {
    const double inf = std::numeric_limits<double>::infinity();
    for (const double special : {-0.0, inf, std::numeric_limits<double>::quiet_NaN()}) {
        for (const int axis : {0, 1}) {
            Agreement test({4});
            ir::Builder& b = test.k.b;
            const ir::Type type{DType::f32, {4, 4}};
            const Value x = test.own_tile(DType::f32, {4, 4});
            const Value here = b.broadcast(b.binary(Op::eq, b.iota(ir::Type{DType::i32, {1, 4}}, 1),
                                                    b.constant(ir::Type{DType::i32, {1, 4}}, 2)),
                                           type.shape);
            const Value mixed = b.select(here, b.constant(type, special), x);
            const Value sum = picked(b, mixed, axis, b.program_id(0));
            // 1 / 0 shows the sign of a zero.
            const ir::Type line = b.type(sum);
            test.keep(sum);
            test.keep(b.binary(Op::div, b.constant(line, 1), sum));
            test.check();
            EXPECT_TRUE(picks(test.k.function));
        }
    }
}

// Sums that look like these but are not: other axes, other values, iotas that are cut.
TEST(MachinePicks, OtherSums) {
    Agreement test({4});
    ir::Builder& b = test.k.b;
    const ir::Type type{DType::f32, {4, 6}};
    const Value x = test.own_tile(DType::f32, {4, 6});
    const Value at = b.cast(b.program_id(0), DType::i32);
    const auto where = [&](const ir::Shape& line, int along, Value place, double otherwise,
                           int axis) {
        const Value iota = b.iota(ir::Type{DType::i32, line}, along);
        const Value condition = b.broadcast(b.binary(Op::eq, iota, place), type.shape);
        return b.reduce(ir::Reduction::sum, b.select(condition, x, b.constant(type, otherwise)),
                        axis);
    };
    const Value across = b.broadcast(at, {1, 6}), down = b.broadcast(at, {4, 1});
    test.keep(where({1, 6}, 1, across, 0, 0));
    test.keep(where({4, 1}, 0, down, 0, 1));
    test.keep(where({1, 6}, 1, across, 1, 1));
    test.keep(where({1, 6}, 0, across, 0, 1));
    test.keep(
        where({4, 6}, 1, b.broadcast(b.iota(ir::Type{DType::i32, {4, 1}}, 0), type.shape), 0, 1));
    test.check();
    const auto program = compile(test.k.function);
    for (const Instruction& instruction : program->code)
        EXPECT_FALSE(std::holds_alternative<Pick>(instruction));
}

}  // namespace
}  // namespace tilewright::cpu
