// Selects by positions, which divide rows into ranges of lanes, against the reference interpreter.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;

/// Runs of a kernel that are divided into ranges.
std::size_t divided_runs(const ir::Function& function) {
    const auto program = compile(function);
    std::size_t result = 0;
    for (const Instruction& instruction : program->code) {
        const auto* chain = std::get_if<Chain>(&instruction);
        if (chain == nullptr) continue;
        result += static_cast<std::size_t>(
            std::count_if(chain->fused.begin(), chain->fused.end(),
                          [](const FusedRun& run) { return !run.by_conditions.empty(); }));
    }
    return result;
}

/// A tile of values chosen by random conditions on positions.
struct RandomSelects {
    Agreement test{{3}};
    ir::Builder& b = test.k.b;
    std::mt19937 random;
    ir::Shape shape;
    DType dtype;
    Value x, y, row, lane, scalar;

    RandomSelects(unsigned seed, DType index, std::int64_t rows, std::int64_t lanes)
        : random(seed), shape{rows, lanes}, dtype(index) {
        x = test.load_all(test.array(DType::f32, {rows, lanes}));
        y = test.load_all(test.array(DType::f32, {rows, lanes}));
        row = b.iota(ir::Type{dtype, shape}, 0);
        lane = b.iota(ir::Type{dtype, shape}, 1);
        const Value limits = test.array(DType::i32, {3});
        const Value limit = test.k.load(limits, {ir::IndexOperand::scalar(b.program_id(0))});
        // At most twice the lanes.
        scalar =
            b.broadcast(b.binary(Op::mul, b.cast(limit, dtype),
                                 b.constant_int({dtype, {}}, std::max<std::int64_t>(lanes / 4, 1))),
                        shape);
    }
    std::size_t pick(std::size_t below) { return random() % below; }
    Value number(std::int64_t value) {
        return b.broadcast(b.constant_int({dtype, {}}, value), shape);
    }
    Value constant(double value) { return b.constant(ir::Type{DType::f32, shape}, value); }
    Value scaled(Value position, std::int64_t factor) {
        return factor == 1 ? position : b.binary(Op::mul, position, number(factor));
    }
    Value comparison() {
        constexpr std::array kCompare = {Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge};
        const Value position = scaled(lane, static_cast<std::int64_t>(pick(3)) + 1);
        const auto somewhere = [&] {
            return static_cast<std::int64_t>(pick(static_cast<std::size_t>(2 * shape[1]))) -
                   shape[1] / 4;
        };
        const std::array others = {
            scalar, row, number(somewhere()),
            b.binary(Op::add, scaled(row, static_cast<std::int64_t>(pick(60))),
                     number(somewhere()))};
        const Value other = others[pick(others.size())];
        const Op op = kCompare[pick(kCompare.size())];
        return pick(2) == 0 ? b.binary(op, position, other) : b.binary(op, other, position);
    }
    Value condition() {
        constexpr std::array kLogic = {Op::bitwise_and, Op::bitwise_or, Op::bitwise_xor};
        Value result = comparison();
        for (std::size_t i = pick(3); i > 0; --i)
            result = b.binary(kLogic[pick(3)], result, comparison());
        return result;
    }
    Value choice() {
        switch (pick(5)) {
            case 0:
                return x;
            case 1:
                return y;
            case 2:
                return b.binary(Op::add, x, y);
            default:
                return constant(pick(2) == 0 ? -1e30 : 2);
        }
    }
};

TEST(MachineRanges, RandomConditions) {
    std::size_t divided = 0;
    unsigned seed = 0;
    for (const auto& [rows, lanes] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 64}, {3, 256}, {17, 300}, {5, 1000}, {40, 512}, {2, 4099}, {64, 2048}, {7, 1}}) {
        for (int round = 0; round < 8; ++round) {
            RandomSelects tile(++seed, round % 2 == 0 ? DType::i32 : DType::i64, rows, lanes);
            ir::Builder& b = tile.b;
            Value result = b.select(tile.condition(), tile.choice(), tile.choice());
            if (tile.pick(2) == 0) result = b.select(tile.condition(), result, tile.choice());
            if (tile.pick(2) == 0)
                result = b.binary(Op::add, b.binary(Op::mul, result, tile.constant(0.5)), tile.y);
            tile.test.keep(result);
            tile.test.check();
            divided += divided_runs(tile.test.k.function);
            ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
        }
    }
    EXPECT_EQ(divided > 20, kernels().fused.run != nullptr) << divided;
}

// As in attention: a causal mask, one with a prefix, and rows that are masked as a whole.
TEST(MachineRanges, Masks) {
    for (const std::int64_t lanes : {512, 777}) {
        for (const std::int64_t limit : {-1, 0, 1, 100, 5000}) {
            RandomSelects tile(1, DType::i32, 33, lanes);
            ir::Builder& b = tile.b;
            const Value causal =
                b.binary(Op::le, tile.lane, b.binary(Op::add, tile.row, tile.number(limit)));
            const Value prefix = b.binary(Op::lt, tile.lane, tile.scalar);
            tile.test.keep(b.select(causal, tile.x, tile.constant(-1e30)));
            tile.test.keep(
                b.select(b.binary(Op::bitwise_or, causal, prefix), tile.x, tile.constant(-1e30)));
            tile.test.keep(
                b.select(b.binary(Op::bitwise_and, causal, prefix), tile.x, tile.constant(-1e30)));
            tile.test.check();
            EXPECT_EQ(divided_runs(tile.test.k.function) > 0, kernels().fused.run != nullptr);
        }
    }
}

