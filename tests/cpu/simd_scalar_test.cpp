// The scalar table on values worked out by hand: the meaning of the ops at their edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/simd/kernels.h"
#include "support/small_float.h"
#include "tests/cpu/simd_support.h"
#include "tilewright/error.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ::testing::ElementsAre;

template <typename Out, typename In>
std::vector<Out> run(Op op, DType in, DType out, std::vector<std::vector<In>> operands) {
    StripFunction f = find_kernels("scalar")->elementwise(op, in, out, false);
    EXPECT_NE(f, nullptr);
    std::vector<Out> result(operands[0].size(), Out{77});
    Strip strip;
    strip.rows = 1;
    strip.lanes = static_cast<std::int64_t>(result.size());
    for (std::size_t i = 0; i < operands.size(); ++i) strip.in[i] = {operands[i].data(), 0, 1};
    strip.out = result.data();
    f(strip);
    return result;
}

template <typename T>
std::vector<T> binary(Op op, DType dtype, std::vector<T> a, std::vector<T> b) {
    return run<T, T>(op, dtype, dtype, {a, b});
}

constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Scalar, IntegersWrap) {
    EXPECT_THAT(binary<std::int32_t>(Op::add, i32, {kMax, 1}, {1, 2}), ElementsAre(kMin, 3));
    EXPECT_THAT(binary<std::int8_t>(Op::mul, i8, {127, -128}, {2, -1}), ElementsAre(-2, -128));
    EXPECT_THAT(binary<std::uint16_t>(Op::mul, u16, {65535}, {65535}), ElementsAre(1));
    EXPECT_THAT((run<std::int32_t, std::int32_t>(Op::neg, i32, i32, {{kMin, 5}})),
                ElementsAre(kMin, -5));
    EXPECT_THAT((run<std::int32_t, std::int32_t>(Op::abs, i32, i32, {{kMin, -5}})),
                ElementsAre(kMin, 5));
}

TEST(Scalar, IntegerDivision) {
    EXPECT_THAT(binary<std::int32_t>(Op::div, i32, {7, -7, 5, kMin}, {-2, 2, 0, -1}),
                ElementsAre(-3, -3, -1, kMin));
    EXPECT_THAT(binary<std::uint8_t>(Op::div, u8, {7}, {0}), ElementsAre(255));
    EXPECT_THAT(binary<std::int32_t>(Op::rem, i32, {7, -7, 5, kMin}, {-2, 2, 0, -1}),
                ElementsAre(1, -1, 5, 0));
    EXPECT_THAT(binary<std::int32_t>(Op::floordiv, i32, {7, -7, 5, kMin, 6}, {-2, 2, 0, -1, -3}),
                ElementsAre(-4, -4, -1, kMin, -2));
    EXPECT_THAT(binary<std::int32_t>(Op::floormod, i32, {7, -7, 5, kMin, 6}, {-2, 2, 0, -1, -3}),
                ElementsAre(-1, 1, 5, 0, 0));
}

TEST(Scalar, Shifts) {
    EXPECT_THAT(binary<std::int32_t>(Op::shift_left, i32, {1, 1, 3}, {31, 32, -1}),
                ElementsAre(kMin, 0, 0));
    EXPECT_THAT(binary<std::int32_t>(Op::shift_right, i32, {-8, -8, 8, -1}, {1, 32, 99, -1}),
                ElementsAre(-4, -1, 0, -1));
    EXPECT_THAT(binary<std::uint8_t>(Op::shift_right, u8, {200, 200}, {1, 8}), ElementsAre(100, 0));
}

TEST(Scalar, IntegerPower) {
    EXPECT_THAT(
        binary<std::int32_t>(Op::pow, i32, {3, -2, 2, 2, 1, -1, 0}, {4, 3, 31, 32, -9, -3, 0}),
        ElementsAre(81, -8, kMin, 0, 1, -1, 1));
    EXPECT_THAT(binary<std::int32_t>(Op::pow, i32, {5, 0}, {-1, -1}), ElementsAre(0, 0));
}

