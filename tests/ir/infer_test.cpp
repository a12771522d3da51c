// Type inference: every class of ops returns the documented type or reports what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

using testing::throws;

using ::testing::HasSubstr;

class InferTest : public ::testing::Test {
  protected:
    Value tile(DType dtype, Shape shape) { return b.constant({dtype, shape}, 1); }
    Value index(std::int64_t value) { return b.constant_int({DType::i64, {}}, value); }
    std::string type(Value value) { return to_string(b.type(value)); }

    template <typename Action>
    std::string error(Action&& action) {
        try {
            action();
        } catch (const UserError& e) {
            return e.what();
        }
        return "no error";
    }

    Function f;
    Builder b{f};
};

TEST_F(InferTest, DotAccumulatesNarrowFloatsInF32AndBytesInI32) {
    for (auto [in, out] : {std::pair{DType::f16, "f32[32, 48]"},
                           {DType::bf16, "f32[32, 48]"},
                           {DType::f8e4m3, "f32[32, 48]"},
                           {DType::f32, "f32[32, 48]"},
                           {DType::f64, "f64[32, 48]"},
                           {DType::i8, "i32[32, 48]"},
                           {DType::u8, "i32[32, 48]"},
                           {DType::i64, "i64[32, 48]"}}) {
        EXPECT_EQ(type(b.dot(tile(in, {32, 64}), tile(in, {64, 48}))), out);
    }
}

TEST_F(InferTest, DotTakesBytesWithAndWithoutASignTogether) {
    EXPECT_EQ(type(b.dot(tile(DType::u8, {32, 64}), tile(DType::i8, {64, 48}))), "i32[32, 48]");
    EXPECT_EQ(error([&] {
                  b.dot(tile(DType::i8, {32, 64}), tile(DType::i16, {64, 48}));
              }),
              "[dot] expected b of dtype i8 like a but got i16");
}

TEST_F(InferTest, DotTransposesAndBatches) {
    const Value a = tile(DType::f32, {2, 64, 32}), c = tile(DType::f32, {2, 48, 64});
    EXPECT_EQ(type(b.dot(a, c, {}, {true, true, Precision::ieee})), "f32[2, 32, 48]");
    const Value acc = tile(DType::f32, {2, 32, 48});
    EXPECT_EQ(type(b.dot(a, c, acc, {true, true, Precision::ieee})), "f32[2, 32, 48]");
}

TEST_F(InferTest, DotNamesTheOperandThatDoesNotFit) {
    EXPECT_EQ(error([&] {
                  b.dot(tile(DType::f32, {32, 64}), tile(DType::f32, {48, 128}));
              }),
              "[dot] expected b with 64 rows to match a f32[32, 64] but got f32[48, 128]");
    EXPECT_EQ(error([&] {
                  b.dot(tile(DType::f16, {32, 64}), tile(DType::f32, {64, 128}));
              }),
              "[dot] expected b of dtype f16 like a but got f32");
    EXPECT_EQ(error([&] {
                  b.dot(tile(DType::f16, {32, 64}), tile(DType::f16, {64, 16}),
                        tile(DType::f16, {32, 16}));
              }),
              "[dot] expected acc of type f32[32, 16] but got f16[32, 16]");
}

TEST_F(InferTest, ElementwiseOperandsAgreeExactly) {
    const Value a = tile(DType::f32, {4, 8});
    EXPECT_EQ(type(b.binary(Op::add, a, a)), "f32[4, 8]");
    EXPECT_EQ(type(b.binary(Op::lt, a, a)), "bool[4, 8]");
    EXPECT_EQ(type(b.unary(Op::isnan, a)), "bool[4, 8]");
    EXPECT_EQ(type(b.select(b.constant({DType::boolean, {}}, 1), a, a)), "f32[4, 8]");
    EXPECT_EQ(error([&] { b.binary(Op::add, a, tile(DType::f32, {8})); }),
              "[add] expected operand 1 of type f32[4, 8] but got f32[8]");
    EXPECT_EQ(error([&] { b.unary(Op::exp, tile(DType::i32, {4})); }),
              "[exp] expected operands of float dtype but got i32");
    EXPECT_EQ(error([&] { b.unary(Op::sin, a, true), b.unary(Op::erf, a, true); }),
              "[erf] expected an op with an approximate form for approx = true");
}

TEST_F(InferTest, IndexTilesJoinWhereTheFirstStood) {
    const Value ref = f.add_parameter(RefType{DType::bf16, {10, 20, 30, 40}}, "x");
    const Value rows = tile(DType::i32, {5, 1}), columns = tile(DType::u8, {1, 7});
    const IndexOperand indices[] = {IndexOperand::slice(index(0), 3), IndexOperand::tile(rows),
                                    IndexOperand::scalar(index(1)), IndexOperand::tile(columns)};
    EXPECT_EQ(type(b.load(ref, indices)), "bf16[3, 5, 7]");
    EXPECT_EQ(error([&] { b.load(ref, std::span(indices).first(2)); }),
              "[load] expected 4 indices for ref<bf16[10, 20, 30, 40]> but got 2");
    EXPECT_EQ(error([&] {
                  b.store(ref, indices, tile(DType::bf16, {3, 7, 5}));
              }),
              "[store] expected value of type bf16[3, 5, 7] but got bf16[3, 7, 5]");
    EXPECT_EQ(error([&] { b.load(ref, indices, tile(DType::boolean, {3})); }),
              "[load] expected a mask of type bool[3, 5, 7] (or a bool scalar) but got bool[3]");
}

