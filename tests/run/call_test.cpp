// Calls: grids, block specs, outputs, scratch, aliases, tracing.
#include "cuda/runtime/compiler.h"
#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::HasSubstr;

TEST(Call, RunsTheMatmulOfTheGuide) {
    auto matmul = tw::kernel("matmul", [](tw::Ref x, tw::Ref y, tw::Ref z) {
        z.store(tw::relu(tw::dot(x.load(), y.load())));
    });
    auto call = tw::call(
        matmul,
        {
            .grid = {2, 2},
            .in = {tw::BlockSpec{{16, 32}, [](auto i, auto) { return tw::block(i, 0); }},
                   tw::BlockSpec{{32, 16}, [](auto, auto j) { return tw::block(0, j); }}},
            .out = {tw::BlockSpec{{16, 16}, [](auto i, auto j) { return tw::block(i, j); }}},
            .out_type = {{tw::f32, {32, 32}}},
        });
    const Tensor x = ramp({32, 32}), y = ramp({32, 32}, 0.5);
    tw::Tensor z = call(x, y);
    for (std::int64_t i = 0; i < 32; ++i) {
        for (std::int64_t j = 0; j < 32; ++j) {
            double sum = 0;
            for (std::int64_t k = 0; k < 32; ++k) sum += x.get({i, k}) * y.get({k, j});
            EXPECT_EQ(z.get({i, j}), std::max(sum, 0.0));
        }
    }
    call(x, y);
    EXPECT_EQ(call.num_traces(), 1);
}

TEST(Call, BlocksPastTheEndReadZeroAndAreNotWritten) {
    auto copy = tw::kernel("copy", [](tw::Ref x, tw::Ref z) { z.store(x.load() + 1); });
    const BlockSpec spec{{8}, [](auto i) { return tw::block(i); }};
    auto call =
        tw::call(copy, {.grid = {3}, .in = {spec}, .out = {spec}, .out_type = {{f32, {20}}}});
    const Tensor z = call(ramp({20}));
    for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(z.get({i}), i % 13 - 6 + 1);
}

TEST(Call, TileHintsCutBlocksOnCpusAndChangeNoResult) {
    const auto softmax = tw::kernel("softmax", [](tw::Ref x, tw::Ref z) {
        const Tile weights = tw::exp(x.load() - tw::max(x.load(), 1, true));
        z.store(weights / tw::sum(weights, 1, true));
    });
    const auto with_tiles = [&](std::int64_t rows, std::int64_t lanes) {
        const BlockSpec spec{{20, 100}, [](auto i) { return tw::block(i, 0); }};
        return tw::call(softmax, {.grid = {2},
                                  .in = {spec},
                                  .out = {spec},
                                  .out_type = {{f32, {30, 100}}},
                                  .tile_rows = rows,
                                  .tile_lanes = lanes});
    };
    const Tensor values = ramp({30, 100}, 0.01);
    const Call whole = with_tiles(0, 0), cut = with_tiles(8, 64);
    const std::vector<float> expected = whole(values).to_vector<float>();
    const std::vector<float> found = cut(values).to_vector<float>();
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-7);
    EXPECT_THAT(whole.ir({values}), testing::Not(HasSubstr("for_loop")));
    EXPECT_THAT(cut.ir({values}), HasSubstr("for_loop"));
    EXPECT_THAT(cut.bytecode({values}), HasSubstr("jump"));
    EXPECT_EQ(cut.cuda({values}), whole.cuda({values}));  // the hints are for CPUs
    const auto whole_needed =
        tw::kernel("sort", [](tw::Ref x, tw::Ref z) { z.store(tw::sort(x.load(), 0)); });
    const Call refused =
        tw::call(whole_needed, {.out_type = {{f32, {30, 100}}}, .tile_rows = 1, .tile_lanes = 8});
    EXPECT_THAT(error_of([&] { refused(values); }), HasSubstr("[retile]"));
}

TEST(Call, WithoutInputsOrGrid) {
    auto count = tw::kernel("iota", [](tw::Ref z) { z.store(tw::iota(8, f32)); });
    const Tensor z = tw::call(count, {.out_type = {{f32, {8}}}})();
    EXPECT_EQ(z.to_vector<int>(), Tensor::arange(i32, 8).to_vector<int>());
}

