// Loops on small tiles that become straight machine code give what the interpreter gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "tests/cpu/agreement.h"
#include "tests/support/seeds.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;

/// True where loops that this file has become code at all.
bool expects_code() {
#if defined(__x86_64__) && defined(__linux__)
    const char* const wanted = std::getenv("TILEWRIGHT_JIT");
    return (kernels().vector_bytes == 64 || kernels().vector_bytes == 32) &&
           (wanted == nullptr || std::string_view(wanted) != "0");
#else
    return false;
#endif
}

struct Loops {
    int all = 0, left = 0;  ///< `left`: not among the instructions that machine code replaces
};
Loops loops_of(const ir::Function& function) {
    const auto program = compile(function);
    Loops loops;
    std::size_t replaced = 0;
    for (std::size_t at = 0; at < program->code.size(); ++at) {
        if (const auto* code = std::get_if<MachineCode>(&program->code[at]))
            replaced = std::max(replaced, at + 1 + code->count);
        if (!std::holds_alternative<LoopTest>(program->code[at])) continue;
        ++loops.all;
        loops.left += at >= replaced;
    }
    return loops;
}

/// Random steps on tiles of one shape, in loops. Every result is exact, or rounded once: the
/// interpreter neither joins products and additions nor changes the order of sums.
struct RandomLoops {
    Agreement test{{2}};
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    std::mt19937 random;
    ir::Shape shape;
    std::vector<Value> sums, products, words;  ///< floats: `products` are not added to anything
    std::vector<Value> counters;               ///< i32

    RandomLoops(unsigned seed, std::int64_t rows, std::int64_t lanes)
        : random(seed), shape{rows, lanes} {
        for (int i = 0; i < 2; ++i) {
            sums.push_back(test.own_tile(DType::f32, {rows, lanes}));
            words.push_back(test.own_tile(DType::i32, {rows, lanes}));
        }
        words.push_back(b.iota(ir::Type{DType::i32, shape}, 0));
        words.push_back(b.iota(ir::Type{DType::i32, shape}, 1));
        products.push_back(number(0.75));
        counters.push_back(b.cast(b.program_id(0), DType::i32));
        counters.push_back(b.constant(ir::Type{DType::i32, {}}, 2));
    }
    Value number(double value) { return b.constant(ir::Type{DType::f32, shape}, value); }
    std::size_t pick(std::size_t below) { return random() % below; }
    Value any(const std::vector<Value>& from) { return from[pick(from.size())]; }
    Value any_float() { return pick(3) == 0 ? any(products) : any(sums); }
    Value spread(Value value) { return b.broadcast(value, shape); }
    Value condition() {
        constexpr std::array kCompare = {Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge};
        if (pick(3) == 0) return b.binary(kCompare[pick(6)], any(sums), any_float());
        return b.binary(kCompare[pick(6)], words[2 + pick(2)], spread(any(counters)));
    }
    /// A row, or column, at a counter; outside it is zero.
    Value line(Value x, int axis) {
        ir::Shape along{1, 1};
        along = axis == 0 ? ir::Shape{shape[0], 1} : ir::Shape{1, shape[1]};
        const Value iota = b.iota(ir::Type{DType::i32, along}, axis);
        const Value here = b.binary(Op::eq, iota, b.broadcast(any(counters), along));
        const Value sum = b.reduce(ir::Reduction::sum, b.select(spread(here), x, number(0)), axis);
        return b.expand_dims(sum, axis);
    }