TEST_F(InferTest, SlicesReachAtMost2To40Elements) {
    const Value ref = f.add_parameter(RefType{DType::f32, {kDynamic}}, "x");
    const auto load = [&](std::int64_t size, std::int64_t stride) {
        const IndexOperand indices[] = {IndexOperand::slice(index(0), size, stride)};
        return type(b.load(ref, indices));
    };
    EXPECT_EQ(load(16, std::int64_t{1} << 36), "f32[16]");
    EXPECT_EQ(load(0, std::int64_t{1} << 40), "f32[0]");
    // Products that wrap around would look smaller than any extent.
    for (std::int64_t stride : {(std::int64_t{1} << 36) + 1, std::int64_t{1} << 61}) {
        EXPECT_EQ(error([&] { load(16, stride); }),
                  "[load] expected a slice of size >= 0 and stride >= 1 with size * stride at most "
                  "2^40 at index 0 but got 16:" +
                      std::to_string(stride));
    }
}

TEST_F(InferTest, AtomicsNeedWideElements) {
    const Value ref = f.add_parameter(RefType{DType::i8, {10}}, "x");
    const IndexOperand indices[] = {IndexOperand::slice(index(0), 3)};
    EXPECT_THAT(error([&] { b.atomic(Op::atomic_add, ref, indices, tile(DType::i8, {3})); }),
                HasSubstr("[atomic_add] expected a Ref of a 4- or 8-byte dtype"));
}

TEST_F(InferTest, ShapeOpsHaveTheirTypes) {
    const Value a = tile(DType::f32, {4, 8});
    const int swap[] = {1, 0}, wrong[] = {0, 0};
    EXPECT_EQ(type(b.transpose(a, swap)), "f32[8, 4]");
    EXPECT_EQ(type(b.expand_dims(a, 2)), "f32[4, 8, 1]");
    EXPECT_EQ(type(b.reshape(a, {2, 16})), "f32[2, 16]");
    EXPECT_EQ(type(b.broadcast(b.expand_dims(a, 0), {3, 4, 8})), "f32[3, 4, 8]");
    EXPECT_EQ(type(b.slice(a, {{1, 0}, {3, 4}, {1, 2}})), "f32[3, 4]");
    const Value parts[] = {a, tile(DType::f32, {4, 2})};
    EXPECT_EQ(type(b.concatenate(parts, 1)), "f32[4, 10]");
    EXPECT_EQ(error([&] { b.transpose(a, wrong); }),
              "[transpose] expected a permutation of the 2 axes of f32[4, 8] but got [0, 0]");
    EXPECT_THAT(error([&] { b.reshape(a, {3, 11}); }), HasSubstr("32 elements"));
    EXPECT_THAT(error([&] { b.broadcast(a, {4, 16}); }), HasSubstr("[broadcast] expected"));
    EXPECT_THAT(error([&] {
                    b.slice(a, {{1, 0}, {4, 4}, {1, 2}});
                }),
                HasSubstr("axis 0 but got start 1, size 4, stride 1"));
    EXPECT_THAT(error([&] { b.concatenate(parts, 0); }), HasSubstr("along axis 0 only"));
}

TEST_F(InferTest, Reductions) {
    const Value a = tile(DType::bf16, {4, 8});
    EXPECT_EQ(type(b.reduce(Reduction::sum, a, 0)), "bf16[8]");
    EXPECT_EQ(type(b.reduce(Reduction::argmax, a, 1)), "i32[4]");
    EXPECT_EQ(type(b.scan(Reduction::sum, a, 1)), "bf16[4, 8]");
    EXPECT_EQ(type(b.sort(a, {1, 3, true})), "bf16[4, 3]");
    EXPECT_EQ(type(b.argsort(a, {0, 4, false})), "i32[4, 8]");
    EXPECT_EQ(error([&] {
                  b.sort(a, {1, 9, false});
              }),
              "[sort] expected a count from 0 to 8 but got 9");
    EXPECT_EQ(type(b.scan(Reduction::logsumexp, a, 1)), "bf16[4, 8]");
    EXPECT_EQ(error([&] { b.reduce(Reduction::logsumexp, a, 1); }),
              "[reduce] expected a kind of reduction but got logsumexp, which is one of scans");
    EXPECT_EQ(error([&] { b.scan(Reduction::logsumexp, tile(DType::i32, {4}), 0); }),
              "[scan] expected a float for logsumexp but got i32");
    EXPECT_EQ(error([&] { b.reduce(Reduction::any, a, 1); }),
              "[reduce] expected bool for any but got bf16");
    EXPECT_EQ(error([&] { b.reduce(Reduction::sum, a, 2); }),
              "[reduce] expected an axis in [0, 2) but got 2");
}

