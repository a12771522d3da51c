// Dtype promotion, literals and broadcasting.
#include "lang/promotion.h"

#include "tests/lang/trace_support.h"

namespace tilewright::lang {
namespace {

using testing::HasSubstr;

TEST(Promotion, FollowsJaxLattice) {
    EXPECT_EQ(promote(i32, f32), f32);
    EXPECT_EQ(promote(i64, f16), f16);
    EXPECT_EQ(promote(bf16, f16), f32);
    EXPECT_EQ(promote(bf16, f32), f32);
    EXPECT_EQ(promote(f32, f64), f64);
    EXPECT_EQ(promote(i64, i32), i64);
    EXPECT_EQ(promote(u8, i8), i16);
    EXPECT_EQ(promote(u32, i32), i64);
    EXPECT_EQ(promote(u8, i32), i32);
    EXPECT_EQ(promote(u64, i64), f64);
    EXPECT_EQ(promote(boolean, u8), u8);
    EXPECT_EQ(promote(f8e4m3, i32), f8e4m3);
}

TEST(Promotion, IsSymmetricAndIdempotent) {
    for (int a = 0; a < kNumDTypes; ++a) {
        EXPECT_EQ(promote(DType(a), DType(a)), DType(a));
        for (int b = 0; b < kNumDTypes; ++b) {
            const auto attempt = [](int x, int y) -> int {
                try {
                    return static_cast<int>(promote(DType(x), DType(y)));
                } catch (const UserError&) {
                    return -1;
                }
            };
            EXPECT_EQ(attempt(a, b), attempt(b, a));
        }
    }
}

TEST(Promotion, F8NeedsAnExplicitConversion) {
    EXPECT_THAT(error_of([] { promote(f8e4m3, f32); }), HasSubstr("f8 does not promote"));
}

TEST(Literals, TakeTheTilesDtype) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_EQ((t + 1).dtype(), f32);
        EXPECT_EQ((t.to(bf16) * 2.5).dtype(), bf16);
        EXPECT_EQ((t.to(i8) + 1).dtype(), i8);
        EXPECT_EQ((1 - t.to(u16)).dtype(), u16);
        EXPECT_EQ((t.to(i32) * 0.5).dtype(), f32);
        EXPECT_EQ(((t > 0) + 1).dtype(), i32);
        EXPECT_EQ((t.to(i32) + true).dtype(), i32);
        EXPECT_EQ(where(t > 0, 1.0, 0).dtype(), f32);
    });
}

TEST(Literals, PowersOfLiteralsKeepTheDtype) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_EQ(pow(t.to(i32), 3).dtype(), i32);
        EXPECT_EQ(pow(t.to(i32), 0).dtype(), i32);
        EXPECT_EQ(pow(t, 0).shape(), t.shape());
        EXPECT_EQ(pow(t.to(i32), -1).dtype(), f32);
        EXPECT_EQ(pow(t.to(i32), t.to(i32)).dtype(), f32);
        EXPECT_EQ(pow(t.to(f16), 0.5).dtype(), f16);
    });
}

TEST(Literals, ThatDoNotFitAreErrors) {
    with_input([](Ref x) {
        const Tile t = x.load().to(u8);
        EXPECT_THAT(error_of([&] { t + 300; }), HasSubstr("expected a value of u8 but got 300"));
        EXPECT_THAT(error_of([&] { t + -1; }), HasSubstr("but got -1"));
        EXPECT_EQ((t + 255).dtype(), u8);
        EXPECT_EQ((t.to(i64) + INT64_MIN).dtype(), i64);
    });
}

TEST(Literals, ThatF32DoesNotHoldAreF64OnTheirOwn) {
    with_input([](Ref x) {
        const Tile i = x.load().to(i32);
        EXPECT_EQ((i * 1e300).dtype(), f64);
        EXPECT_EQ(where(i > 0, 1e300, 0.0).dtype(), f64);
        EXPECT_EQ((i * 3.4e38).dtype(), f32);
        EXPECT_EQ(where(i > 0, INFINITY, NAN).dtype(), f32);
    });
}

TEST(Literals, ErrorsNameTheUsersLine) {
    with_input([](Ref x) {
        const Tile t = x.load().to(u8);
        EXPECT_THAT(error_of([&] { t + 300; }), HasSubstr("promotion_test.cpp:"));
    });
}

TEST(Broadcasting, FollowsNumPy) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_EQ((t + sum(t, 0)).shape(), (Extents{8, 16}));
        EXPECT_EQ((t + sum(t, 1, true)).shape(), (Extents{8, 16}));
        EXPECT_EQ((sum(t, 1, true) * sum(t, 0, true)).shape(), (Extents{8, 16}));
        EXPECT_THAT(error_of([&] { t + sum(t, 1); }),
                    HasSubstr("expected shapes that broadcast together but got [8, 16] and [8]"));
    });
}

TEST(Broadcasting, TracedScalarsKeepTheirDtype) {
    with_input([](Ref) { EXPECT_EQ((iota(8) + iota(8, i64)).dtype(), i64); });
    traced({}, [] { EXPECT_EQ((program_id(0) * 8 + iota(8)).dtype(), i64); }, {4});
}

}  // namespace
}  // namespace tilewright::lang
