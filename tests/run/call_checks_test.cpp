// Refusals by calls before they trace or launch.
#include <fmt/format.h>

#include <map>

#include "tests/run/support.h"
#include "tests/support/throws.h"
#include "tilewright/dlpack.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::HasSubstr;
using testing::throws;

TEST(Call, AliasesShareMemoryWithNothingElse) {
    const auto add = tw::kernel("add", [](Ref x, Ref y, Ref z) { z.store(x.load() + y.load()); });
    const tw::CallOptions options{.out_type = {{f32, {8}}}, .aliases = {{0, 0}}};
    const auto call = tw::call(add, options);
    const Tensor memory = ramp({9}), first = memory.slice(0, 0, 8), second = memory.slice(0, 1, 8);
    EXPECT_THAT(error_of([&] { call(first, second); }), HasSubstr("apart from"));
    EXPECT_THAT(error_of([&] { call(first, first); }), HasSubstr("apart from"));
    EXPECT_EQ(memory.get({8}), ramp({9}).get({8}));
    const Tensor other = ramp({8});
    EXPECT_EQ(call(first, other).get({7}), 2 * other.get({7}));
    tw::CallOptions twice = options;
    twice.aliases = {{0, 0}, {1, 0}};
    EXPECT_THAT(error_of([&] { tw::call(add, twice)(ramp({8}), other); }),
                HasSubstr("in one alias but input 0 or output 0"));
}

TEST(Call, OutputsHaveAnElementForEachIndex) {
    const auto call = tw::call(tw::kernel("copy", [](Ref x, Ref y) { y.store(x.load()); }),
                               {.out_type = [](auto in) {
                                   return std::vector{TensorType{f32, in[0].shape()}};
                               }});
    const Tensor x = ramp({2, 3});
    const auto into = [&](Tensor::Dims strides) {
        const Tensor memory = Tensor::zeros(f32, {16});
        const Tensor y = Tensor::from_data(memory.raw(), f32, {2, 3}, std::move(strides));
        call.into({y}, {x});
        EXPECT_EQ(y.get({1, 2}), x.get({1, 2}));
    };
    into({3, 1});
    into({3, 2});  // 0 2 4, 3 5 7
    into({1, 2});
    // The last one: 0 2 4, 4 6 8.
    for (const Tensor::Dims& strides : {Tensor::Dims{0, 1}, {1, 1}, {2, 1}, {4, 2}}) {
        EXPECT_THAT(error_of([&] { into(strides); }), HasSubstr("for each index"));
    }
}

TEST(Call, ScratchAndAxesOfAliasesAreChecked) {
    const auto k = tw::kernel("k", [](Ref x, Ref z) { z.store(x.load() * 10); });
    for (const Tensor::Dims& shape :
         {Tensor::Dims{std::int64_t{1} << 32, std::int64_t{1} << 32}, {-1}}) {
        EXPECT_THAT(error_of([&] {
                        tw::call(k, {.scratch = {{f32, shape}}});
                    }),
                    HasSubstr("2^40 elements"));
    }
    const auto call = tw::call(k, {.out_type = {{f32, {4}}}, .aliases = {{0, 0}}});
    EXPECT_THAT(error_of([&] {
                    tw::vmap(call, {1}, {0})(ramp({4, 4}));
                }),
                HasSubstr("one axis for input 0 and output 0"));
    EXPECT_EQ(tw::vmap(call, {1}, {1})(ramp({4, 4})).get({1, 2}), 10 * ramp({4, 4}).get({1, 2}));
}

TEST(Call, SequentialAxesAreNamedOnce) {
    const auto copy = tw::kernel("copy", [](Ref x, Ref z) { z.store(x.load()); });
    EXPECT_THAT(
        error_of([&] {
            tw::call(copy, {.grid = {2, 2}, .out_type = {{f32, {4}}}, .sequential = {1, 1}});
        }),
        HasSubstr("expected each `sequential` axis of kernel `copy` once but got 1, 1"));
}

TEST(Call, DynamicNamesDimensionsThatThereAre) {
    for (const auto& dynamic : {std::map<int, std::vector<int>>{{-1, {0}}}, {{0, {-1}}}}) {
        EXPECT_THAT(error_of([&] { tw::call(tw::kernel("k", [](Ref) {}), {.dynamic = dynamic}); }),
                    HasSubstr("count arguments and dimensions from 0"));
    }
    const auto error = [](const std::map<int, std::vector<int>>& dynamic, bool batched) {
        const auto copy =
            tw::call(tw::kernel("k", {"x", "y"}, [](Ref x, Ref y) { y.store(x.load()); }),
                     {.out_type = {{f32, {4}}}, .dynamic = dynamic});
        return error_of([&] {
            if (batched)
                tw::vmap(copy, {0})(ramp({3, 4}));
            else
                copy(ramp({4}));
        });
    };
    for (const bool batched : {false, true}) {
        EXPECT_THAT(error({{0, {1}}}, batched), HasSubstr("of `x` below its rank, 1, but got 1"));
        EXPECT_THAT(error({{1, {0, 7}}}, batched),
                    HasSubstr("of `y` below its rank, 1, but got 7"));
        EXPECT_THAT(error({{2, {0}}}, batched),
                    HasSubstr("one of 1 inputs and 1 outputs but got argument 2"));
    }
}

