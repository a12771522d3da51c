// Recordings: the same launches on other arrays, and what makes a recording fail.
#include "support.h"

namespace tilewright {
namespace {

using ::testing::ElementsAre;

std::vector<TensorType> like_first(std::span<const Tensor> inputs) {
    return {{inputs[0].dtype(), inputs[0].shape()}};
}

/// y = 2 x + 1 by two kernels with temporary memory in between.
void twice_and_one(const std::vector<Tensor>& arrays) {
    static const Call twice =
        call(kernel("twice", [](Ref x, Ref y) { y.store(x.load() + x.load()); }),
             {.out_type = like_first});
    static const Call one = call(kernel("one", [](Ref x, Ref y) { y.store(x.load() + 1.0F); }),
                                 {.out_type = like_first});
    one.into({arrays[1]}, {twice(arrays[0])});
}

TEST(Recording, RepeatsLaunchesOnOtherArrays) {
    const std::vector first{Tensor::arange(f32, 3), Tensor::zeros(f32, {3})};
    const Recording recording = Recording::of(first, twice_and_one);
    ASSERT_TRUE(recording.complete());
    EXPECT_THAT(first[1].to_vector<int>(), ElementsAre(1, 3, 5));
    const Tensor x = Tensor::from_vector<float>({7, 8, 9}, {3}), y = Tensor::zeros(f32, {3});
    recording.repeat(std::vector{x.raw(), y.raw()});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(15, 17, 19));
}

TEST(Recording, TellsApartArraysThatSharedMemory) {
    static const Call subtract =
        call(kernel("subtract", [](Ref x, Ref y, Ref z) { z.store(x.load() - y.load()); }),
             {.out_type = like_first});
    const Tensor x = Tensor::arange(f32, 2), z = Tensor::zeros(f32, {2});
    const Recording recording = Recording::of({x, x, z}, [](const std::vector<Tensor>& a) {
        subtract.into({a[2]}, {a[0], a[1]});
    });
    ASSERT_TRUE(recording.complete());
    const Tensor y = Tensor::full(f32, {2}, 5);
    recording.repeat(std::vector{x.raw(), y.raw(), z.raw()});
    EXPECT_THAT(z.to_vector<int>(), ElementsAre(-5, -4));
}

TEST(Recording, ViewsKeepTheirPlace) {
    const auto halves = [](const std::vector<Tensor>& a) {
        twice_and_one({a[0].slice(0, 2, 2), a[1].reshape({4}).slice(0, 0, 2)});
        twice_and_one({a[0].slice(0, 0, 2), a[1].reshape({4}).slice(0, 2, 2)});
    };
    const Tensor x = Tensor::arange(f32, 4), y = Tensor::zeros(f32, {2, 2});
    const Recording recording = Recording::of({x, y}, halves);
    ASSERT_TRUE(recording.complete());
    y.fill(0);
    recording.repeat(std::vector{x.raw(), y.raw()});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(5, 7, 1, 3));
}

TEST(Recording, ReadsConstantsAgain) {
    const Tensor y = Tensor::zeros(f32, {3});
    const Recording recording = [&] {
        const Tensor constant = Tensor::arange(f32, 3);
        return Recording::of({y}, [&](const auto& a) { twice_and_one({constant, a[0]}); });
    }();
    ASSERT_TRUE(recording.complete());
    y.fill(0);
    recording.repeat(std::vector{y.raw()});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(1, 3, 5));
}

TEST(Recording, IsNotCompleteWhereTheHostTakesPart) {
    const Tensor x = Tensor::arange(f32, 3), y = Tensor::zeros(f32, {3});
    const auto complete = [&](const Recording::Operation& operation) {
        return Recording::of({x, y}, operation).complete();
    };
    const auto run = [](const Tensor& from, const Tensor& to) { twice_and_one({from, to}); };
    EXPECT_FALSE(complete([&](const auto&) {}));
    EXPECT_FALSE(complete([&](const auto& a) { run(a[0], a[1]), a[1].fill(0); }));
    EXPECT_FALSE(complete([&](const auto& a) { run(a[0].clone(), a[1]); }));
    EXPECT_FALSE(complete([&](const auto& a) { run(Tensor::zeros(f32, {3}), a[1]); }));
    EXPECT_FALSE(complete([&](const auto& a) {
        if (a[0].get({0}) == 0) run(a[0], a[1]);
    }));
    EXPECT_FALSE(complete([&](const auto& a) {
        if (a[0].template data<float>()[0] == 0) run(a[0], a[1]);
    }));
    const Tensor before = Tensor::arange(f32, 3);
    EXPECT_FALSE(complete([&](const auto& a) { run(a[0], before), run(before, a[1]); }));
    const Tensor borrowed = Tensor::from_data(before.raw(), f32, {3});
    EXPECT_FALSE(complete([&](const auto& a) { run(borrowed, a[1]); }));
    EXPECT_FALSE(complete([&](const auto& a) {
        const Tensor memory = Tensor::empty(f32, {3});
        static_cast<float*>(memory.raw())[0] = 1;
        run(memory, a[1]);
    }));
}

TEST(Recording, RepeatsOnArraysWithGaps) {
    const Tensor x = Tensor::arange(f32, 6), y = Tensor::zeros(f32, {3});
    const Recording recording = Recording::of({x.slice(0, 0, 3, 2), y}, twice_and_one);
    ASSERT_TRUE(recording.complete());
    const Tensor other = Tensor::arange(f32, 7);
    y.fill(0);
    recording.repeat(std::vector{other.slice(0, 1, 3, 2).raw(), y.raw()});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(3, 7, 11));
}

}  // namespace
}  // namespace tilewright
