// The builder: structured control flow and the function that results.
#include "ir/builder.h"

#include <gtest/gtest.h>

#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

using testing::throws;

const Type kIndex{DType::i64, {}};

TEST(Builder, ForLoopCarriesValues) {
    Function f;
    Builder b(f);
    const Value zero = b.constant_int(kIndex, 0), ten = b.constant_int(kIndex, 10),
                one = b.constant_int(kIndex, 1);
    const Value init[] = {b.constant({DType::f32, {8}}, 0)};
    const auto results = b.for_loop(zero, ten, one, init, [&](Value iv, auto carries) {
        EXPECT_EQ(b.type(iv), kIndex);
        return std::vector{b.unary(Op::exp, carries[0])};
    });
    b.yield({});
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(to_string(b.type(results[0])), "f32[8]");
    const Instruction& loop = f.body.body.at(4);
    EXPECT_EQ(loop.op, Op::for_loop);
    EXPECT_EQ(loop.blocks.at(0).terminator().op, Op::yield);
    EXPECT_EQ(loop.blocks.at(0).body.size(), 2u);
}

TEST(Builder, BranchesMustYieldTheSameTypes) {
    Function f;
    Builder b(f);
    const Value yes = b.constant({DType::boolean, {}}, 1);
    const auto make = [&](DType dtype) {
        return [&b, dtype] { return std::vector{b.constant({dtype, {}}, 1)}; };
    };
    EXPECT_EQ(b.if_else(yes, make(DType::f32), make(DType::f32)).size(), 1u);
    EXPECT_THAT([&] { b.if_else(yes, make(DType::f32), make(DType::i32)); },
                throws("of types [f32] but number 0 is i32"));
    // The failed attempt leaves the builder at the outer block.
    EXPECT_EQ(&b.block(), &f.body);
}

TEST(Builder, WhileLoopChecksItsCondition) {
    Function f;
    Builder b(f);
    const Value init[] = {b.constant_int(kIndex, 5)};
    const auto decrement = [&](std::span<const Value> carries) {
        return std::vector{b.binary(Op::sub, carries[0], b.constant_int(kIndex, 1))};
    };
    const auto positive = [&](std::span<const Value> carries) {
        return b.binary(Op::gt, carries[0], b.constant_int(kIndex, 0));
    };
    EXPECT_EQ(b.while_loop(init, positive, decrement).size(), 1u);
    EXPECT_THAT(
        [&] {
            b.while_loop(
                init, [](auto carries) { return carries[0]; }, decrement);
        },
        throws("expected conditions of types [bool] but number 0 is i64"));
}

TEST(Builder, ConversionsToTheSameTypeAreFree) {
    Function f;
    Builder b(f);
    const Value a = b.constant({DType::f32, {4}}, 1);
    EXPECT_EQ(b.cast(a, DType::f32), a);
    EXPECT_EQ(b.broadcast(a, {4}), a);
    EXPECT_EQ(b.reshape(a, {4}), a);
    EXPECT_EQ(f.body.body.size(), 1u);
}

TEST(Builder, ConstantsAreRoundedToTheirDtype) {
    Function f;
    Builder b(f);
    b.constant({DType::bf16, {}}, 0.1);
    b.constant_int({DType::i8, {}}, -1);
    EXPECT_EQ(f.body.body[0].get<ConstantAttributes>().bits, 0x3fb9a00000000000u);
    EXPECT_EQ(f.body.body[1].get<ConstantAttributes>().bits, ~std::uint64_t{0});
    EXPECT_THAT(
        [&] {
            b.constant_int({DType::i8, {}}, 128);
        },
        throws("expected a value of i8 but got 128"));
    EXPECT_THAT(
        [&] {
            b.constant({DType::u8, {}}, 0.5);
        },
        throws("expected a value of u8 but got 0.5"));
}

}  // namespace
}  // namespace tilewright::ir
