// The reference machine: elementwise ops, movement, reductions, scans, dots, random bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/interpreter.h"
#include "support/small_float.h"
#include "tests/cpu/kernel_fixture.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Reduction;
using ir::Type;
using ir::Value;
using testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Runs `body` on all of `in` (of this dtype and shape) and returns its result, row-major.
template <typename Out, typename In>
std::vector<Out> apply(DType dtype, const std::vector<std::int64_t>& shape, std::vector<In> in,
                       const std::function<Value(ir::Builder&, Value)>& body) {
    Kernel k;
    const Value x = k.ref("x", dtype, shape);
    std::vector<ir::IndexOperand> from, to;
    for (std::int64_t extent : shape) from.push_back(k.slice(0, extent));
    const Value result = body(k.b, k.load(x, from));
    const Type type = k.b.type(result);
    EXPECT_EQ(static_cast<std::size_t>(size_of(type.dtype)), sizeof(Out));
    const std::vector<std::int64_t> extents(type.shape.dims().begin(), type.shape.dims().end());
    for (std::int64_t extent : extents) to.push_back(k.slice(0, extent));
    k.store(k.ref("y", type.dtype, extents), to, result);
    Array<In> input(std::move(in), shape);
    Array<Out> output(std::vector<Out>(static_cast<std::size_t>(type.shape.size())), extents);
    interpret(k.done(), arguments({input.argument(), output.argument()}));
    return output.data;
}

std::vector<std::int32_t> count_to(int n) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
    std::iota(values.begin(), values.end(), 0);
    return values;
}

TEST(InterpreterOps, ElementwiseRoundsPerOp) {
    // 2049 is not an f16: 2048 + 1 rounds to 2048 before 1 is added again.
    const auto result = apply<std::uint16_t, std::uint16_t>(
        DType::f16, {1}, {f32_to_f16(2048)}, [](ir::Builder& b, Value x) {
            const Value one = b.constant({DType::f16, {1}}, 1);
            return b.binary(Op::add, b.binary(Op::add, x, one), one);
        });
    EXPECT_EQ(f16_to_f32(result[0]), 2048.0F);
}

TEST(InterpreterOps, IntegersWrap) {
    const auto result = apply<std::int8_t, std::int8_t>(
        DType::i8, {2}, {127, -128},
        [](ir::Builder& b, Value x) { return b.binary(Op::add, x, x); });
    EXPECT_THAT(result, ElementsAre(-2, 0));
}

TEST(InterpreterOps, CastsBitcastsAndSelect) {
    const auto bits = apply<std::int32_t, float>(
        DType::f32, {2}, {1.0F, -2.0F},
        [](ir::Builder& b, Value x) { return b.bitcast(x, DType::i32); });
    EXPECT_THAT(bits, ElementsAre(0x3f800000, static_cast<std::int32_t>(0xc0000000)));
    const auto casts =
        apply<std::int8_t, float>(DType::f32, {4}, {1.9F, -1.9F, 300.0F, kNaN},
                                  [](ir::Builder& b, Value x) { return b.cast(x, DType::i8); });
    EXPECT_THAT(casts, ElementsAre(1, -1, 127, 0));
    const auto chosen =
        apply<float, float>(DType::f32, {3}, {-1, 0, 2}, [](ir::Builder& b, Value x) {
            const Value zero = b.constant({DType::f32, {3}}, 0);
            return b.select(b.binary(Op::gt, x, zero), x, b.constant({DType::f32, {3}}, 9));
        });
    EXPECT_THAT(chosen, ElementsAre(9, 9, 2));
}