TEST(Call, GivesSeveralOutputs) {
    auto both = tw::kernel("both", [](tw::Ref x, tw::Ref a, tw::Ref b) {
        a.store(tw::sum(x.load(), 1));
        b.store(tw::max(x.load()));
    });
    auto call = tw::call(both, {.out_type = {{f32, {4}}, {f32, {}}}});
    const auto [a, b] = call.outputs<2>(ramp({4, 3}));
    EXPECT_EQ(a.get({0}), -15);
    EXPECT_EQ(b.get({}), 5);
    EXPECT_EQ(call.run({ramp({4, 3})}).size(), 2u);
    EXPECT_THAT(error_of([&] { call(ramp({4, 3})); }), HasSubstr("to have 1 output but it has 2"));
}

TEST(Call, WritesIntoGivenOutputs) {
    auto negate = tw::kernel("negate", [](tw::Ref x, tw::Ref z) { z.store(-x.load()); });
    auto call = tw::call(negate, {.out_type = {{f32, {4}}}});
    const Tensor storage = Tensor::zeros(f32, {8});
    const Tensor x = ramp({4});
    call.into({storage.slice(0, 0, 4, 2)}, {x});
    EXPECT_EQ(storage.get({2}), 5);
    EXPECT_EQ(storage.get({1}), 0);
    EXPECT_THAT(error_of([&] { call.into({x}, {x}); }), HasSubstr("share memory"));
    EXPECT_THAT(error_of([&] { call.into({Tensor::zeros(f32, {5})}, {x}); }),
                HasSubstr("expected output 0 of kernel `negate` to be f32[4] but got f32[5]"));
}

TEST(Call, FindsOutputsThatShareElements) {
    auto negate = tw::kernel("negate", [](tw::Ref x, tw::Ref z) { z.store(-x.load()); });
    auto call = tw::call(negate, {.out_type = {{f32, {3, 2}}}});
    const Tensor rows = ramp({8, 4});
    const auto part = [&](std::int64_t row, std::int64_t column) {
        return rows.slice(0, row, 3).slice(1, column, 2);
    };
    // Interleaved columns and later rows do not overlap; one common row does.
    EXPECT_EQ(error_of([&] { call.into({part(0, 2)}, {part(0, 0)}); }), "");
    EXPECT_EQ(error_of([&] { call.into({part(3, 0)}, {part(0, 0)}); }), "");
    EXPECT_THAT(error_of([&] { call.into({part(2, 0)}, {part(0, 0)}); }),
                HasSubstr("share memory"));
    EXPECT_THAT(error_of([&] { call.into({part(0, 1)}, {part(2, 0)}); }),
                HasSubstr("share memory"));
    // With negative strides from the last element.
    auto last = tw::call(negate, {.out_type = {{f32, {4}}}});
    const Tensor line = ramp({8});
    const Tensor reversed = Tensor::from_data(line.data<float>() + 7, f32, {4}, {-1});
    EXPECT_EQ(error_of([&] { last.into({reversed}, {line.slice(0, 0, 4)}); }), "");
    EXPECT_THAT(error_of([&] { last.into({reversed}, {line.slice(0, 1, 4)}); }),
                HasSubstr("share memory"));
}

TEST(Call, SequentialAxesAccumulate) {
    auto matmul = tw::kernel("matmul", [](tw::Ref x, tw::Ref y, tw::Ref z, tw::Ref acc) {
        tw::when(tw::program_id(2) == 0, [&] { acc.store(0); });
        acc.store(tw::dot(x.load(), y.load(), {.acc = acc.load()}));
        tw::when(tw::program_id(2) == tw::num_programs(2) - 1, [&] { z.store(acc.load()); });
    });
    auto call = tw::call(
        matmul,
        {
            .grid = {2, 2, 4},
            .in = {BlockSpec{{8, 8}, [](auto i, auto, auto k) { return tw::block(i, k); }},
                   BlockSpec{{8, 8}, [](auto, auto j, auto k) { return tw::block(k, j); }}},
            .out = {BlockSpec{{8, 8}, [](auto i, auto j, auto) { return tw::block(i, j); }}},
            .out_type = {{f32, {16, 16}}},
            .scratch = {{f32, {8, 8}}},
            .sequential = {2},
        });
    const Tensor x = ramp({16, 32}), y = ramp({32, 16});
    const Tensor z = call(x, y);
    double sum = 0;
    for (std::int64_t k = 0; k < 32; ++k) sum += x.get({9, k}) * y.get({k, 3});
    EXPECT_EQ(z.get({9, 3}), sum);
}

