// Scalar semantics against the statements of docs/reference/ir.md.
#include "ir/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::int64_t ints(Op op, DType dtype, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) {
    const std::uint64_t operands[] = {static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b),
                                      static_cast<std::uint64_t>(c)};
    const bool compares = info(op).op_class == OpClass::comparison;
    return static_cast<std::int64_t>(
        evaluate(op, dtype, compares ? DType::boolean : dtype, operands));
}

double floats(Op op, DType dtype, double a, double b = 0, double c = 0) {
    const std::uint64_t operands[] = {encode(dtype, a), encode(dtype, b), encode(dtype, c)};
    return decode(dtype, evaluate(op, dtype, dtype, operands));
}

std::uint64_t cast_float(DType in, DType out, double value) {
    const std::uint64_t bits = encode(in, value);
    return evaluate(Op::cast, in, out, &bits);
}

TEST(Evaluate, IntegersWrap) {
    EXPECT_EQ(ints(Op::add, DType::i8, 127, 1), -128);
    EXPECT_EQ(ints(Op::mul, DType::u16, 65535, 65535), 1);
    EXPECT_EQ(ints(Op::neg, DType::i32, INT32_MIN), INT32_MIN);
    EXPECT_EQ(ints(Op::abs, DType::i64, INT64_MIN), INT64_MIN);
    EXPECT_EQ(ints(Op::sub, DType::u8, 0, 1), 255);
    EXPECT_EQ(ints(Op::sign, DType::i16, -7), -1);
    EXPECT_EQ(ints(Op::sign, DType::u64, -7), 1);
    EXPECT_EQ(ints(Op::bitwise_not, DType::u8, 1), 254);
    EXPECT_EQ(ints(Op::bitwise_not, DType::boolean, 1), 0);
}

TEST(Evaluate, IntegerDivisionFollowsXla) {
    EXPECT_EQ(ints(Op::div, DType::i32, 7, 0), -1);
    EXPECT_EQ(ints(Op::div, DType::u8, 7, 0), 255);
    EXPECT_EQ(ints(Op::floordiv, DType::i32, -7, 0), -1);
    EXPECT_EQ(ints(Op::rem, DType::i32, 7, 0), 7);
    EXPECT_EQ(ints(Op::floormod, DType::i32, -7, 0), -7);
    for (DType dtype : {DType::i8, DType::i16, DType::i32, DType::i64}) {
        const auto lowest = static_cast<std::int64_t>(identity(Reduction::max, dtype));
        EXPECT_EQ(ints(Op::div, dtype, lowest, -1), lowest);
        EXPECT_EQ(ints(Op::floordiv, dtype, lowest, -1), lowest);
        EXPECT_EQ(ints(Op::rem, dtype, lowest, -1), 0);
    }
    EXPECT_EQ(ints(Op::div, DType::i32, -7, 2), -3);
    EXPECT_EQ(ints(Op::floordiv, DType::i32, -7, 2), -4);
    EXPECT_EQ(ints(Op::rem, DType::i32, -7, 2), -1);
    EXPECT_EQ(ints(Op::floormod, DType::i32, -7, 2), 1);
    EXPECT_EQ(ints(Op::floormod, DType::i32, 7, -2), -1);
    EXPECT_EQ(ints(Op::floordiv, DType::u64, -7, 2), INT64_MAX - 3);
}

TEST(Evaluate, ShiftsByTheWidthOrMore) {
    EXPECT_EQ(ints(Op::shift_left, DType::i32, 1, 31), INT32_MIN);
    EXPECT_EQ(ints(Op::shift_left, DType::i32, 1, 32), 0);
    EXPECT_EQ(ints(Op::shift_left, DType::i8, 1, -1), 0);
    EXPECT_EQ(ints(Op::shift_right, DType::i8, -128, 8), -1);
    EXPECT_EQ(ints(Op::shift_right, DType::u8, 128, 8), 0);
    EXPECT_EQ(ints(Op::shift_right, DType::u8, 128, 7), 1);
    EXPECT_EQ(ints(Op::shift_right, DType::i64, -5, 1), -3);
}