TEST(InterpreterOps, ShapeOpsMoveElements) {
    const auto transposed = apply<std::int32_t, std::int32_t>(
        DType::i32, {2, 3}, count_to(6), [](ir::Builder& b, Value x) {
            const int permutation[] = {1, 0};
            return b.transpose(x, permutation);
        });
    EXPECT_THAT(transposed, ElementsAre(0, 3, 1, 4, 2, 5));
    const auto rotated = apply<std::int32_t, std::int32_t>(
        DType::i32, {2, 1, 3}, count_to(6), [](ir::Builder& b, Value x) {
            const int permutation[] = {2, 0, 1};  // result axis i is operand axis permutation[i]
            return b.transpose(x, permutation);
        });
    EXPECT_THAT(rotated, ElementsAre(0, 3, 1, 4, 2, 5));
    const auto sliced = apply<std::int32_t, std::int32_t>(
        DType::i32, {3, 4}, count_to(12), [](ir::Builder& b, Value x) {
            return b.slice(x, {{1, 0}, {2, 2}, {1, 3}});
        });
    EXPECT_THAT(sliced, ElementsAre(4, 7, 8, 11));
    const auto repeated = apply<std::int32_t, std::int32_t>(
        DType::i32, {2}, count_to(2), [](ir::Builder& b, Value x) {
            return b.broadcast(b.expand_dims(x, 1), {2, 3});
        });
    EXPECT_THAT(repeated, ElementsAre(0, 0, 0, 1, 1, 1));
    const auto joined = apply<std::int32_t, std::int32_t>(
        DType::i32, {2, 2}, count_to(4), [](ir::Builder& b, Value x) {
            const Value parts[] = {x, b.slice(x, {{0, 1}, {2, 1}, {1, 1}})};
            return b.concatenate(parts, 1);
        });
    EXPECT_THAT(joined, ElementsAre(0, 1, 1, 2, 3, 3));
    const auto reshaped = apply<std::int32_t, std::int32_t>(
        DType::i32, {2, 3}, count_to(6), [](ir::Builder& b, Value x) {
            return b.reduce(Reduction::sum, b.reshape(x, {3, 2}), 1);
        });
    EXPECT_THAT(reshaped, ElementsAre(1, 5, 9));
}

TEST(InterpreterOps, IotaCountsAlongItsAxis) {
    const auto rows =
        apply<std::int32_t, std::int32_t>(DType::i32, {}, {0}, [](ir::Builder& b, Value) {
            return b.iota({DType::i32, {2, 2}}, 0);
        });
    EXPECT_THAT(rows, ElementsAre(0, 0, 1, 1));
    const auto floats = apply<float, float>(DType::f32, {}, {0}, [](ir::Builder& b, Value) {
        return b.iota({DType::f32, {2, 2}}, 1);
    });
    EXPECT_THAT(floats, ElementsAre(0, 1, 0, 1));
}

TEST(InterpreterOps, ReduceAlongEveryAxis) {
    for (int axis = 0; axis < 3; ++axis) {
        const auto sums = apply<std::int32_t, std::int32_t>(
            DType::i32, {2, 2, 2}, count_to(8),
            [axis](ir::Builder& b, Value x) { return b.reduce(Reduction::sum, x, axis); });
        const std::vector<std::vector<int>> expected = {
            {4, 6, 8, 10}, {2, 4, 10, 12}, {1, 5, 9, 13}};
        EXPECT_EQ(sums, expected[static_cast<std::size_t>(axis)]);
    }
}

TEST(InterpreterOps, NarrowFloatsAccumulateInF32) {
    // In f16 the sum would stop at 2048.
    const auto sums = apply<std::uint16_t, std::uint16_t>(
        DType::f16, {4096}, std::vector<std::uint16_t>(4096, f32_to_f16(1)),
        [](ir::Builder& b, Value x) { return b.reduce(Reduction::sum, x, 0); });
    EXPECT_EQ(f16_to_f32(sums[0]), 4096.0F);
    const auto scanned = apply<std::uint16_t, std::uint16_t>(
        DType::bf16, {1024}, std::vector<std::uint16_t>(1024, f32_to_bf16(1)),
        [](ir::Builder& b, Value x) { return b.scan(Reduction::sum, x, 0); });
    EXPECT_EQ(bf16_to_f32(scanned[1023]), 1024.0F);
}

TEST(InterpreterOps, ExtremesPropagateNaN) {
    const auto reduce = [](Reduction kind) {
        return [kind](ir::Builder& b, Value x) { return b.reduce(kind, x, 1); };
    };
    const std::vector<float> values = {1, 3, 3, 2, kNaN, kNaN};
    const auto max = apply<float, float>(DType::f32, {2, 3}, values, reduce(Reduction::max));
    EXPECT_EQ(max[0], 3.0F);
    EXPECT_TRUE(std::isnan(max[1]));
    EXPECT_THAT((apply<std::int32_t, float>(DType::f32, {2, 3}, values, reduce(Reduction::argmax))),
                ElementsAre(1, 1));
    EXPECT_THAT((apply<std::int32_t, float>(DType::f32, {2, 3}, values, reduce(Reduction::argmin))),
                ElementsAre(0, 1));
}

