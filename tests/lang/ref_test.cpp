// Refs: blocks, views and their IR.
#include "tests/lang/trace_support.h"

namespace tilewright::lang {
namespace {

using testing::HasSubstr;

const ir::Instruction& first(const ir::Function& function, ir::Op op) {
    const ir::Instruction* found = nullptr;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        if (!found && instruction.op == op) found = &instruction;
    });
    EXPECT_NE(found, nullptr);
    return *found;
}

TEST(Blocks, BecomeSlicesOfTheArray) {
    const auto function =
        traced({input(f32, {100, 64}, {{16, 32}, [](auto i, auto j) { return block(i, j); }}),
                output(f32, {100, 64}, {{16, 32}, [](auto i, auto j) { return block(i, j); }})},
               [](Ref x, Ref z) {
                   EXPECT_EQ(x.shape(), (Extents{16, 32}));
                   z.store(x.load() + 1);
               },
               {7, 2});
    const auto& load = first(function, ir::Op::load);
    ASSERT_EQ(load.get<ir::AccessAttributes>().indices.size(), 2u);
    EXPECT_EQ(load.get<ir::AccessAttributes>().indices[1].size, 32);
    EXPECT_EQ(function.grid, (std::vector<std::int64_t>{7, 2}));
    EXPECT_EQ(function.parameters().size(), 2u);
}

TEST(Blocks, SqueezedDimensionsDisappear) {
    traced({input(f32, {4, 100, 64},
                  {{squeezed, 10, all}, [](auto b, auto i) { return block(b, i, 0); }})},
           [](Ref x) {
               EXPECT_EQ(x.shape(), (Extents{10, 64}));
               EXPECT_EQ(x.at(3, ds(0, 8, 4)).shape(), (Extents{8}));
           },
           {4, 10});
}

TEST(Blocks, IndexMapsMayTakeAnyNumberOfIndices) {
    const BlockSpec spec{{4, 4}, [](auto... indices) { return block(indices...); }};
    const auto function = traced({input(f32, {8, 8}, spec)}, [](Ref x) { x.load(); }, {2, 2});
    EXPECT_EQ(count(function, ir::Op::mul), 2);
}

TEST(Blocks, OnlyIndicesThatMayWrapAreSaturated) {
    const auto clamps = [](BlockSpec spec, std::int64_t extent) {
        return count(traced({input(f32, {64}, std::move(spec))}, [](Ref x) { x.load(); }, {extent}),
                     ir::Op::clamp);
    };
    EXPECT_EQ(clamps({{4}, [](auto i) { return block(floordiv(i, 4) * 3 + 1); }}, 8), 0);
    EXPECT_EQ(clamps({{4}, [](auto i) { return block(where(i == 0, 0, i - 1)); }}, kDynamic), 0);
    EXPECT_EQ(clamps({{4}, [](auto i) { return block(i + (std::int64_t{1} << 62)); }}, 8), 1);
    EXPECT_EQ(clamps({{element(4)}, [](auto i) { return block(i + INT64_MAX); }}, 8), 0);
}

TEST(Blocks, BadSpecsNameTheParameter) {
    const auto arity = error_of([] {
        traced({input(f32, {8}, {{4}, [](auto i, auto) { return block(i); }})}, [](Ref) {}, {2});
    });
    EXPECT_THAT(arity, HasSubstr("expected the index map of `x` of kernel `test` to take 1 indices "
                                 "(one per grid axis) but it takes 2"));
    const auto rank = error_of([] {
        traced({input(f32, {8, 8}, {{4}, [](auto i) { return block(i); }})}, [](Ref) {}, {2});
    });
    EXPECT_THAT(rank, HasSubstr("expected a block shape of rank 2 for `x`"));
    const auto returned = error_of([] {
        traced({input(f32, {8, 8}, {{4, 4}, [](auto i) { return block(i); }})}, [](Ref) {}, {2});
    });
    EXPECT_THAT(returned, HasSubstr("to return 2 indices but got 1"));
    const auto size = error_of([] {
        traced({input(f32, {8}, {{0}, [](auto i) { return block(i); }})}, [](Ref) {}, {2});
    });
    EXPECT_THAT(size, HasSubstr("expected a positive block size in dimension 0"));
}

