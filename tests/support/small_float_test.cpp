// Narrow float formats: every bit pattern, ties to even, overflow, subnormals and NaN.
#include "support/small_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace tilewright {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// One narrow format as the functions under test see it.
struct Format {
    const char* name;
    int bits;
    float (*widen)(std::uint32_t);
    std::uint32_t (*narrow)(float);
    float largest;
    float smallest;  // subnormal
};

const Format kFormats[] = {
    {"f16", 16, [](std::uint32_t b) { return f16_to_f32(static_cast<std::uint16_t>(b)); },
     [](float v) { return std::uint32_t{f32_to_f16(v)}; }, 65504.0f, 0x1p-24f},
    {"bf16", 16, [](std::uint32_t b) { return bf16_to_f32(static_cast<std::uint16_t>(b)); },
     [](float v) { return std::uint32_t{f32_to_bf16(v)}; }, 0x1.fep127f, 0x1p-133f},
    {"f8e4m3", 8, [](std::uint32_t b) { return f8e4m3_to_f32(static_cast<std::uint8_t>(b)); },
     [](float v) { return std::uint32_t{f32_to_f8e4m3(v)}; }, 448.0f, 0x1p-9f},
    {"f8e5m2", 8, [](std::uint32_t b) { return f8e5m2_to_f32(static_cast<std::uint8_t>(b)); },
     [](float v) { return std::uint32_t{f32_to_f8e5m2(v)}; }, 57344.0f, 0x1p-16f},
};

class SmallFloat : public testing::TestWithParam<Format> {};

TEST_P(SmallFloat, EveryPatternSurvivesTheRoundTrip) {
    const Format& format = GetParam();
    for (std::uint32_t bits = 0; bits < (1u << format.bits); ++bits) {
        const float value = format.widen(bits);
        if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(format.widen(format.narrow(value)))) << bits;
        } else {
            ASSERT_EQ(format.narrow(value), bits) << value;
        }
    }
}

TEST_P(SmallFloat, RoundsToTheNearestAndTiesToEven) {
    const Format& format = GetParam();
    const std::uint32_t sign = 1u << (format.bits - 1);
    for (std::uint32_t bits = 0; format.widen(bits + 1) <= format.largest; ++bits) {
        const double low = format.widen(bits), high = format.widen(bits + 1);
        const auto middle = static_cast<float>((low + high) / 2);  // exact in f32
        ASSERT_EQ(format.narrow(middle), bits + (bits & 1)) << middle;
        ASSERT_EQ(format.narrow(std::nextafter(middle, 0.0f)), bits);
        ASSERT_EQ(format.narrow(std::nextafter(middle, kInf)), bits + 1);
        ASSERT_EQ(format.narrow(-middle), sign | (bits + (bits & 1)));
    }
}

TEST_P(SmallFloat, LimitsOfTheFormat) {
    const Format& format = GetParam();
    EXPECT_EQ(format.widen(1), format.smallest);
    EXPECT_EQ(format.widen(format.narrow(format.largest)), format.largest);
    EXPECT_TRUE(std::signbit(format.widen(format.narrow(-0.0f))));
    const float over = format.widen(format.narrow(std::numeric_limits<float>::max()));
    const bool has_infinity = std::string_view(format.name) != "f8e4m3";
    EXPECT_TRUE(has_infinity ? over == kInf : std::isnan(over)) << over;
    const float infinite = format.widen(format.narrow(-kInf));
    EXPECT_TRUE(has_infinity ? infinite == -kInf : std::isnan(infinite)) << infinite;
}

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloat, testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(format.param.name); });

TEST(SmallFloat, F64NarrowsWithoutDoubleRounding) {
    // Just above a tie: through f32 it would land on the tie and round down to even.
    const double value = 1.0 + 0x1p-11 + 0x1p-40;
    EXPECT_EQ(f64_to_f16(value), f32_to_f16(1.0f) + 1);
    EXPECT_EQ(f64_to_bf16(1.0 + 0x1p-8 + 0x1p-40), f32_to_bf16(1.0f) + 1);
}

}  // namespace
}  // namespace tilewright