TEST(Evaluate, ComparisonsKnowSigns) {
    EXPECT_EQ(ints(Op::lt, DType::i8, -1, 0), 1);
    EXPECT_EQ(ints(Op::lt, DType::u64, -1, 0), 0);
    EXPECT_EQ(floats(Op::eq, DType::f32, kNan, kNan), 0);
    const std::uint64_t nans[] = {encode(DType::f32, kNan), encode(DType::f32, kNan)};
    EXPECT_EQ(evaluate(Op::ne, DType::f32, DType::boolean, nans), 1u);
    EXPECT_EQ(evaluate(Op::isnan, DType::f32, DType::boolean, nans), 1u);
}

TEST(Evaluate, MinAndMaxPropagateNan) {
    for (Op op : {Op::min, Op::max}) {
        EXPECT_TRUE(std::isnan(floats(op, DType::f32, kNan, 1)));
        EXPECT_TRUE(std::isnan(floats(op, DType::f64, 1, kNan)));
    }
    EXPECT_EQ(floats(Op::clamp, DType::f32, 5, 0, 3), 3);
    EXPECT_EQ(floats(Op::clamp, DType::f32, 5, 4, 3), 3);
    EXPECT_EQ(ints(Op::clamp, DType::u8, 200, 0, 100), 100);
}

TEST(Evaluate, NarrowFloatsRoundOncePerOp) {
    EXPECT_EQ(floats(Op::add, DType::bf16, 256, 1), 256);  // 257 ties to even
    EXPECT_EQ(floats(Op::add, DType::f16, 65504, 65504), kInf);
    EXPECT_TRUE(std::isnan(floats(Op::add, DType::f8e4m3, 448, 448)));
    EXPECT_EQ(floats(Op::add, DType::f32, 16777216, 1), 16777216);
    EXPECT_EQ(floats(Op::round, DType::f32, 2.5), 2);
    EXPECT_EQ(floats(Op::floormod, DType::f32, -7, 2), 1);
    EXPECT_EQ(floats(Op::floordiv, DType::f32, -7, 2), -4);
    EXPECT_EQ(floats(Op::rem, DType::f32, -7, 2), -1);
}

TEST(Evaluate, NextAfterStepsInTheFormatOfItsOperands) {
    const auto next = [](DType dtype, double a, double b) {
        return floats(Op::nextafter, dtype, a, b);
    };
    EXPECT_EQ(next(DType::f64, 1, 2), std::nextafter(1.0, 2.0));
    EXPECT_EQ(next(DType::f32, 1, -2), std::nextafter(1.0F, -2.0F));
    EXPECT_EQ(next(DType::bf16, 1, 2), 1 + 0x1p-7);
    EXPECT_EQ(next(DType::f16, 1, 0), 1 - 0x1p-11);
    EXPECT_EQ(next(DType::f16, -1, -2), -1 - 0x1p-10);
    EXPECT_EQ(next(DType::f8e4m3, 1, 2), 1 + 0x1p-3);
    EXPECT_EQ(next(DType::f8e5m2, 4, 0), 3.5);
    EXPECT_EQ(next(DType::f16, 0x1p-14, 0), 0x1p-14 - 0x1p-24);
    EXPECT_EQ(next(DType::f16, 65504, kInf), kInf);
    EXPECT_EQ(next(DType::f16, kInf, 0), 65504);
    EXPECT_EQ(next(DType::bf16, 0, -1), -0x1p-133);
    EXPECT_EQ(next(DType::bf16, -0.0, 1), 0x1p-133);
    EXPECT_EQ(next(DType::bf16, 3, 3), 3);
    EXPECT_TRUE(std::signbit(next(DType::bf16, 0.0, -0.0)));
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e5m2}) {
        EXPECT_TRUE(std::isnan(next(dtype, kNan, 1)) && std::isnan(next(dtype, 1, kNan)));
    }
}

TEST(Evaluate, FloatToIntegerTruncatesAndSaturates) {
    EXPECT_EQ(static_cast<std::int64_t>(cast_float(DType::f32, DType::i8, -1.9)), -1);
    EXPECT_EQ(static_cast<std::int64_t>(cast_float(DType::f32, DType::i8, -1000)), -128);
    EXPECT_EQ(cast_float(DType::f32, DType::u8, 1000), 255u);
    EXPECT_EQ(cast_float(DType::f32, DType::u8, -3), 0u);
    EXPECT_EQ(cast_float(DType::f64, DType::i64, kInf), static_cast<std::uint64_t>(INT64_MAX));
    EXPECT_EQ(cast_float(DType::f64, DType::u64, 0x1p63), std::uint64_t{1} << 63);
    EXPECT_EQ(cast_float(DType::f64, DType::i64, -0x1p63), std::uint64_t{1} << 63);
    EXPECT_EQ(cast_float(DType::f32, DType::i32, kNan), 0u);
    EXPECT_EQ(cast_float(DType::f32, DType::boolean, 0.1), 1u);
    EXPECT_EQ(cast_float(DType::f32, DType::boolean, kNan), 1u);
}