// Results that are written past the caches, while the next row's operands are prefetched; the last
// row of the arrays is among those computed.
TEST(MachineRanges, LongArrays) {
    constexpr std::int64_t kRows = 6, kLanes = 1024, kPrograms = 3;
    const std::int64_t n = StoreView::kStreamedBytes / kLanes / 4;
    const auto at = [&](std::int64_t row, std::int64_t lane) {
        return static_cast<std::size_t>(row * kLanes + lane);
    };
    std::vector<float> x(static_cast<std::size_t>(kRows * kLanes)), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i % 1000);
        y[i] = static_cast<float>(i % 77);
    }
    std::vector<float> none(static_cast<std::size_t>(n * kLanes));
    Array<float> first(x, {kRows, kLanes}), second(y, {kRows, kLanes}), out(none, {n, kLanes});
    Kernel k("masked", {kPrograms});
    ir::Builder& b = k.b;
    const ir::Shape shape{kRows / kPrograms, kLanes};
    const Value a = k.ref("x", DType::f32, {kRows, kLanes}),
                c = k.ref("y", DType::f32, {kRows, kLanes}),
                to = k.ref("z", DType::f32, {n, kLanes});
    const Value top = b.binary(Op::mul, b.program_id(0), k.index(shape[0]));
    const std::vector<ir::IndexOperand> block{ir::IndexOperand::slice(top, shape[0]),
                                              k.slice(0, kLanes)};
    const Value base = b.broadcast(b.cast(top, DType::i32), shape);
    const Value row = b.binary(Op::add, b.iota({DType::i32, shape}, 0), base);
    const Value limit = b.binary(Op::mul, row, b.constant_int({DType::i32, shape}, 200));
    const Value early = b.binary(Op::le, b.iota({DType::i32, shape}, 1), limit);
    k.store(to, block, b.select(early, k.load(a, block), k.load(c, block)));
    k.done();
    run(*compile(k.function),
        arguments({first.argument(), second.argument(), out.argument()}, {kPrograms}));
    for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane)
            ASSERT_EQ(out.data[at(r, lane)], (lane <= 200 * r ? x : y)[at(r, lane)])
                << r << ", " << lane;
    }
    EXPECT_EQ(divided_runs(k.function) > 0, kernels().fused.run != nullptr);
}

// Comparisons of vectors whose operands wrap around.
TEST(MachineRanges, PositionsThatWrapAround) {
    RandomSelects tile(1, DType::i32, 5, 512);
    ir::Builder& b = tile.b;
    const Value numbers = tile.test.array(DType::i32, {3});
    const Value number = tile.test.k.load(numbers, {ir::IndexOperand::scalar(b.program_id(0))});
    const auto constant = [&](std::int64_t value) {
        return b.constant_int({DType::i32, {}}, value);
    };
    // Some of its sums with lanes are 2^31 and more.
    const Value large =
        b.binary(Op::sub, constant(2147483647), b.binary(Op::mul, number, constant(40)));
    const ir::Type line{DType::i32, {512}};
    const Value sums = b.binary(Op::add, b.iota(line, 0), b.broadcast(large, line.shape));
    const Value positive = b.binary(Op::ge, sums, b.broadcast(constant(9), line.shape));
    const Value early = b.binary(Op::le, tile.lane, tile.row);
    const Value both =
        b.binary(Op::bitwise_or, b.broadcast(b.reshape(positive, {1, 512}), tile.shape), early);
    tile.test.keep(b.select(both, tile.x, tile.y));
    tile.test.check();
    EXPECT_EQ(divided_runs(tile.test.k.function) > 0, kernels().fused.run != nullptr);
}

// Positions of i64 that vectors of 32 bits do not hold.
TEST(MachineRanges, PositionsBeyond32Bits) {
    RandomSelects tile(1, DType::i64, 1020, 1020);
    ir::Builder& b = tile.b;
    const Value base =
        b.broadcast(b.binary(Op::add, b.cast(b.program_id(0), DType::i64),
                             b.constant_int({DType::i64, {}}, (std::int64_t{1} << 30) - 8)),
                    tile.shape);
    const Value sum = b.binary(Op::add, b.binary(Op::add, tile.scaled(tile.lane, 1 << 20), base),
                               tile.scaled(tile.row, 1 << 20));
    const Value positive = b.binary(Op::ge, sum, tile.number(0));
    tile.test.keep(b.select(positive, tile.x, tile.constant(-1e30)));
    tile.test.keep(b.binary(Op::add, b.cast(positive, DType::f32), tile.y));
    tile.test.check();
}

// Conditions and positions that loops carry.
TEST(MachineRanges, CarriedConditions) {
    RandomSelects tile(1, DType::i32, 5, 512);
    ir::Builder& b = tile.b;
    const ir::Type line{DType::i32, {512}};
    const auto at_least = [&](Value from) {
        return b.binary(Op::ge, b.iota(line, 0), b.broadcast(b.cast(from, DType::i32), line.shape));
    };
    const std::vector<Value> init{tile.x, at_least(tile.test.k.index(100)), b.iota(line, 0)};
    const auto result = b.for_loop(
        tile.test.k.index(0), tile.test.k.index(400), tile.test.k.index(57), init,
        [&](Value iv, std::span<const Value> carries) -> std::vector<Value> {
            const Value spread = b.broadcast(b.reshape(carries[1], {1, 512}), tile.shape);
            const Value place = b.broadcast(b.reshape(carries[2], {1, 512}), tile.shape);
            const Value some = b.select(spread, tile.y, carries[0]);
            const Value other = b.select(b.binary(Op::lt, place, tile.scalar),
                                         b.binary(Op::add, some, tile.x), some);
            return {other, at_least(iv),
                    b.binary(Op::add, carries[2], b.broadcast(b.cast(iv, DType::i32), line.shape))};
        });
    for (const Value value : result) tile.test.keep(value);
    tile.test.check();
}

}  // namespace
}  // namespace tilewright::cpu
