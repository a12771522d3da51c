// Comparisons of positions near the limits of 32 bits give what the interpreter gives.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;

constexpr std::array kCompare = {Op::ge, Op::gt, Op::le, Op::lt, Op::eq, Op::ne};

/// Tiles of positions: rows and lanes from scalars on that differ between programs, around the
/// largest integer, the smallest one and 0.
struct Positions {
    Agreement test{{12}};
    ir::Builder& b = test.k.b;
    ir::Shape shape;
    ir::Type type;
    Value row, lane, from, x;

    Positions(std::int64_t rows, std::int64_t lanes) : shape{rows, lanes}, type{DType::i32, shape} {
        row = b.iota(type, 0);
        lane = b.iota(type, 1);
        const Value at = b.cast(b.program_id(0), DType::i32);
        // 2^30 * at, which wraps around, a little less.
        from = b.binary(Op::sub, b.binary(Op::mul, at, number(1 << 30)),
                        b.binary(Op::mul, at, number(3)));
        x = test.own_tile(DType::f32, {rows, lanes});
    }
    Value number(std::int64_t value) { return b.constant_int({DType::i32, {}}, value); }
    Value spread(Value value) { return b.broadcast(value, shape); }
    Value constant(double value) { return b.constant(ir::Type{DType::f32, shape}, value); }
};

class MachineWrapping : public testing::TestWithParam<std::pair<std::int64_t, std::int64_t>> {};

TEST_P(MachineWrapping, Selects) {
    for (const Op op : kCompare) {
        Positions p(GetParam().first, GetParam().second);
        ir::Builder& b = p.b;
        const Value down = b.binary(Op::add, p.spread(p.from), p.row),
                    along = b.binary(Op::sub, p.lane, p.spread(p.from));
        // A mask of scores, one of two conditions, and one of a difference.
        const Value here = b.binary(op, down, b.binary(Op::add, p.spread(p.from), p.lane));
        p.test.keep(b.select(here, p.x, p.constant(0.5)));
        const Value both = b.binary(Op::bitwise_and, here, b.binary(op, along, p.row));
        p.test.keep(b.select(both, p.x, p.constant(-2)));
        p.test.keep(b.select(b.binary(op, down, along), p.constant(1), p.x));
        p.test.check();
        ASSERT_FALSE(testing::Test::HasFailure()) << ir::name(op);
    }
}

TEST_P(MachineWrapping, Conditions) {
    for (const Op op : kCompare) {
        Positions p(GetParam().first, GetParam().second);
        ir::Builder& b = p.b;
        const ir::Shape down{GetParam().first, 1}, across{1, GetParam().second};
        const auto line = [&](const ir::Shape& shape, int axis) {
            return b.binary(Op::add, b.broadcast(p.from, shape),
                            b.iota(ir::Type{DType::i32, shape}, axis));
        };
        const auto test = [&](const ir::Shape& shape, int axis) {
            return p.spread(b.binary(op, line(shape, axis), b.broadcast(p.number(4), shape)));
        };
        const Value sum = b.binary(Op::add, p.x, p.constant(1));
        p.test.keep(b.select(test(down, 0), sum, p.constant(3)));
        p.test.keep(b.select(test(across, 1), sum, p.x));
        p.test.check();
        ASSERT_FALSE(testing::Test::HasFailure()) << ir::name(op);
    }
}

// A slope times a distance, with and without a maximum over rows, and positions of 64 bits.
TEST_P(MachineWrapping, Distances) {
    Positions p(GetParam().first, GetParam().second);
    ir::Builder& b = p.b;
    const Value distance = b.binary(Op::add, p.spread(p.from), b.binary(Op::sub, p.row, p.lane));
    const auto biased = [&](Value index) {
        return b.binary(Op::add, p.x,
                        b.binary(Op::mul, p.constant(0.5), b.cast(index, DType::f32)));
    };
    p.test.keep(biased(distance));
    p.test.keep(b.reduce(ir::Reduction::max, biased(distance), 0));
    const Value wide = b.cast(distance, DType::i64);
    p.test.keep(b.select(b.binary(Op::ge, wide, b.cast(p.lane, DType::i64)), p.x, p.constant(7)));
    p.test.check(1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MachineWrapping,
                         testing::Values(std::pair(16, 16), std::pair(3, 5), std::pair(40, 100),
                                         std::pair(5, 512), std::pair(1, 1000), std::pair(70, 64)));

}  // namespace
}  // namespace tilewright::cpu