TEST_F(InferTest, ProgramIdsFollowTheGrid) {
    f.grid = {4, kDynamic};
    EXPECT_EQ(type(b.program_id(1)), "i64");
    EXPECT_EQ(error([&] { b.program_id(2); }), "[program_id] expected an axis in [0, 2) but got 2");
}

TEST_F(InferTest, CallBroadcastsScalarsAndTiles) {
    auto mod = std::make_shared<Function>();
    mod->name = "alibi";
    const Value score = mod->add_parameter(Type{DType::f32, {}}, "score");
    mod->add_parameter(Type{DType::i32, {}}, "q");
    Builder inner(*mod);
    inner.yield(std::vector{score});
    const Value arguments[] = {tile(DType::f32, {4, 1}), tile(DType::i32, {1, 8})};
    EXPECT_EQ(to_string(b.type(b.call(mod, arguments)[0])), "f32[4, 8]");
    const Value wrong[] = {arguments[1], arguments[1]};
    EXPECT_EQ(error([&] { b.call(mod, wrong); }),
              "[call] expected argument 0 of @alibi of dtype f32 but got i32[1, 8]");
}

TEST_F(InferTest, ErrorsNameTheSourceLine) {
    b.set_location({"kernel.cpp", 7});
    EXPECT_THAT(error([&] { b.unary(Op::exp, tile(DType::i32, {})); }),
                HasSubstr("(at kernel.cpp:7)"));
}

TEST(Shape, RefusesWhatNoTileCanBe) {
    EXPECT_THAT([&] { (Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}); }, throws("expected rank at most"));
    EXPECT_THAT([&] { (Shape{-1}); }, throws("expected extents >= 0 but got [-1]"));
    EXPECT_THAT(
        [&] {
            (Shape{std::int64_t{1} << 30, std::int64_t{1} << 30});
        },
        throws("expected at most 2^40 elements"));
    EXPECT_EQ(to_string(RefType{DType::f32, {4, kDynamic}}), "ref<f32[4, ?]>");
    EXPECT_EQ(to_string(RefType{DType::i8, {4}, Space::scratch}), "scratch<i8[4]>");
    EXPECT_EQ(to_string(RefType{DType::i8, {}}), "ref<i8>");
}

TEST(Infer, AssociativeScans) {
    Function f;
    Builder b(f);
    const auto mod = [](std::vector<DType> parameters, std::vector<int> yielded) {
        auto made = std::make_shared<Function>();
        made->name = "combine";
        for (const DType dtype : parameters) made->add_parameter(Type{dtype, {}}, "");
        Builder inner(*made);
        std::vector<Value> values;
        for (const int i : yielded)
            values.push_back(made->parameters()[static_cast<std::size_t>(i)]);
        inner.yield(values);
        return made;
    };
    using enum DType;
    const Value x = b.constant({f32, {4, 8}}, 1), n = b.constant({i32, {4, 8}}, 1),
                s = b.constant({f32, {}}, 1);
    const auto scan = [&](const std::shared_ptr<Function>& combine, std::vector<Value> operands,
                          int axis = 1) {
        std::string text;
        for (const Value result : b.associative_scan(combine, operands, axis))
            text += to_string(b.type(result)) + " ";
        return text;
    };
    EXPECT_EQ(scan(mod({f32, i32, f32, i32, f32}, {2, 3}), {x, n, s}), "f32[4, 8] i32[4, 8] ");
    EXPECT_THAT([&] { scan(nullptr, {x}); }, throws("expected a function that combines elements"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, f32}, {0}), {x}, 2);
        },
        throws("[associative_scan] expected an axis in [0, 2) but got 2"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, f32}, {0, 1}), {x});
        },
        throws("expected an operand for each of the 2 values of @combine"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, f32, f32}, {0}), {x});
        },
        throws("expected @combine to have 2 parameters, twice 1 elements and 0 other "
               "values, but got 3"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, i32}, {0}), {x});
        },
        throws("expected a parameter of @combine to be f32 but got i32"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, i32, f32, i32}, {0, 0}), {x, n});
        },
        throws("expected a result of @combine to be i32 but got f32"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, f32, f32, f32}, {0, 1}), {x, s});
        },
        throws("expected operand of type f32[4, 8] but got f32"));
    EXPECT_THAT(
        [&] {
            scan(mod({f32, f32, f32}, {0}), {x, x});
        },
        throws("expected captured value of type f32 but got f32[4, 8]"));
}

TEST(OpTable, NamesRoundTrip) {
    for (int i = 0; i < kNumOps; ++i) {
        const Op op = static_cast<Op>(i);
        EXPECT_EQ(info(op).op, op);
        EXPECT_EQ(parse_op(name(op)), op);
    }
    EXPECT_EQ(parse_op("nonsense"), std::nullopt);
}

}  // namespace
}  // namespace tilewright::ir