TEST(Call, HintsOutOfTheirRangeAreRefusedByName) {
    const auto hinted = [](int warps, int stages) {
        tw::call(tw::kernel("copy", [](tw::Ref x, tw::Ref y) { y.store(x.load()); }),
                 {.num_warps = warps, .num_stages = stages});
    };
    EXPECT_NO_THROW(hinted(0, 1024));
    EXPECT_THAT(error_of([&] { hinted(0, 1000000); }),
                HasSubstr("expected num_stages from 0 to 1024 for kernel `copy` but got 1000000"));
    EXPECT_THAT(error_of([&] { hinted(0, -1); }), HasSubstr("num_stages"));
    EXPECT_THAT(error_of([&] { hinted(-4, 0); }), HasSubstr("num_warps"));
    EXPECT_THAT(error_of([&] { hinted(2000, 0); }), HasSubstr("num_warps"));
    EXPECT_THAT(error_of([&] { hinted(3, 0); }),
                HasSubstr("expected num_warps of kernel `copy` to be a power of two but got 3"));
    const auto tiled = [](std::int64_t rows, std::int64_t lanes) {
        tw::call(tw::kernel("copy", [](tw::Ref x, tw::Ref y) { y.store(x.load()); }),
                 {.tile_rows = rows, .tile_lanes = lanes});
    };
    EXPECT_NO_THROW(tiled(1, 65536));
    for (const auto& [rows, lanes] : {std::pair(8, 0), {0, 64}, {-1, 64}, {8, 65537}})
        EXPECT_THAT(error_of([&] { tiled(rows, lanes); }),
                    HasSubstr(fmt::format("both from 1 to 65536, or both 0, but got {} and {}",
                                          rows, lanes)));
}

/// The tensor as another library exports it read-only.
Tensor lent_for_reading(const Tensor& tensor) {
    DLManagedTensorVersioned* const managed = tensor.to_dlpack_versioned();
    managed->flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    return Tensor::from_dlpack(managed);
}

TEST(Call, ReadOnlyMemoryIsReadOnly) {
    const Tensor memory = ramp({8}), lent = lent_for_reading(memory);
    EXPECT_FALSE(memory.read_only());
    EXPECT_TRUE(lent.slice(0, 2, 4).read_only());
    EXPECT_FALSE(lent.clone().read_only());
    const auto call =
        tw::call(tw::kernel("inc", {"x", "y"}, [](Ref x, Ref y) { y.store(x.load() + 1); }),
                 {.out_type = {{f32, {8}}}});
    EXPECT_EQ(call(lent).get({3}), memory.get({3}) + 1);
    const auto refuses = [&](const std::function<void()>& write) {
        EXPECT_THAT(error_of(write), HasSubstr("to be writable but got a read-only f32[8]"));
    };
    refuses([&] { call.into({lent}, {ramp({8})}); });
    const auto in_place = tw::call(tw::kernel("inc", [](Ref x, Ref y) { y.store(x.load() + 1); }),
                                   {.out_type = {{f32, {8}}}, .aliases = {{0, 0}}});
    refuses([&] { in_place(lent); });
    refuses([&] { lent.copy_from(ramp({8})); });
    refuses([&] { lent.fill(1); });
    refuses([&] { lent.set({0}, 1); });
    refuses([&] { lent.to_dlpack(); });
    EXPECT_TRUE(lent_for_reading(lent).read_only());
    EXPECT_EQ(memory.to_vector<float>(), ramp({8}).to_vector<float>());
}

TEST(Call, MemoryThatThereIsNotIsNamed) {
    EXPECT_THAT(error_of([&] { Tensor::empty(f32, {std::int64_t{1} << 50}); }),
                HasSubstr("bytes of memory"));
    const auto huge = tw::kernel("huge", [](std::span<const Ref> refs) {
        for (const Ref& scratch : refs.subspan(2)) scratch.at(0).store(refs[0].at(0).load());
        refs[1].store(refs.back().at(0).load());
    });
    // More than a process's address space.
    const auto call =
        tw::call(huge, {.out_type = {{f64, {}}},
                        .scratch = std::vector<TensorType>(20, {f64, {std::int64_t{1} << 40}})});
    EXPECT_THAT(error_of([&] { call(Tensor::zeros(f64, {4})); }),
                HasSubstr("[huge] expected memory"));
    // A separate class, since the input is not wrong.
    EXPECT_THAT([&] { call(Tensor::zeros(f64, {4})); },
                throws<OutOfMemory>("[huge] expected memory"));
    EXPECT_THAT([&] { Tensor::empty(f32, {std::int64_t{1} << 50}); },
                throws<OutOfMemory>("bytes of memory"));
}

}  // namespace
}  // namespace tilewright
