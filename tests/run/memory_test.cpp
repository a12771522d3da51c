// Loads and stores through every form of index; masks; atomics.
#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::ElementsAre;

TEST(Loads, MasksAndOther) {
    const Tensor z = run_once(
        [](Ref x, Ref out) {
            const Tile i = tw::iota(4);
            out.at(tw::ds(0, 4)).store(x.at(tw::ds(0, 4)).load({.mask = i < 2, .other = 9}));
            out.at(tw::ds(4, 4)).store(x.at(tw::ds(tw::constant(4, i32), 4)).load({.other = -1}));
        },
        {f32, {8}}, {Tensor::arange(f32, 6)});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(0, 1, 9, 9, 4, 5, -1, -1));
}

TEST(Stores, MasksAndScalars) {
    const Tensor z = run_once(
        [](Ref out) {
            out.store(0);
            out.store(7, {.mask = tw::iota(6) % 2 == 0});
            out.at(1).store(5);
            out.at(tw::constant(3, i64)).store(tw::constant(4, f32));
        },
        {f32, {6}}, {});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(7, 5, 7, 4, 7, 0));
}

TEST(Slices, StridedAndDynamic) {
    const Tensor z = run_once(
        [](Ref x, Ref out) {
            const Tile start = x.at(0, 0).load().to(i32) + 1;  // 1
            out.at(0).store(x.at(start, tw::ds(start, 3, 2)).load());
            out.at(1).store(x.at(tw::ds(1, 3)).at(2, tw::ds(0, 3)).load());
        },
        {f32, {2, 3}}, {Tensor::arange(f32, 40).reshape({5, 8})});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(9, 11, 13, 24, 25, 26));
}

TEST(IndexTiles, GatherAndScatter) {
    const Tensor z = run_once(
        [](Ref x, Ref index, Ref out) {
            out.store(0);
            out.at(index.load(), 0).store(x.at(tw::ds(0, 3)).load());
            out.at(tw::ds(0, 3), 1).store(x.at(index.load()).load());
        },
        {f32, {5, 2}},
        {Tensor::from_vector<float>({10, 20, 30, 40, 50}, {5}),
         Tensor::from_vector<int>({4, 0, 2}, {3})});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(20, 50, 0, 10, 30, 30, 0, 0, 10, 0));
}

TEST(IndexTiles, OfABlockCountFromItsStart) {
    auto reverse =
        tw::kernel("reverse", [](Ref x, Ref z) { z.store(x.at(3 - tw::iota(4)).load()); });
    const BlockSpec spec{{4}, [](auto i) { return tw::block(i); }};
    auto call =
        tw::call(reverse, {.grid = {2}, .in = {spec}, .out = {spec}, .out_type = {{f32, {8}}}});
    EXPECT_THAT(call(Tensor::arange(f32, 8)).to_vector<int>(), ElementsAre(3, 2, 1, 0, 7, 6, 5, 4));
}

TEST(Atomics, UpdateAndReturnTheOldValues) {
    auto all_kinds = tw::kernel("atomics", [](Ref initial, Ref z, Ref old) {
        (void)initial;
        old.at(0).store(z.at(0).atomic_add(5));
        old.at(1).store(z.at(1).atomic_max(5));
        old.at(2).store(z.at(2).atomic_min(5));
        old.at(3).store(z.at(3).atomic_xchg(5));
        old.at(4).store(z.at(4).atomic_cas(14, 5));
        old.at(5).store(z.at(5).atomic_cas(0, 5));
    });
    auto call = tw::call(all_kinds, {.out_type = {{i32, {6}}, {i32, {6}}}, .aliases = {{0, 0}}});
    const Tensor start = Tensor::from_vector<int>({10, 11, 12, 13, 14, 15}, {6});
    const auto [z, old] = call.outputs<2>(start.clone());
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(15, 11, 5, 5, 5, 15));
    EXPECT_EQ(old.to_vector<int>(), start.to_vector<int>());
}

TEST(Atomics, AddAcrossPrograms) {
    auto histogram = tw::kernel("histogram", [](Ref x, Ref zero, Ref z) {
        (void)zero;
        z.at(x.load()).atomic_add(1);
    });
    auto call = tw::call(histogram, {
                                        .grid = {4},
                                        .in = {BlockSpec{{8}, [](auto i) { return tw::block(i); }}},
                                        .out_type = {{i32, {4}}},
                                        .aliases = {{1, 0}},
                                    });
    std::vector<int> values;
    for (int i = 0; i < 32; ++i) values.push_back(i * i % 4);
    const Tensor z = call(Tensor::from_vector(values, {32}), Tensor::zeros(i32, {4}));
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(16, 16, 0, 0));
}

TEST(Scratch, KeepsWhatIsStored) {
    auto twice = tw::kernel("twice", [](Ref x, Ref z, Ref s) {
        s.store(x.load());
        s.at(0).store(100);
        z.store(s.load() * 2);
    });
    auto call = tw::call(twice, {.out_type = {{f32, {3}}}, .scratch = {{f32, {3}}}});
    EXPECT_THAT(call(Tensor::arange(f32, 3)).to_vector<int>(), ElementsAre(200, 2, 4));
}

TEST(Aliases, LaterLoadsSeeEarlierStores) {
    // Loads and stores could both be single passes over all rows, if they were not one row apart.
    constexpr std::int64_t kRows = 128, kLanes = 64;
    auto shifted = tw::kernel("shifted", [](Ref x, Ref z, Ref y) {
        z.at(tw::ds(0, kRows)).store(x.at(tw::ds(0, kRows)).load() + 1);
        y.store(x.at(tw::ds(1, kRows)).load() * 2);
    });
    auto call = tw::call(shifted, {.out_type = {{f32, {kRows + 1, kLanes}}, {f32, {kRows, kLanes}}},
                                   .aliases = {{0, 0}}});
    const Tensor x = ramp({kRows + 1, kLanes}), before = x.clone();
    const auto [z, y] = call.outputs<2>(x);
    for (std::int64_t i = 0; i < kRows; ++i) {
        ASSERT_EQ(z.get({i, 5}), before.get({i, 5}) + 1) << i;
        ASSERT_EQ(y.get({i, 5}), (before.get({i + 1, 5}) + (i + 1 < kRows ? 1 : 0)) * 2) << i;
    }
}

}  // namespace
}  // namespace tilewright