TEST(Call, AliasesUpdateInPlace) {
    auto add = tw::kernel("add", [](tw::Ref x, tw::Ref z) { z.store(x.load() + 1); });
    auto call = tw::call(add, {.out_type = {{f32, {4}}}, .aliases = {{0, 0}}});
    const Tensor x = ramp({4});
    const Tensor z = call(x);
    EXPECT_EQ(z.raw(), x.raw());
    EXPECT_EQ(x.get({0}), -5);
    EXPECT_THAT(error_of([&] { call(ramp({5})); }), HasSubstr("aliased to"));
}

TEST(Call, AliasedOutputsMayBeOtherViewsOfTheInput) {
    auto add = tw::kernel("add", [](tw::Ref x, tw::Ref z) { z.store(x.load() + 1); });
    auto call = tw::call(add, {.out_type = {{f32, {3, 3}}}, .aliases = {{0, 0}}});
    const Tensor x = ramp({3, 3}), before = x.clone();
    const Tensor turned = x.transpose({1, 0});
    call.into({turned}, {x});
    for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < 3; ++j)
            EXPECT_EQ(turned.get({i, j}), before.get({i, j}) + 1) << i << ", " << j;
}

TEST(Call, AbsentInputs) {
    auto add = tw::kernel("add", [](tw::Ref x, tw::Ref bias, tw::Ref z) {
        Tile v = x.load();
        if (bias.present()) v = v + bias.load();
        z.store(v);
    });
    auto call = tw::call(add, {.out_type = {{f32, {4}}}});
    EXPECT_EQ(call(ramp({4}), ramp({4})).get({0}), -12);
    EXPECT_EQ(call(ramp({4}), Tensor()).get({0}), -6);
    EXPECT_EQ(call.num_traces(), 2);
}

TEST(Call, DynamicDimensionsDoNotRetrace) {
    auto total = tw::kernel("total", [](tw::Ref x, tw::Ref z) {
        const Tile blocks = tw::cdiv(x.extent(0), 8);
        z.store(tw::for_loop(0, blocks, 0.0, [&](auto i, auto acc) {
            return acc + tw::sum(x.at(tw::ds(i * 8, 8)).load());
        }));
    });
    auto call = tw::call(total, {.out_type = {{f32, {}}}, .dynamic = {{0, {0}}}});
    for (std::int64_t n : {1, 7, 8, 9, 100}) {
        EXPECT_EQ(call(Tensor::full(f32, {n}, 2)).get({}), 2.0 * static_cast<double>(n));
    }
    EXPECT_EQ(call.num_traces(), 1);
}

TEST(Call, DynamicDimensionsCountWithoutTheBatch) {
    auto total = tw::kernel("total", [](tw::Ref x, tw::Ref z) {
        z.store(tw::for_loop(0, x.extent(1), 0.0, [&](auto i, auto acc) {
            return acc + tw::sum(x.at(tw::ds(0, x.shape()[0]), i).load());
        }));
    });
    auto call = tw::call(total, {.out_type = {{f32, {}}}, .dynamic = {{0, {1}}}});
    const auto mapped = tw::vmap(call, {0});
    for (std::int64_t n : {1, 5, 9}) {
        const Tensor z = mapped(Tensor::full(f32, {2, 3, n}, 2));
        EXPECT_EQ(z.get({1}), 6.0 * static_cast<double>(n));
    }
    EXPECT_EQ(mapped.num_traces(), 1);
    mapped(Tensor::full(f32, {2, 4, 9}, 2));
    EXPECT_EQ(mapped.num_traces(), 2);
}

TEST(Call, GridsMayDependOnTheInputs) {
    auto copy = tw::kernel("copy", [](tw::Ref x, tw::Ref z) { z.store(x.load()); });
    const BlockSpec spec{{4}, [](auto i) { return tw::block(i); }};
    auto call = tw::call(
        copy, {
                  .grid = [](auto inputs) { return std::vector{(inputs[0].dim(0) + 3) / 4}; },
                  .in = {spec},
                  .out = {spec},
                  .out_type =
                      [](auto inputs) {
                          return std::vector{TensorType{inputs[0].dtype(), inputs[0].shape()}};
                      },
              });
    EXPECT_EQ(call(ramp({10})).get({9}), 3);
    EXPECT_EQ(call(Tensor::zeros(f32, {0})).size(), 0);
}