TEST(Scalar, FloatDivisionFloors) {
    EXPECT_THAT(binary<float>(Op::floordiv, f32, {7, -7, 6, 1}, {-2, 2, 3, 0}),
                ElementsAre(-4, -4, 2, kInf));
    EXPECT_THAT(binary<float>(Op::floormod, f32, {7, -7, 5.5F}, {-2, 2, 2}),
                ElementsAre(-1, 1, 1.5F));
    EXPECT_THAT(binary<float>(Op::rem, f32, {7, -7}, {-2, 2}), ElementsAre(1, -1));
}

TEST(Scalar, NanPropagatesThroughMinAndMax) {
    for (Op op : {Op::min, Op::max}) {
        const auto r = binary<float>(op, f32, {kNan, 1, kNan}, {1, kNan, kNan});
        for (float x : r) EXPECT_TRUE(std::isnan(x));
    }
}

TEST(Scalar, RoundsTiesToEven) {
    EXPECT_THAT((run<float, float>(Op::round, f32, f32, {{0.5F, 1.5F, 2.5F, -0.5F}})),
                ElementsAre(0, 2, 2, 0));
}

TEST(Scalar, FloatsTruncateAndSaturateToIntegers) {
    EXPECT_THAT((run<std::int32_t, float>(Op::cast, f32, i32, {{1.9F, -1.9F, 3e9F, -kInf, kNan}})),
                ElementsAre(1, -1, kMax, kMin, 0));
    EXPECT_THAT((run<std::uint8_t, float>(Op::cast, f32, u8, {{-1, 255.9F, 256, kInf}})),
                ElementsAre(0, 255, 255, 255));
    EXPECT_THAT((run<std::int64_t, double>(Op::cast, f64, i64, {{9.3e18, -9.3e18}})),
                ElementsAre(std::numeric_limits<std::int64_t>::max(),
                            std::numeric_limits<std::int64_t>::min()));
    EXPECT_THAT((run<std::uint8_t, float>(Op::cast, f32, boolean, {{0, -0.0F, 0.1F, kNan}})),
                ElementsAre(0, 0, 1, 1));
}

TEST(Scalar, CastsRoundOnce) {
    // Just above a tie of bf16, where rounding through f64 first would land on the tie.
    const std::int64_t x = (std::int64_t{257} << 54) + 1;
    EXPECT_EQ((run<std::uint16_t, std::int64_t>(Op::cast, i64, bf16, {{x}})[0]),
              f32_to_bf16(std::ldexp(258.0F, 54)));
    EXPECT_EQ((run<std::uint16_t, double>(Op::cast, f64, bf16, {{257 + 1e-9}})[0]),
              f32_to_bf16(258.0F));
}

TEST(Scalar, NarrowFloatsRoundPerOp) {
    // 256 + 1 is a tie of bf16 (8 bits): to even.
    EXPECT_EQ(binary<std::uint16_t>(Op::add, bf16, {f32_to_bf16(256)}, {f32_to_bf16(1)})[0],
              f32_to_bf16(256));
    EXPECT_EQ(binary<std::uint16_t>(Op::mul, f16, {f32_to_f16(300)}, {f32_to_f16(300)})[0],
              f32_to_f16(kInf));
}

TEST(Scalar, ArgReductionTakesTheFirst) {
    const std::vector<float> x = {1, 5, 5, 2, kNan, kNan};
    float best = 0;
    std::int32_t index = -1;
    Strip strip;
    strip.rows = 1;
    strip.lanes = 4;
    strip.in[0] = {x.data(), 0, 1};
    strip.out = &best;
    strip.accumulator = &index;
    StripFunction f = find_kernels("scalar")->arg_reduce_lanes(ir::Reduction::argmax, f32);
    f(strip);
    EXPECT_EQ(index, 1);
    strip.in[0].data = x.data() + 4;
    strip.lanes = 2;
    strip.immediate[0] = 4;
    f(strip);
    EXPECT_EQ(index, 4);
    EXPECT_TRUE(std::isnan(best));
}

TEST(Kernels, UnknownOpsAreNull) {
    const Kernels& scalar = *find_kernels("scalar");
    EXPECT_EQ(scalar.elementwise(Op::exp, i32, i32, false), nullptr);
    EXPECT_EQ(scalar.elementwise(Op::bitwise_and, f32, f32, false), nullptr);
    EXPECT_EQ(scalar.elementwise(Op::add, f32, f64, false), nullptr);
    EXPECT_EQ(find_kernels("no such table"), nullptr);
}

}  // namespace
}  // namespace tilewright::cpu
