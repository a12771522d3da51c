// Machine code of small tiles gives what the interpreter gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

bool has_machine_code(const ir::Function& function) {
    const auto program = compile(function);
    return std::any_of(program->code.begin(), program->code.end(),
                       [](const Instruction& i) { return std::holds_alternative<MachineCode>(i); });
}

/// True where small tiles are compiled at all.
bool expects_machine_code() {
#if defined(__x86_64__) && defined(__linux__)
    const char* const wanted = std::getenv("TILEWRIGHT_JIT");
    return (kernels().vector_bytes == 64 || kernels().vector_bytes == 32) &&
           (!wanted || std::string_view(wanted) != "0");
#else
    return false;
#endif
}

/// Tiles of one shape, and all that is done to them, by random choices.
struct RandomTiles {
    Agreement test{{3}};
    ir::Builder& b = test.k.b;
    std::mt19937 random;
    ir::Shape shape;
    std::vector<Value> floats, words, masks;

    RandomTiles(unsigned seed, std::int64_t rows, std::int64_t lanes)
        : random(seed), shape{rows, lanes} {
        for (int i = 0; i < 2; ++i) {
            floats.push_back(tile(DType::f32, rows, lanes));
            words.push_back(tile(DType::i32, rows, lanes));
        }
        floats.push_back(spread(tile(DType::f32, 1, lanes)));
        floats.push_back(spread(tile(DType::f32, rows, 1)));
        floats.push_back(b.constant(ir::Type{DType::f32, shape}, -0.0));
        words.push_back(b.iota(ir::Type{DType::i32, shape}, 0));
        words.push_back(b.iota(ir::Type{DType::i32, shape}, 1));
        words.push_back(spread(b.cast(b.program_id(0), DType::i32)));
        masks.push_back(b.binary(Op::le, words[2], words[3]));
    }
    Value tile(DType dtype, std::int64_t rows, std::int64_t lanes) {
        return test.own_tile(dtype, {rows, lanes});
    }
    Value spread(Value value) { return b.broadcast(value, shape); }
    std::size_t pick(std::size_t below) { return random() % below; }
    Value any(const std::vector<Value>& from) { return from[pick(from.size())]; }

    void step() {
        constexpr std::array kArithmetic = {Op::add, Op::sub, Op::mul};
        constexpr std::array kCompare = {Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge};
        constexpr std::array kLogic = {Op::bitwise_and, Op::bitwise_or, Op::bitwise_xor};
        switch (pick(10)) {
            case 0:
            case 1:
                // Products of small numbers are exact, so that fused additions change nothing.
                if (pick(3) == 0) {
                    return floats.push_back(b.binary(Op::mul, floats[pick(4)], floats[pick(4)]));
                }
                return floats.push_back(b.binary(kArithmetic[pick(2)], any(floats), any(floats)));
            case 2:
                return words.push_back(b.binary(kArithmetic[pick(3)], any(words), any(words)));
            case 3:
                return masks.push_back(b.binary(kCompare[pick(6)], any(floats), any(floats)));
            case 4:
                return masks.push_back(b.binary(kCompare[pick(6)], any(words), any(words)));
            case 5:
                return masks.push_back(b.binary(kLogic[pick(3)], any(masks), any(masks)));
            case 6:
                return floats.push_back(b.select(any(masks), any(floats), any(floats)));
            case 7:
                return words.push_back(b.select(any(masks), any(words), any(words)));
            case 8:
                return floats.push_back(b.cast(any(words), DType::f32));
            default: {
                const int axis = static_cast<int>(pick(2));
                const Value chosen = b.select(masks[0], floats[0], floats[4]);
                const Value sum = b.reduce(ir::Reduction::sum, chosen, axis);
                return floats.push_back(spread(b.expand_dims(sum, axis)));
            }
        }
    }
};

TEST(MachineSmallTiles, RandomPrograms) {
    constexpr std::array<std::pair<int, int>, 10> kTileShapes = {
        {{16, 16}, {5, 7}, {1, 16}, {8, 1}, {3, 40}, {4, 60}, {2, 48}, {20, 20}, {6, 64}, {32, 9}}};
    int compiled = 0;
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(6 * kTileShapes.size());
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        const auto [rows, lanes] = kTileShapes[seed % kTileShapes.size()];
        RandomTiles tiles(static_cast<unsigned>(seed), rows, lanes);
        // In a loop, whose body stores nothing.
        Kernel& k = tiles.test.k;
        const std::array init{tiles.floats[0], tiles.words[0]};
        const auto results =
            tiles.b.for_loop(k.index(0), k.index(2), k.index(1), init,
                             [&](Value, std::span<const Value> carries) -> std::vector<Value> {
                                 tiles.floats.push_back(carries[0]);
                                 tiles.words.push_back(carries[1]);
                                 for (int i = 0; i < 12; ++i) tiles.step();
                                 return {tiles.floats.back(), tiles.words.back()};
                             });
        tiles.test.keep(results[0]);
        tiles.test.keep(results[1]);
        tiles.test.check();
        compiled += has_machine_code(tiles.test.k.function);
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "TILEWRIGHT_TEST_SEED=" << seed << ": " << rows << " x " << lanes;
    }
    if (seeds.normal) {
        EXPECT_EQ(compiled > 20, expects_machine_code());
    }
}

// One program of each thread factors a matrix in a loop, whose counter becomes a mask.
TEST(MachineSmallTiles, LoopsFactorMatrices) {
    for (const std::int64_t n : {16, 12, 5, 20}) {
        Agreement test({4});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const ir::Shape square{n, n};
        const auto spread = [&](Value value) { return b.broadcast(value, square); };
        const auto number = [&](double value) {
            return b.constant(ir::Type{DType::f32, square}, value);
        };
        const Value x = test.load_all(test.array(DType::f32, {n, n}));
        const Value row = b.iota(ir::Type{DType::i32, square}, 0),
                    column = b.iota(ir::Type{DType::i32, square}, 1);
        const auto start =
            b.select(b.binary(Op::eq, row, column), b.binary(Op::add, x, number(64)), x);
        const std::array init{start};
        const auto result = b.for_loop(
            k.index(0), k.index(n), k.index(1), init,
            [&](Value iv, std::span<const Value> carries) -> std::vector<Value> {
                const Value a = carries[0], at = spread(b.cast(iv, DType::i32));
                const Value here = b.binary(Op::eq, column, at);
                const Value chosen =
                    b.expand_dims(b.reduce(ir::Reduction::sum, b.select(here, a, number(0)), 1), 1);
                const Value diagonal = b.reduce(
                    ir::Reduction::sum,
                    b.reduce(ir::Reduction::sum,
                             b.select(b.binary(Op::eq, row, at), spread(chosen), number(0)), 1),
                    0);
                const Value l =
                    b.select(b.binary(Op::ge, row, at),
                             b.binary(Op::div, spread(chosen), spread(b.unary(Op::sqrt, diagonal))),
                             number(0));
                const Value across = b.transpose(l, std::array{1, 0});
                const Value next = b.binary(Op::sub, a, b.binary(Op::mul, l, across));
                return {b.select(here, l, next)};
            });
        test.keep(result[0]);
        test.check(1e-5);
        EXPECT_EQ(has_machine_code(k.function), expects_machine_code());
    }
}

}  // namespace
}  // namespace tilewright::cpu