TEST(Kernels, WithTheWrongNumberOfRefsAreRefused) {
    EXPECT_THAT(error_of([] { traced({input(f32, {8})}, [](Ref, Ref) {}); }),
                HasSubstr("expected 2 Refs for kernel `test`"));
}

TEST(Views, StaticIndicesOutsideTheBlockAreErrors) {
    with_input([](Ref x) {
        EXPECT_THAT(error_of([&] { x.at(8); }), HasSubstr("inside dimension 0 of `x` (extent 8)"));
        EXPECT_THAT(error_of([&] { x.at(-1); }), HasSubstr("but got elements -1"));
        EXPECT_THAT(error_of([&] { x.at(all, ds(8, 9)); }), HasSubstr("elements 8 to 16"));
        EXPECT_THAT(error_of([&] { x.at(0, 0, 0); }), HasSubstr("at most 2 indices"));
        EXPECT_THAT(error_of([&] { x.at(ds(0, 4, 0)); }), HasSubstr("stride >= 1"));
        EXPECT_THAT(error_of([&] { x.at(8); }), HasSubstr("ref_test.cpp:"));
        EXPECT_EQ(x.at(ds(1, 3, 2)).at(2).shape(), (Extents{16}));
    });
}

TEST(Views, WideIndicesOfStridedViewsAreSaturated) {
    const auto clamps = [](DType dtype) {
        return count(with_input([&](Ref x) {
                         const Tile index = x.at(0, 0).load().to(dtype);
                         x.at(ds(0, 4, 2)).at(index).load();
                     }),
                     ir::Op::clamp);
    };
    EXPECT_EQ(clamps(i32), 0);
    EXPECT_EQ(clamps(i64), 1);
}

TEST(Views, IndexTilesGather) {
    const auto function = with_input([](Ref x) {
        const Tile rows = expand_dims(iota(4), 1);
        const Tile columns = iota(5);
        EXPECT_EQ(x.at(rows, columns).shape(), (Extents{4, 5}));
        EXPECT_EQ(x.at(all, columns).load().shape(), (Extents{8, 5}));
        EXPECT_THAT(error_of([&] { x.at(columns).at(0); }), HasSubstr("made by an index tile"));
    });
    EXPECT_EQ(first(function, ir::Op::load).get<ir::AccessAttributes>().indices[1].kind,
              ir::Index::Kind::tile);
}

TEST(Stores, CheckDtypeShapeAndDirection) {
    traced({input(f32, {8}), output(bf16, {8})}, [](Ref x, Ref z) {
        EXPECT_THAT(error_of([&] { z.store(x.load()); }),
                    HasSubstr("expected a value of bf16 for `z` but got f32; convert it with "
                              ".to(bf16)"));
        EXPECT_THAT(error_of([&] { x.store(0); }), HasSubstr("`x` is an input"));
        EXPECT_THAT(error_of([&] { z.store(zeros({4}, bf16)); }),
                    HasSubstr("broadcasts to [8] for `z` but got [4]"));
        z.store(0.5);
        z.at(0).store(1);
    });
}

TEST(DynamicExtents, AreTracedAndSliced) {
    const auto function = traced({input(f32, {kDynamic, 64})}, [](Ref x) {
        EXPECT_THAT(error_of([&] { x.load(); }), HasSubstr("`x` has a dynamic one"));
        EXPECT_EQ(x.at(ds(x.extent(0) - 8, 8)).load().shape(), (Extents{8, 64}));
        EXPECT_EQ(x.extent(1).dtype(), i64);
    });
    EXPECT_EQ(count(function, ir::Op::extent), 1);
}

TEST(AbsentRefs, AreNotParameters) {
    const auto function =
        traced({input(f32, {}, BlockSpec::absent()), output(f32, {8})}, [](Ref x, Ref z) {
            EXPECT_FALSE(x.present());
            EXPECT_TRUE(z.present());
            EXPECT_THAT(error_of([&] { x.load(); }), HasSubstr("was left out by the caller"));
        });
    EXPECT_EQ(function.parameters().size(), 1u);
}

}  // namespace
}  // namespace tilewright::lang