    void step() {
        switch (pick(9)) {
            case 0:
                return sums.push_back(b.binary(Op::add, any(sums), any(sums)));
            case 1:
                return sums.push_back(b.binary(Op::sub, any(sums), any_float()));
            case 2:
                return products.push_back(b.binary(Op::mul, any_float(), any_float()));
            case 3:
                return sums.push_back(b.binary(Op::div, any_float(), any_float()));
            case 4:
                return sums.push_back(b.select(condition(), any(sums), any(sums)));
            case 5:
                return words.push_back(b.binary(Op::add, any(words), spread(any(counters))));
            case 6: {
                const Value root = b.unary(Op::sqrt, line(any(sums), static_cast<int>(pick(2))));
                return sums.push_back(spread(root));
            }
            case 7: {
                if (shape[0] != shape[1]) return sums.push_back(spread(line(any(sums), 0)));
                const Value across = b.transpose(line(any(sums), 1), std::array{1, 0});
                return products.push_back(
                    b.binary(Op::mul, spread(across), spread(line(any(sums), 1))));
            }
            default:
                return sums.push_back(spread(line(any(sums), static_cast<int>(pick(2)))));
        }
    }

    /// A loop of `steps` random steps and, up to `depth`, loops in it.
    void loop(int steps, int depth) {
        struct Bounds {
            std::int64_t low, high, step;
        };
        constexpr std::array<Bounds, 5> kBounds = {
            {{0, 3, 1}, {1, 8, 3}, {5, 5, 1}, {-1, 2, 1}, {0, 16, 9}}};
        const Bounds bounds = kBounds[pick(kBounds.size())];
        const auto outer_sums = sums, outer_products = products, outer_words = words,
                   outer_counters = counters;
        const std::array init{sums[0], words[0]};
        const auto results =
            b.for_loop(k.index(bounds.low), k.index(bounds.high), k.index(bounds.step), init,
                       [&](Value iv, std::span<const Value> carries) -> std::vector<Value> {
                           counters.push_back(b.cast(iv, DType::i32));
                           sums.push_back(carries[0]);
                           words.push_back(carries[1]);
                           for (int i = 0; i < steps; ++i) step();
                           if (depth > 0) loop(steps, depth - 1);
                           for (int i = 0; i < 2; ++i) step();
                           return {sums.back(), words.back()};
                       });
        sums = outer_sums;
        products = outer_products;
        words = outer_words;
        counters = outer_counters;
        sums.push_back(results[0]);
        words.push_back(results[1]);
    }
};

TEST(MachineSmallLoops, RandomLoops) {
    constexpr std::array<std::pair<int, int>, 9> kLoopShapes = {
        {{16, 16}, {5, 5}, {1, 16}, {7, 20}, {20, 20}, {4, 60}, {32, 9}, {16, 1}, {32, 32}}};
    int all = 0, left = 0;
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(8 * kLoopShapes.size());
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const auto [rows, lanes] = kLoopShapes[seed % kLoopShapes.size()];
        RandomLoops tiles(static_cast<unsigned>(seed), rows, lanes);
        tiles.loop(6, static_cast<int>(seed / kLoopShapes.size() % 3));
        tiles.loop(4, 0);
        tiles.test.keep(tiles.sums.back());
        tiles.test.keep(tiles.words.back());
        tiles.test.check();
        const Loops loops = loops_of(tiles.k.function);
        all += loops.all;
        left += loops.left;
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "TILEWRIGHT_TEST_SEED=" << seed << ": " << rows << " x " << lanes;
    }
    if (seeds.normal) {
        EXPECT_EQ(left + 10 < all, expects_code()) << left << " of " << all;
    }
}