TEST(Call, BadInputsAreNamed) {
    auto add = tw::kernel("add", {"x", "y", "z"},
                          [](tw::Ref x, tw::Ref y, tw::Ref z) { z.store(x.load() + y.load()); });
    auto call = tw::call(add, {.out_type = {{f32, {4}}}});
    EXPECT_THAT(error_of([&] { call(ramp({4}), ramp({5})); }), HasSubstr("[add]"));
    EXPECT_THAT(error_of([&] { call(ramp({4}), ramp({4}).to(f64)); }),
                HasSubstr("expected a value of f32 for `z` but got f64"));
    EXPECT_THAT(
        error_of([&] { call(ramp({4})); }),
        HasSubstr("expected 3 Refs for kernel `add` but got 2: 1 input, 1 output, 0 scratch"));
    EXPECT_THAT(error_of([&] {
                    tw::call(add, {.out_type = {{f32, {4}}, {f32, {4}}}, .scratch = {{f32, {4}}}})(
                        ramp({4}), ramp({4}));
                }),
                HasSubstr("but got 5: 2 inputs, 2 outputs, 1 scratch"));
    EXPECT_THAT(error_of([&] {
                    tw::call(add, {.grid = {-1}, .out_type = {{f32, {4}}}})(ramp({4}), ramp({4}));
                }),
                HasSubstr("grid extents >= 0"));
    EXPECT_THAT(
        error_of([&] {
            tw::call(add, {.out_type = {{f32, {4}}}, .sequential = {0}})(ramp({4}), ramp({4}));
        }),
        HasSubstr("sequential axes of the 0-dimensional grid"));
}

TEST(Call, PrintsItsIR) {
    auto call = tw::call(tw::kernel("copy", {"x", "z"}, [](Ref x, Ref z) { z.store(x.load()); }),
                         {.out_type = {{f32, {4}}}, .name = "renamed"});
    const std::string text = call.ir({ramp({4})});
    EXPECT_THAT(text, HasSubstr("func @renamed(%x: ref<f32[4]>, %z: ref<f32[4]>)"));
    EXPECT_EQ(call.num_traces(), 0);
}

TEST(Call, PrintsWhatMachinesRun) {
    auto call =
        tw::call(tw::kernel("copy", {"x", "z"}, [](Ref x, Ref z) { z.store(x.load() * 2); }),
                 {.out_type = {{f32, {64}}}});
    EXPECT_THAT(call.bytecode({ramp({64})}), HasSubstr("copy"));
    EXPECT_THAT(call.cuda({ramp({64})}), HasSubstr("__global__"));
    EXPECT_THAT(call.cuda({ramp({64})}, "sm_90a"), HasSubstr("__global__"));
    EXPECT_THAT(error_of([&] { call.cuda({ramp({64})}, "sm_7"); }), HasSubstr("sm_7"));
    EXPECT_EQ(call.num_traces(), 0);
    if (cuda::nvrtc_report().found()) {
        EXPECT_THAT(call.ptx({ramp({64})}, "sm_90a"), HasSubstr(".target sm_90a"));
    } else {
        EXPECT_THAT(error_of([&] { call.ptx({ramp({64})}); }), HasSubstr("NVRTC"));
    }
}

TEST(Call, DotsAddWhatIsBroadcast) {
    const Tensor a = ramp({2, 3}), b = ramp({3, 4});
    const auto product = [&](const std::function<Tile(Tile, Tile)>& f) {
        return run_once([&](Ref x, Ref y, Ref z) { z.store(f(x.load(), y.load())); }, {f32, {2, 4}},
                        {a, b})
            .to_vector<float>();
    };
    const auto plain = product([](Tile x, Tile y) { return tw::dot(x, y); });
    EXPECT_EQ(product([](Tile x, Tile y) { return tw::dot(x, y, {.acc = 0}); }), plain);
    EXPECT_EQ(product([](Tile x, Tile y) {
                  return tw::dot(tw::transpose(x), tw::transpose(y),
                                 {.trans_a = true, .trans_b = true, .acc = 1.5});
              }),
              product([](Tile x, Tile y) { return tw::dot(x, y) + 1.5; }));
    EXPECT_EQ(product([](Tile x, Tile y) { return tw::dot(x, y, {.acc = tw::iota(4, f32)}); }),
              product([](Tile x, Tile y) { return tw::dot(x, y) + tw::iota(4, f32); }));
    EXPECT_THAT(error_of([&] {
                    product([](Tile x, Tile y) { return tw::dot(x, y, {.acc = tw::iota(3)}); });
                }),
                HasSubstr("[3]"));
}

