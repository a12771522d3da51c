// The checked mode, through calls.
#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::AllOf;
using testing::HasSubstr;

TEST(Checked, OutputWrittenByTwoProgramsNamesBoth) {
    auto clash = tw::kernel("clash", [](Ref z) { z.store(1); });
    auto call =
        tw::call(clash, {
                            .grid = {4},
                            .out = {BlockSpec{{4}, [](auto i) { return tw::block(i / 2); }}},
                            .out_type = {{f32, {8}}},
                            .interpret = true,
                        });
    EXPECT_THAT(error_of([&] { call(); }),
                AllOf(HasSubstr("clash"), HasSubstr("checked_test.cpp")));
}

TEST(Checked, IndexOutsideItsArray) {
    auto gather = tw::kernel(
        "gather", [](Ref x, Ref index, Ref z) { z.store(tw::sum(x.at(index.load()).load())); });
    auto call = tw::call(gather, {.out_type = {{f32, {}}}, .interpret = true});
    const Tensor x = ramp({4});
    EXPECT_EQ(call(x, Tensor::from_vector<int>({0, 3}, {2})).get({}), -9);
    EXPECT_NE(error_of([&] { call(x, Tensor::from_vector<int>({0, 4}, {2})); }), "");
    EXPECT_NE(error_of([&] { call(x, Tensor::from_vector<int>({0, -1}, {2})); }), "");
}

TEST(Checked, IndexOutsideItsBlock) {
    auto shift = tw::kernel(
        "shift", [](Ref x, Ref z) { z.store(x.at(tw::ds(tw::program_id(0) + 1, 3)).load()); });
    auto call = tw::call(shift, {
                                    .grid = {2},
                                    .in = {BlockSpec{{4}, [](auto i) { return tw::block(i); }}},
                                    .out = {BlockSpec{{3}, [](auto i) { return tw::block(i); }}},
                                    .out_type = {{f32, {6}}},
                                    .interpret = true,
                                });
    EXPECT_THAT(error_of([&] { call(ramp({8})); }), HasSubstr("leaves its block of 4 elements"));
}

TEST(Checked, UndefinedScratchReachingAResult) {
    auto lazy = tw::kernel("lazy", [](Ref z, Ref s) { z.store(tw::sum(s.load())); });
    auto call =
        tw::call(lazy, {.out_type = {{f32, {}}}, .scratch = {{f32, {4}}}, .interpret = true});
    EXPECT_NE(error_of([&] { call(); }), "");
}

TEST(Checked, DebugChecks) {
    auto positive = tw::kernel("positive", [](Ref x, Ref z) {
        const Tile t = x.load();
        tw::debug_check(t > 0, "x must be positive");
        z.store(tw::sqrt(t));
    });
    CallOptions options{.out_type = {{f32, {2}}}, .interpret = true};
    EXPECT_THAT(error_of([&] { tw::call(positive, options)(Tensor::zeros(f32, {2})); }),
                HasSubstr("x must be positive"));
    options.interpret = false;
    EXPECT_EQ(tw::call(positive, options)(Tensor::full(f32, {2}, 4)).get({1}), 2);
}

TEST(Checked, MayBeSwitchedOnForEveryCall) {
    auto gather =
        tw::kernel("gather", [](Ref x, Ref z) { z.store(tw::sum(x.at(tw::iota(4) + 1).load())); });
    auto call = tw::call(gather, {.out_type = {{f32, {}}}});
    EXPECT_EQ(call(Tensor::full(f32, {4}, 1)).get({}), 3);
    tw::set_checked(true);
    EXPECT_NE(error_of([&] { call(Tensor::full(f32, {4}, 1)); }), "");
    tw::set_checked(false);
    EXPECT_EQ(call(Tensor::full(f32, {4}, 1)).get({}), 3);
}

}  // namespace
}  // namespace tilewright