TEST(Evaluate, IntegerToFloatRoundsOnce) {
    // Above a tie of bf16 by one unit that f64 cannot hold: two roundings would give the even side.
    const std::uint64_t bits = (std::uint64_t{257} << 54) + 1;
    const double next = std::ldexp(258, 54);
    EXPECT_EQ(decode(DType::bf16, evaluate(Op::cast, DType::u64, DType::bf16, &bits)), next);
    const std::uint64_t minus = static_cast<std::uint64_t>(-16777217);
    EXPECT_EQ(decode(DType::f32, evaluate(Op::cast, DType::i64, DType::f32, &minus)), -16777216);
    const std::uint64_t narrow = 300;
    EXPECT_EQ(evaluate(Op::cast, DType::i32, DType::u8, &narrow), 44u);
    EXPECT_EQ(evaluate(Op::cast, DType::i32, DType::boolean, &narrow), 1u);
}

TEST(Evaluate, BitcastKeepsBits) {
    const std::uint64_t one = encode(DType::f16, 1);
    EXPECT_EQ(evaluate(Op::bitcast, DType::f16, DType::u16, &one), 0x3c00u);
    const std::uint64_t raw = 0xbf800000u;
    EXPECT_EQ(decode(DType::f32, evaluate(Op::bitcast, DType::u32, DType::f32, &raw)), -1);
}

TEST(Evaluate, MemoryRoundTripsEveryPattern) {
    for (DType dtype : {DType::f8e4m3, DType::f8e5m2, DType::f16, DType::bf16, DType::i16}) {
        const int patterns = size_of(dtype) == 1 ? 256 : 65536;
        for (int i = 0; i < patterns; ++i) {
            const auto pattern = static_cast<std::uint16_t>(i);
            const std::uint64_t bits = read_element(dtype, &pattern);
            if (is_float(dtype) && std::isnan(decode(dtype, bits))) continue;
            std::uint16_t back = 0;
            write_element(dtype, &back, bits);
            ASSERT_EQ(back, pattern) << name(dtype);
        }
    }
}

TEST(Evaluate, IdentitiesLeaveValuesUnchanged) {
    for (int d = 0; d < kNumDTypes; ++d) {
        const DType dtype = static_cast<DType>(d);
        for (Reduction kind : {Reduction::sum, Reduction::prod, Reduction::max, Reduction::min}) {
            if (dtype == DType::boolean && (kind == Reduction::sum || kind == Reduction::prod)) {
                continue;
            }
            for (double value : {0.0, 1.0}) {
                const std::uint64_t bits = encode(dtype, value);
                EXPECT_EQ(combine(kind, dtype, identity(kind, dtype), bits), bits)
                    << name(kind) << " " << name(dtype);
            }
        }
    }
}

TEST(Evaluate, ArgmaxKeepsTheFirstAndPrefersNan) {
    const auto bits = [](double v) { return encode(DType::f32, v); };
    EXPECT_FALSE(replaces_extreme(Reduction::argmax, DType::f32, bits(1), bits(1)));
    EXPECT_TRUE(replaces_extreme(Reduction::argmax, DType::f32, bits(1), bits(2)));
    EXPECT_TRUE(replaces_extreme(Reduction::argmin, DType::f32, bits(1), bits(kNan)));
    EXPECT_FALSE(replaces_extreme(Reduction::argmin, DType::f32, bits(kNan), bits(-1)));
}

TEST(Evaluate, PhiloxMatchesTheReferenceVectors) {
    // Random123's known answers have counter words (low, high, 0, 0) only for zeros.
    EXPECT_EQ(philox(0, 0), 0x6627e8d5u);
    EXPECT_NE(philox(0, 1), philox(1, 0));
}

}  // namespace
}  // namespace tilewright::ir