/// A step of a factorisation by columns, like those of `bench cpu`.
std::vector<Value> eliminate(ir::Builder& b, std::int64_t n, Value iv, Value a) {
    const ir::Shape square{n, n};
    const ir::Type type{DType::f32, square};
    const auto spread = [&](Value value) { return b.broadcast(value, square); };
    const Value zero = b.constant(type, 0), at = spread(b.cast(iv, DType::i32));
    const Value row = b.iota(ir::Type{DType::i32, square}, 0),
                column = b.iota(ir::Type{DType::i32, square}, 1);
    const auto sum = [&](Value x, int axis) {
        return b.expand_dims(b.reduce(ir::Reduction::sum, x, axis), axis);
    };
    const Value on_row = b.binary(Op::eq, row, at), on_column = b.binary(Op::eq, column, at);
    const Value left = sum(b.select(on_column, a, zero), 1);
    const Value top = sum(b.select(on_row, a, zero), 0);
    const Value rows = b.iota(ir::Type{DType::i32, {n, 1}}, 0);
    const Value here = b.binary(Op::eq, rows, b.broadcast(b.cast(iv, DType::i32), {n, 1}));
    const Value diagonal =
        sum(b.select(here, left, b.constant(ir::Type{DType::f32, {n, 1}}, 0)), 0);
    const Value below = b.binary(Op::gt, row, at);
    const Value l = b.select(below, b.binary(Op::div, spread(left), spread(diagonal)), zero);
    const Value right = b.select(b.binary(Op::gt, column, at), spread(top), zero);
    const Value next = b.binary(Op::sub, a, b.binary(Op::mul, l, right));
    return {b.select(b.binary(Op::bitwise_and, on_column, below), l, next)};
}

Value diagonal_added(ir::Builder& b, std::int64_t n, Value x) {
    const ir::Shape square{n, n};
    const Value row = b.iota(ir::Type{DType::i32, square}, 0),
                column = b.iota(ir::Type{DType::i32, square}, 1);
    return b.select(b.binary(Op::eq, row, column),
                    b.binary(Op::add, x, b.constant(ir::Type{DType::f32, square}, 64)), x);
}

// Results go straight to arrays, also where a tile reaches outside of them.
TEST(MachineSmallLoops, TilesAtTheEdge) {
    for (const std::int64_t n : {16, 12, 5, 20, 24}) {
        for (const std::int64_t extent : {2 * n, 2 * n - 3}) {
            Agreement test({2, 2});
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Value in = test.array(DType::f32, {extent, extent}),
                        out = test.array(DType::f32, {extent, extent});
            std::vector<ir::IndexOperand> indices;
            for (const int axis : {0, 1}) {
                const Value start = b.binary(Op::mul, b.program_id(axis), k.index(n));
                indices.push_back(ir::IndexOperand::slice(start, n));
            }
            const std::array init{diagonal_added(b, n, k.load(in, indices))};
            const auto result = b.for_loop(
                k.index(0), k.index(n), k.index(1), init,
                [&](Value iv, std::span<const Value> a) { return eliminate(b, n, iv, a[0]); });
            k.store(out, indices, result[0]);
            test.check();
            EXPECT_EQ(loops_of(k.function).left == 0, expects_code());
            ASSERT_FALSE(testing::Test::HasFailure()) << n << ' ' << extent;
        }
    }
}

// A column is a sum over zeros elsewhere, so that its own zeros are positive: also where its first
// element is such a sum already, and others are not.
TEST(MachineSmallLoops, ZerosOfPickedColumnsArePositive) {
    for (const std::int64_t n : {16, 12}) {
        Agreement test({2});
        ir::Builder& b = test.k.b;
        const ir::Shape square{n, n};
        const ir::Type type{DType::f32, square};
        const Value zero = b.constant(type, 0);
        const Value row = b.iota(ir::Type{DType::i32, square}, 0),
                    column = b.iota(ir::Type{DType::i32, square}, 1);
        const Value x = test.own_tile(DType::f32, {n, n});
        const auto negative_zeros = [&] {
            const Value any = test.own_tile(DType::f32, {n, n});
            return b.binary(Op::mul, b.binary(Op::sub, any, any), b.constant(type, -2));
        };
        const auto spread_sum = [&](Value from, int axis) {
            return b.broadcast(b.expand_dims(b.reduce(ir::Reduction::sum, from, axis), axis),
                               square);
        };
        const std::array init{x, negative_zeros(), negative_zeros()};
        const auto results = b.for_loop(
            test.k.index(0), test.k.index(3), test.k.index(1), init,
            [&](Value iv, std::span<const Value> carries) -> std::vector<Value> {
                const Value at = b.broadcast(b.cast(iv, DType::i32), square);
                const Value top = spread_sum(b.select(b.binary(Op::eq, row, at), x, zero), 0);
                const Value sums = b.binary(Op::add, carries[1], carries[2]);
                const Value mixed = b.select(b.binary(Op::eq, row, at), top, sums);
                const Value picked =
                    spread_sum(b.select(b.binary(Op::eq, column, at), mixed, zero), 1);
                const Value inverse = b.binary(Op::div, b.constant(type, 1), picked);
                return {b.binary(Op::add, carries[0], inverse), carries[2], carries[1]};
            });
        test.keep(results[0]);
        test.check();
        ASSERT_FALSE(testing::Test::HasFailure()) << n;
    }
}

