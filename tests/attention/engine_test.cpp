// Engines of attention: the choice among them, refusals, and an additional engine.
#include "attention/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/prepare.h"
#include "attention/sm90/backward.h"
#include "attention/sm90/engine.h"
#include "attention/sm90/forward.h"
#include "attention/tiles/engine.h"
#include "tilewright/error.h"

namespace tilewright::attn {
namespace {

using testing::HasSubstr;

constexpr EngineId kConstant{77};

struct ConstantConfig : EngineConfig {
    double value;
    explicit ConstantConfig(double chosen) : value(chosen) {}
    Config numbers() const override { return {{"value", static_cast<std::int64_t>(value)}}; }
};

/// Fills its results with a number; supports only f64 forward passes without a score mod.
class ConstantEngine : public Engine {
  public:
    EngineId id() const override { return kConstant; }
    const char* description() const override { return "a constant"; }
    std::optional<Refusal> supports(const AttentionSpec& spec) const override {
        if (spec.pass == Pass::backward) return Refusal{"constants have no gradient"};
        if (spec.dtype != f64) return Refusal{"the query is no f64"};
        return std::nullopt;
    }
    ConfigPtr choose(const AttentionSpec& spec) const override {
        return std::make_shared<ConstantConfig>(static_cast<double>(spec.query_length));
    }
    std::int64_t workspace(const AttentionSpec& spec, const EngineConfig&) const override {
        return spec.kv_length;
    }
    void launch(const AttentionSpec& spec, const EngineConfig& config,
                const AttentionBuffers& buffers, void* stream) const override {
        EXPECT_EQ(stream, nullptr);
        EXPECT_EQ(buffers.workspace.nbytes(), spec.kv_length);
        buffers.result.out.fill(static_cast<const ConstantConfig&>(config).value);
    }
};

const ConstantEngine kEngine;
const std::vector<const Engine*> kMore = {&kEngine, &sm90::engine(), &tiles::engine()};

AttentionCall call_of(DType dtype) {
    const Tensor x = Tensor::zeros(dtype, {1, 2, 24, 16});
    AttentionCall call = prepare(x, x, x, {});
    call.buffers.result = {
        Tensor::zeros(dtype, x.shape()), Tensor::zeros(dtype == f64 ? f64 : f32, {1, 2, 24}), {}};
    return call;
}

std::string error_of(auto work) {
    try {
        work();
    } catch (const UserError& error) {
        return error.what();
    }
    return "no error";
}

TEST(Engines, OneMoreRunsWhatItSupports) {
    AttentionCall call = call_of(f64);
    const Engine& engine = choose_engine(call.spec, kMore);
    EXPECT_EQ(engine.id(), kConstant);
    run_on(engine, call.spec, call.buffers);
    EXPECT_EQ(call.buffers.result.out.get({0, 1, 23, 15}), 24);
}

TEST(Engines, WhatOneDoesNotSupportGoesToTheNext) {
    AttentionCall call = call_of(f32);
    EXPECT_EQ(choose_engine(call.spec, kMore).id(), EngineId::tiles);
    call.spec.dtype = f64;
    call.spec.pass = Pass::backward;
    EXPECT_EQ(choose_engine(call.spec, kMore).id(), EngineId::tiles);
}

TEST(Engines, TheLogSaysWhyEachIsPassedOver) {
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    ::testing::internal::CaptureStderr();
    choose_engine(call_of(f32).spec, kMore);
    ::unsetenv("TILEWRIGHT_DEBUG");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("forward: tile programs, since the query is no f64; the tensors are in "
                          "CPU memory"));
}

TEST(Engines, TheOneAskedForRefusesWithItsReason) {
    AttentionSpec spec = call_of(f32).spec;
    spec.engine = EngineId::sm90;
    EXPECT_EQ(error_of([&] { choose_engine(spec); }),
              "[attention] expected a forward pass that engine `sm90` can run but the tensors are "
              "in CPU memory");
    spec.engine = kConstant;
    EXPECT_THAT(error_of([&] { choose_engine(spec, kMore); }),
                HasSubstr("can run but the query is no f64"));
    EXPECT_THAT(error_of([&] { choose_engine(spec); }), HasSubstr("there is no such engine"));
    spec.engine = EngineId::tiles;
    EXPECT_EQ(choose_engine(spec, kMore).id(), EngineId::tiles);
}

TEST(Engines, AreAskedFromTheFastest) {
    std::vector<EngineId> ids;
    for (const Engine* const engine : engines()) ids.push_back(engine->id());
    EXPECT_EQ(ids, (std::vector{EngineId::sm90, EngineId::tiles}));
}

AttentionSpec hopper_spec() {
    AttentionSpec spec;
    spec.device = Device::cuda();
    spec.dtype = bf16;
    spec.batch = 2;
    spec.query_heads = spec.kv_heads = 4;
    spec.query_length = spec.kv_length = 512;
    spec.head_dim = spec.value_dim = 128;
    return spec;
}

/// Why the Hopper kernels do not support a call; must not throw.
std::string refusal_of(AttentionSpec spec, Pass pass = Pass::forward) {
    spec.pass = pass;
    sm90::ForwardDesc forward;
    sm90::BackwardDesc backward;
    std::optional<Refusal> refusal;
    EXPECT_NO_THROW(refusal = pass == Pass::forward ? sm90::describe(spec, forward)
                                                    : sm90::describe(spec, backward));
    return refusal ? refusal->reason : "supported";
}

TEST(Sm90Engine, RefusesByRuleWithoutExceptions) {
    EXPECT_EQ(refusal_of(hopper_spec()), "supported");
    EXPECT_EQ(refusal_of(hopper_spec(), Pass::backward), "supported");
    AttentionSpec spec = hopper_spec();
    spec.head_dim = 100;
    EXPECT_EQ(refusal_of(spec),
              "[attention (sm90)] query: expected a head dimension that is a multiple of 8 up to "
              "256 but got 100");
    spec = hopper_spec();
    spec.dtype = f32;
    EXPECT_EQ(refusal_of(spec, Pass::backward),
              "[attention (sm90)] query: expected bf16 or f16 elements but got f32");
    spec = hopper_spec();
    spec.head_dim = std::int64_t{1} << 40;
    EXPECT_THAT(refusal_of(spec), HasSubstr("a multiple of 8 up to 256"));
}

/// The spec of a call with a mod, made on the CPU and moved to the GPU.
AttentionSpec with_mod(const Mod& score) {
    const Tensor x = Tensor::zeros(bf16, {1, 2, 64, 64});
    AttentionSpec spec = prepare(x, x, x, {.score_mod = score}).spec;
    spec.device = Device::cuda();
    return spec;
}

TEST(Sm90Engine, RefusesModsWithoutExceptions) {
    EXPECT_EQ(refusal_of(with_mod([](auto s, auto, auto, auto, auto) { return s * 2.0; })),
              "supported");
    const Mod narrow = [](auto s, auto, auto, auto q, auto) { return s + (q * q).to(f16).to(f32); };
    EXPECT_THAT(refusal_of(with_mod(narrow)),
                HasSubstr("expected integers below 2^24 in a cast to f16"));
    const Mod stepped = [](auto s, auto, auto, auto, auto) { return nextafter(s, 1.0); };
    EXPECT_EQ(refusal_of(with_mod(stepped)), "supported");
    EXPECT_EQ(refusal_of(with_mod(stepped), Pass::backward),
              "[attention (sm90)] score_mod: expected ops with a derivative but got nextafter");
    const Capture bytes = capture(Tensor::zeros(f8e4m3, {64}));
    const Mod of_bytes = [bytes](auto s, auto, auto, auto q, auto) { return s + bytes[q].to(f32); };
    EXPECT_THAT(refusal_of(with_mod(of_bytes)), HasSubstr("but got f8e4m3"));
    const Capture table = capture(Tensor::zeros(f32, {64}));
    const Mod by_query = [table](auto s, auto, auto, auto q, auto) { return s + table[q]; };
    AttentionSpec spec = with_mod(by_query);
    EXPECT_EQ(refusal_of(spec), "supported");
    EXPECT_THAT(refusal_of(spec, Pass::backward),
                HasSubstr("deterministic: expected gradients of captures that add up in one order, "
                          "but capture 0 of the score mod is read by queries"));
    spec.deterministic = false;
    EXPECT_EQ(refusal_of(spec, Pass::backward), "supported");
}

TEST(Sm90Engine, DescriptionsOfSpecsAndOfArraysAreOne) {
    AttentionSpec spec = hopper_spec();
    spec.causal = true;
    spec.window_left = 100;
    spec.query_length = 300;
    sm90::ForwardDesc of_spec;
    ASSERT_FALSE(sm90::describe(spec, of_spec));
    sm90::ForwardInputs inputs;
    const auto tensor = [](std::int64_t rows) {
        return sm90::DeviceTensor{1 << 20, {2, 4, rows, 128}, {4 * rows * 128, rows * 128, 128, 1}};
    };
    inputs.query = inputs.out = tensor(300);
    inputs.key = inputs.value = tensor(512);
    inputs.lse = inputs.workspace = 1 << 20;
    inputs.upper_diagonal = 0;
    inputs.lower_diagonal = -100;
    const sm90::ForwardDesc of_arrays = sm90::check_forward(inputs);
    EXPECT_EQ(variant_key(of_spec), variant_key(of_arrays));
    EXPECT_EQ(of_spec.upper_diagonal, of_arrays.upper_diagonal);
    EXPECT_EQ(of_spec.lower_diagonal, of_arrays.lower_diagonal);
    EXPECT_EQ(choose_forward(of_spec, 132), choose_forward(of_arrays, 132));
}

TEST(TilesEngine, ConfigurationsFollowTheSpecAlone) {
    AttentionCall call = call_of(f32);
    const ConfigPtr config = tiles::engine().choose(call.spec);
    EXPECT_EQ(config->numbers().to_string(), "kv=32, q=24");
    call.spec.forward_blocks = {.q = 8, .kv = 16};
    EXPECT_EQ(tiles::engine().choose(call.spec)->numbers().to_string(), "kv=16, q=8");
    EXPECT_EQ(tiles::engine().trials(call.spec).size(), 1u);
    // The caller does not take the row maxima, so the programs store them in the workspace.
    EXPECT_EQ(tiles::engine().workspace(call.spec, *config), 256);
    call.spec.max_scores = true;
    EXPECT_EQ(tiles::engine().workspace(call.spec, *config), 0);
    call.spec.forward_blocks = {};
    call.spec.query_length = call.spec.kv_length = 300;
    EXPECT_GT(tiles::engine().trials(call.spec).size(), 1u);
}

}  // namespace
}  // namespace tilewright::attn
