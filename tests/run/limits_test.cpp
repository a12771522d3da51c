// Calls at their limits: zero sizes, high ranks, blocks larger than arrays, many threads, printing.
#include <thread>

#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::HasSubstr;

Call copy_call(Tensor::Dims shape) {
    return tw::call(tw::kernel("copy", {"x", "z"}, [](Ref x, Ref z) { z.store(x.load()); }),
                    {.out_type = {{f32, std::move(shape)}}});
}

TEST(Limits, ZeroSizeArraysWork) {
    EXPECT_EQ(copy_call({0, 3})(Tensor::zeros(f32, {0, 3})).shape(), (Tensor::Dims{0, 3}));
    auto sum = tw::kernel("sum", [](Ref x, Ref z) { z.store(tw::sum(x.load())); });
    EXPECT_EQ(tw::call(sum, {.out_type = {{f32, {}}}})(Tensor::zeros(f32, {0})).get({}), 0);
    auto none = tw::kernel("none", [](Ref x, Ref z) { z.store(x.load()); });
    EXPECT_EQ(
        tw::call(none, {.grid = {0}, .out_type = {{f32, {2}}}})(Tensor::zeros(f32, {2})).size(), 2);
}

TEST(Limits, TilesHaveAsManyDimensionsAsArrays) {
    const Tensor::Dims shape{2, 1, 3, 1, 2, 1, 2, 1};
    const Tensor z = copy_call(shape)(Tensor::full(f32, shape, 3));
    EXPECT_EQ(z.get({1, 0, 2, 0, 1, 0, 1, 0}), 3);
    EXPECT_THAT(error_of([] {
                    copy_call({2})(Tensor::zeros(f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}));
                }),
                HasSubstr("expected `x` to have rank <= 8"));
}

TEST(Limits, ABlockLargerThanItsArrayIsPadded) {
    auto sum = tw::kernel("sum", [](Ref x, Ref z) { z.store(tw::sum(x.load({.other = 1}))); });
    auto call = tw::call(sum, {.in = {BlockSpec({16})}, .out_type = {{f32, {}}}});
    EXPECT_EQ(call(Tensor::full(f32, {3}, 2)).get({}), 3 * 2 + 13);
}

TEST(Limits, HugeIndicesDoNotWrapIntoTheArray) {
    // Multiplied by the block's extent or the stride, each is 0 modulo 2^64.
    const auto huge = [](auto i) { return tw::block(i + (std::int64_t{1} << 62)); };
    auto copy = tw::kernel("copy", {"x", "z"}, [](Ref x, Ref z) { z.store(x.load()); });
    auto fill = tw::kernel("fill", {"z"}, [](Ref z) { z.store(1); });
    auto strided = tw::kernel("strided", {"x", "index", "z"}, [](Ref x, Ref index, Ref z) {
        z.store(x.at(tw::ds(0, 4, 2)).at(index.load()).load());
    });
    const Tensor x = Tensor::full(f32, {8}, 3), z = Tensor::zeros(f32, {8});
    const Tensor lowest = Tensor::full(i64, {}, static_cast<double>(INT64_MIN));
    CallOptions read{.grid = {1}, .in = {BlockSpec{{4}, huge}}, .out_type = {{f32, {4}}}};
    CallOptions write{.grid = {1}, .out = {BlockSpec{{4}, huge}}, .out_type = {{f32, {8}}}};
    CallOptions scalar{.out_type = {{f32, {}}}};
    EXPECT_EQ(tw::call(copy, read)(x).get({0}), 0);
    tw::call(fill, write).into({z}, {});
    EXPECT_EQ(z.get({0}), 0);
    EXPECT_EQ(tw::call(strided, scalar)(x, lowest).get({}), 0);
    read.interpret = write.interpret = scalar.interpret = true;
    EXPECT_THAT(error_of([&] { tw::call(copy, read)(x); }), HasSubstr("outside its extents [8]"));
    EXPECT_THAT(error_of([&] { tw::call(fill, write).into({z}, {}); }),
                HasSubstr("got only lanes outside"));
    EXPECT_THAT(error_of([&] { tw::call(strided, scalar)(x, lowest); }),
                HasSubstr("outside its extents [8]"));
}

TEST(Limits, ACallRunsOnManyThreads) {
    auto scale = tw::kernel("scale", [](Ref x, Ref z) { z.store(x.load() * 2); });
    const BlockSpec spec{{4}, [](auto i) { return tw::block(i); }};
    auto call = tw::call(scale, {
                                    .grid = [](auto in) { return std::vector{in[0].dim(0) / 4}; },
                                    .in = {spec},
                                    .out = {spec},
                                    .out_type =
                                        [](auto in) {
                                            return std::vector{TensorType{f32, in[0].shape()}};
                                        },
                                });
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([&, t] {
            for (std::int64_t n = 4; n <= 32; n += 4) {
                const Tensor z = call(Tensor::full(f32, {n}, static_cast<double>(t)));
                for (std::int64_t i = 0; i < n; ++i) {
                    wrong[t] += z.get({i}) != 2.0 * static_cast<double>(t);
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
    EXPECT_EQ(call.num_traces(), 8);
}

TEST(Vmap, FreesTheKernelsOwnDimensions) {
    auto double_it = tw::kernel("double", [](Ref x, Ref z) {
        tw::for_loop(0, tw::cdiv(x.extent(0), 4), [&](Tile i) {
            z.at(tw::ds(i * 4, 4)).store(x.at(tw::ds(i * 4, 4)).load() * 2);
        });
    });
    auto call = tw::call(double_it, {.out_type =
                                         [](auto in) {
                                             return std::vector{TensorType{f32, in[0].shape()}};
                                         },
                                     .dynamic = {{0, {0}}, {1, {0}}}});
    auto rows = tw::vmap(call, {1}, {1});  // the batch is the second dimension
    for (std::int64_t n : {3, 4, 9}) {
        const Tensor x = ramp({n, 2});
        const Tensor z = rows(x);
        EXPECT_EQ(z.get({n - 1, 1}), 2 * x.get({n - 1, 1}));
    }
    EXPECT_EQ(rows.num_traces(), 1);
    rows(ramp({9, 3}));
    EXPECT_EQ(rows.num_traces(), 2);
}

TEST(Debug, PrintsValuesAndTheIR) {
    auto print = tw::kernel("print", [](Ref x, Ref z) {
        const Tile t = x.load();
        tw::debug_print("x is {}", {t});
        z.store(t);
    });
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    tw::call(print, {.out_type = {{f32, {3}}}, .debug = true})(Tensor::arange(f32, 3));
    const std::string text =
        testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    EXPECT_THAT(text, HasSubstr("x is [0, 1, 2]"));
    EXPECT_THAT(text, HasSubstr("func @print("));
}

}  // namespace
}  // namespace tilewright
