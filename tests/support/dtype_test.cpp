// Names and sizes of element types.
#include "tilewright/dtype.h"

#include <gtest/gtest.h>

namespace tilewright {
namespace {

TEST(DType, EveryNameParsesBack) {
    for (int i = 0; i < kNumDTypes; ++i) {
        const auto type = static_cast<DType>(i);
        EXPECT_EQ(parse_dtype(name(type)), type) << name(type);
    }
    EXPECT_EQ(name(DType::boolean), "bool");
    EXPECT_EQ(name(DType::f8e5m2), "f8e5m2");
}

TEST(DType, UnknownNamesAreRefused) {
    EXPECT_EQ(parse_dtype(""), std::nullopt);
    EXPECT_EQ(parse_dtype("f3"), std::nullopt);
    EXPECT_EQ(parse_dtype("F32"), std::nullopt);
}

TEST(DType, SizesAndKinds) {
    EXPECT_EQ(size_of(DType::boolean), 1);
    EXPECT_EQ(size_of(DType::u16), 2);
    EXPECT_EQ(size_of(DType::bf16), 2);
    EXPECT_EQ(size_of(DType::f64), 8);
    EXPECT_EQ(size_of(DType::f8e4m3), 1);
    EXPECT_TRUE(is_integer(DType::u64) && !is_signed(DType::u64));
    EXPECT_TRUE(is_float(DType::f16) && is_signed(DType::f16) && !is_integer(DType::f16));
    EXPECT_TRUE(!is_float(DType::boolean) && !is_integer(DType::boolean));
}

}  // namespace
}  // namespace tilewright
