// Products of which a select hides a part.
#include <gtest/gtest.h>

#include "support/small_float.h"
#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;

constexpr std::int64_t kHiddenRows = 96, kHiddenLanes = 192, kHiddenDepth = 32, kHiddenPrograms = 4;
constexpr const char* kInPart = " in part";

/// Program i stores x y^T where position row + 50 i is at least that of the lane, and -2 elsewhere.
/// `reads` may use the product itself.
struct HiddenProduct {
    Kernel k{"hidden", {kHiddenPrograms}};
    Value x, y, out;

    template <typename Reads>
    explicit HiddenProduct(const Reads& reads) {
        ir::Builder& b = k.b;
        x = k.ref("x", DType::bf16, {kHiddenRows, kHiddenDepth});
        y = k.ref("y", DType::bf16, {kHiddenLanes, kHiddenDepth});
        out = k.ref("out", DType::f32, {kHiddenPrograms, kHiddenRows, kHiddenLanes});
        const Value rows = k.load(x, {k.slice(0, kHiddenRows), k.slice(0, kHiddenDepth)});
        const Value lanes = k.load(y, {k.slice(0, kHiddenLanes), k.slice(0, kHiddenDepth)});
        const Value product = b.dot(rows, lanes, {}, {.transpose_b = true});
        // Positions come after the product, as they do in attention.
        const ir::Shape shape{kHiddenRows, kHiddenLanes};
        const Value first = b.binary(Op::mul, b.program_id(0), k.index(50));
        const auto along = [&](std::int64_t size, int axis) {
            return b.broadcast(b.expand_dims(b.iota({DType::i64, {size}}, 0), 1 - axis), shape);
        };
        const Value row = b.binary(Op::add, along(kHiddenRows, 0), b.broadcast(first, shape));
        const Value attends = b.binary(Op::ge, row, along(kHiddenLanes, 1));
        const Value hidden = b.constant({DType::f32, shape}, -2);
        const Value shown = b.select(attends, product, hidden);
        k.store(out,
                {IndexOperand::scalar(b.program_id(0)), k.slice(0, kHiddenRows),
                 k.slice(0, kHiddenLanes)},
                b.unary(Op::exp, reads(b, shown, product)));
        k.done();
    }
    std::string listing() const { return to_string(*compile(k.function)); }
};

const auto kSelected = [](ir::Builder&, Value shown, Value) { return shown; };

TEST(Unread, ElementsThatSelectsReplaceAreLeftOut) {
    if (kernels().gemm_bf16_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    const std::string part = HiddenProduct(kSelected).listing();
    EXPECT_NE(part.find(kInPart), std::string::npos) << part;
    const auto sum = [](ir::Builder& b, Value shown, Value product) {
        return b.binary(Op::add, shown, product);
    };
    const std::string whole = HiddenProduct(sum).listing();
    EXPECT_EQ(whole.find(kInPart), std::string::npos) << whole;
}

TEST(Unread, ResultsAreThoseOfTheInterpreter) {
    const HiddenProduct hidden(kSelected);
    std::mt19937 random(1);
    const auto numbers = [&](std::int64_t rows) {
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(rows * kHiddenDepth));
        for (auto& v : bits) v = f32_to_bf16(static_cast<float>(random() % 17) / 8 - 1);
        return Array<std::uint16_t>(bits, {rows, kHiddenDepth});
    };
    Array<std::uint16_t> x = numbers(kHiddenRows), y = numbers(kHiddenLanes);
    const std::vector<std::int64_t> shape{kHiddenPrograms, kHiddenRows, kHiddenLanes};
    const std::vector<float> nothing(
        static_cast<std::size_t>(kHiddenPrograms * kHiddenRows * kHiddenLanes));
    Array<float> want(nothing, shape), have(nothing, shape);
    const auto with = [&](Array<float>& out) {
        ir::Arguments all = arguments({x.argument(), y.argument(), out.argument()});
        all.grid = hidden.k.function.grid;
        return all;
    };
    interpret(hidden.k.function, with(want));
    run(*compile(hidden.k.function), with(have));
    for (std::size_t i = 0; i < have.data.size(); ++i) {
        ASSERT_NEAR(have.data[i], want.data[i], 1e-5F * want.data[i]) << i;
    }
}

}  // namespace
}  // namespace tilewright::cpu