TEST(Call, StridedInputsWork) {
    const Tensor wide = ramp({8, 6});
    const Tensor view = wide.transpose({1, 0}).slice(1, 1, 3, 2);
    const Tensor sum =
        run_once([](Ref x, Ref z) { z.store(tw::sum(x.load(), 1)); }, {f32, {6}}, {view});
    for (std::int64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(sum.get({i}), wide.get({1, i}) + wide.get({3, i}) + wide.get({5, i}));
    }
}

TEST(Call, ElementOffsetsMayOverlap) {
    auto windows = tw::kernel("windows", [](Ref x, Ref z) { z.store(tw::sum(x.load())); });
    auto call = tw::call(
        windows, {
                     .grid = {6},
                     .in = {BlockSpec{{tw::element(3)}, [](auto i) { return tw::block(i); }}},
                     .out = {BlockSpec{{tw::squeezed}, [](auto i) { return tw::block(i); }}},
                     .out_type = {{f32, {6}}},
                 });
    const Tensor x = ramp({8});
    const Tensor z = call(x);
    for (std::int64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(z.get({i}), x.get({i}) + x.get({i + 1}) + x.get({i + 2}));
    }
}

TEST(Vmap, AddsAGridAxis) {
    auto scale = tw::kernel("scale", [](tw::Ref x, tw::Ref s, tw::Ref z) {
        z.store(x.load() * s.load() + tw::program_id(0).to(f32));
    });
    const BlockSpec spec{{4}, [](auto i) { return tw::block(i); }};
    auto call =
        tw::call(scale, {.grid = {2}, .in = {spec}, .out = {spec}, .out_type = {{f32, {8}}}});
    const Tensor x = ramp({3, 8}), s = Tensor::from_vector<float>({1, 2, 3}, {3});
    const Tensor z = tw::vmap(call, {0, 0})(x, s);
    EXPECT_EQ(z.shape(), (Tensor::Dims{3, 8}));
    EXPECT_EQ(z.get({2, 5}), x.get({2, 5}) * 3 + 1);
    const Tensor columns =
        tw::vmap(call, {1, kNotMapped}, {1})(x.transpose({1, 0}), Tensor::scalar(f32, 2));
    EXPECT_EQ(columns.shape(), (Tensor::Dims{8, 3}));
    EXPECT_EQ(columns.get({5, 2}), x.get({2, 5}) * 2 + 1);
    const Tensor twice = tw::vmap(tw::vmap(call, {0, kNotMapped}), {0, 0})(
        ramp({2, 3, 8}), Tensor::from_vector<float>({1, 2}, {2}));
    EXPECT_EQ(twice.get({1, 2, 7}), ramp({2, 3, 8}).get({1, 2, 7}) * 2 + 1);
    EXPECT_THAT(error_of([&] {
                    tw::vmap(call, {0, 0})(ramp({3, 8}), ramp({4}));
                }),
                HasSubstr("to have batch extent 3"));
    EXPECT_THAT(error_of([&] { tw::vmap(call, {0})(x, s); }),
                HasSubstr("in_axes to name an axis for each of 2 inputs but got 1"));
    EXPECT_THAT(error_of([&] {
                    tw::vmap(call, {0, 0}, {0, 0})(x, s);
                }),
                HasSubstr("out_axes to name an axis for each of 1 outputs but got 2"));
}

TEST(Call, WhatChangesNothingInABodyStaysVisibleAfterIt) {
    const auto k = tw::kernel("k", [](Ref x, Ref z) {
        const Tile w = x.load();
        const Tile sums =
            tw::for_loop(0, 4, tw::zeros({8}, f32), [&](Tile, Tile a) { return a + w.to(f32); });
        tw::when(sums.dim(0) > 0, [&] { z.store(w.to(f32)); });
        z.store(sums + w.to(f32));
    });
    const auto call = tw::call(k, {.out_type = {{f32, {8}}}});
    EXPECT_EQ(call(ramp({8})).get({7}), 5 * ramp({8}).get({7}));
    EXPECT_THAT(error_of([] {
                    Tile kept;
                    tw::call(tw::kernel("k",
                                        [&](Ref x, Ref z) {
                                            tw::when(x.extent(0) > 0, [&] { kept = x.load() + 1; });
                                            z.store(kept);
                                        }),
                             {.out_type = {{f32, {8}}}})(ramp({8}));
                }),
                HasSubstr("inside the body of a loop or branch"));
}

}  // namespace
}  // namespace tilewright