TEST(InterpreterOps, EmptyReductionsGiveTheIdentity) {
    const auto reduce = [](Reduction kind) {
        return [kind](ir::Builder& b, Value x) { return b.reduce(kind, x, 0); };
    };
    EXPECT_THAT((apply<float, float>(DType::f32, {0}, {}, reduce(Reduction::prod))),
                ElementsAre(1));
    EXPECT_THAT((apply<float, float>(DType::f32, {0}, {}, reduce(Reduction::max))),
                ElementsAre(-std::numeric_limits<float>::infinity()));
    EXPECT_THAT(
        (apply<std::uint8_t, std::uint8_t>(DType::boolean, {0}, {}, reduce(Reduction::all))),
        ElementsAre(1));
}

TEST(InterpreterOps, Scans) {
    const auto scan = [](bool reverse, bool exclusive) {
        return apply<std::int32_t, std::int32_t>(
            DType::i32, {2, 3}, {1, 2, 3, 4, 5, 6}, [=](ir::Builder& b, Value x) {
                return b.scan(Reduction::sum, x, 1, reverse, exclusive);
            });
    };
    EXPECT_THAT(scan(false, false), ElementsAre(1, 3, 6, 4, 9, 15));
    EXPECT_THAT(scan(true, false), ElementsAre(6, 5, 3, 15, 11, 6));
    EXPECT_THAT(scan(false, true), ElementsAre(0, 1, 3, 0, 4, 9));
    EXPECT_THAT(scan(true, true), ElementsAre(5, 3, 0, 11, 6, 0));
}

TEST(InterpreterOps, DotWithEveryTranspose) {
    // a = [[0, 1, 2], [3, 4, 5]], b = its transpose: a b = [[5, 14], [14, 50]].
    for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
            const auto product = apply<std::int32_t, std::int32_t>(
                DType::i32, {2, 3}, count_to(6), [=](ir::Builder& b, Value x) {
                    const int swap[] = {1, 0};
                    const Value t = b.transpose(x, swap);
                    ir::DotAttributes attributes;
                    attributes.transpose_a = transpose_a;
                    attributes.transpose_b = transpose_b;
                    const Value acc = b.constant_int({DType::i32, {2, 2}}, 100);
                    return b.dot(transpose_a ? t : x, transpose_b ? x : t, acc, attributes);
                });
            EXPECT_THAT(product, ElementsAre(105, 114, 114, 150));
        }
    }
}

TEST(InterpreterOps, BatchedDot) {
    const auto product = apply<std::int32_t, std::int32_t>(DType::i32, {2, 1, 2}, {1, 2, 3, 4},
                                                           [](ir::Builder& b, Value x) {
                                                               ir::DotAttributes attributes;
                                                               attributes.transpose_b = true;
                                                               return b.dot(x, x, {}, attributes);
                                                           });
    EXPECT_THAT(product, ElementsAre(5, 25));
}

TEST(InterpreterOps, NarrowDotsGiveF32) {
    const auto product = apply<float, std::uint16_t>(
        DType::bf16, {1, 512}, std::vector<std::uint16_t>(512, f32_to_bf16(1.0078125F)),
        [](ir::Builder& b, Value x) {
            ir::DotAttributes attributes;
            attributes.transpose_b = true;
            return b.dot(x, x, {}, attributes);
        });
    EXPECT_EQ(product[0], 512 * 1.0078125F * 1.0078125F);
}

TEST(InterpreterOps, IntegerDots) {
    const auto square = [](ir::Builder& b, Value x) {
        ir::DotAttributes attributes;
        attributes.transpose_b = true;
        return b.dot(x, x, {}, attributes);
    };
    // 8-bit operands accumulate in i32, others wrap in their own dtype.
    EXPECT_THAT((apply<std::int32_t, std::int8_t>(DType::i8, {1, 2}, {100, -100}, square)),
                ElementsAre(20000));
    EXPECT_THAT((apply<std::int16_t, std::int16_t>(DType::i16, {1, 2}, {200, 200}, square)),
                ElementsAre(static_cast<std::int16_t>(80000)));
}

TEST(InterpreterOps, RandomBits) {
    // Random123's known answer for key 0 and counter 0 starts with 6627e8d5.
    const auto words =
        apply<std::uint32_t, std::uint64_t>(DType::u64, {2}, {0, 1}, [](ir::Builder& b, Value x) {
            return b.random_bits(b.constant_int({DType::u64, {}}, 0), x);
        });
    EXPECT_EQ(words[0], 0x6627e8d5U);
    EXPECT_NE(words[1], words[0]);
}

}  // namespace
}  // namespace tilewright::cpu