// More vectors than the stack of one function has are parts of several.
TEST(MachineSmallLoops, ManyTilesAreSeveralFunctions) {
    Agreement test({2});
    ir::Builder& b = test.k.b;
    const ir::Shape shape{32, 32};
    std::vector<Value> tiles;
    for (int i = 0; i < 6; ++i) tiles.push_back(test.own_tile(DType::f32, {32, 32}));
    const Value half = b.constant(ir::Type{DType::f32, shape}, 0.5);
    for (std::size_t i = 0; i < 60; ++i) {
        Value& to = tiles[(5 * i + 1) % 6];
        const Value from = tiles[i % 6];
        const Value top = b.expand_dims(
            b.reduce(ir::Reduction::sum, b.select(b.binary(Op::gt, from, to), half, to), 0), 0);
        to = b.binary(Op::sub, b.binary(Op::sub, from, b.broadcast(top, shape)), tiles[i % 5]);
    }
    for (const Value tile : tiles) test.keep(tile);
    const auto program = compile(test.k.function);
    std::size_t replaced = 0, longest = 0;
    for (const Instruction& instruction : program->code) {
        const auto* const code = std::get_if<MachineCode>(&instruction);
        replaced += code != nullptr ? code->count : 0;
        longest = std::max(longest, code != nullptr ? code->count : 0);
    }
    EXPECT_EQ(replaced > 60, expects_code()) << to_string(*program);
    test.check(1e-3);
}

// Scalars without tiles are looked at once or twice: not from each of them on.
TEST(MachineSmallLoops, ManyScalarsCompileQuickly) {
    Agreement test;
    ir::Builder& b = test.k.b;
    const Value x = test.array(DType::f32, {1});
    const std::vector<ir::IndexOperand> place = {ir::IndexOperand::scalar(test.k.index(0))};
    const Value factor = test.k.load(x, place);
    Value sum = factor;
    for (int i = 0; i < 2000; ++i) sum = b.binary(Op::sub, b.binary(Op::div, sum, factor), factor);
    test.k.store(x, place, sum);
    test.k.done();
    const auto start = std::chrono::steady_clock::now();
    compile(test.k.function);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// Bounds that the program computes, and conditions, keep the loop.
TEST(MachineSmallLoops, LoopsThatStay) {
    for (const bool conditional : {false, true}) {
        Agreement test({3});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const std::array init{diagonal_added(b, 16, test.own_tile(DType::f32, {16, 16}))};
        const Value high =
            conditional ? k.index(16) : b.binary(Op::add, b.program_id(0), k.index(9));
        const auto result = b.for_loop(
            k.index(0), high, k.index(1), init,
            [&](Value iv, std::span<const Value> a) -> std::vector<Value> {
                if (!conditional) return eliminate(b, 16, iv, a[0]);
                const Value odd = b.binary(Op::gt, iv, b.program_id(0));
                return b.if_else(
                    odd, [&]() -> std::vector<Value> { return eliminate(b, 16, iv, a[0]); },
                    [&]() -> std::vector<Value> { return {a[0]}; });
            });
        test.keep(result[0]);
        test.check();
        EXPECT_EQ(loops_of(k.function).left, 1);
    }
}

}  // namespace
}  // namespace tilewright::cpu
