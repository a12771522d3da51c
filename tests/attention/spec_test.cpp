// Specs of attention calls: equality, order, printing, and how arguments are translated.
#include "attention/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "attention/prepare.h"
#include "tilewright/error.h"

namespace tilewright::attn {
namespace {

using testing::HasSubstr;

AttentionSpec small() {
    AttentionSpec spec;
    spec.dtype = bf16;
    spec.batch = 2;
    spec.query_heads = 8;
    spec.kv_heads = 2;
    spec.query_length = 100;
    spec.kv_length = 300;
    spec.head_dim = 64;
    spec.value_dim = 32;
    spec.scale = 0.125;
    return spec;
}

ModSpec mod_of(const std::string& text) {
    ModSpec mod;
    mod.function = std::make_shared<const ir::Function>();
    mod.text = text;
    return mod;
}

TEST(AttentionSpec, EveryFieldCountsInEqualityAndOrder) {
    const std::vector<std::function<void(AttentionSpec&)>> changes = {
        [](auto& s) { s.pass = Pass::backward; },
        [](auto& s) { s.device = Device::cuda(); },
        [](auto& s) { s.device.index = 1; },
        [](auto& s) { s.dtype = f16; },
        [](auto& s) { s.batch = 3; },
        [](auto& s) { s.query_heads = 16; },
        [](auto& s) { s.kv_heads = 1; },
        [](auto& s) { s.query_length = 101; },
        [](auto& s) { s.kv_length = 301; },
        [](auto& s) { s.head_dim = 72; },
        [](auto& s) { s.value_dim = 40; },
        [](auto& s) { s.sequences = 4; },
        [](auto& s) { s.scale = 0.25; },
        [](auto& s) { s.causal = true; },
        [](auto& s) { s.window_left = 7; },
        [](auto& s) { s.window_right = 7; },
        [](auto& s) { s.segment_ids = i32; },
        [](auto& s) { s.kv_lengths = i32; },
        [](auto& s) { s.sinks = f32; },
        [](auto& s) { s.block_mask = true; },
        [](auto& s) { s.mask_keys = 256; },
        [](auto& s) { s.dropout = 0.5; },
        [](auto& s) { s.score = mod_of("score"); },
        [](auto& s) {
            s.score.captures.push_back({f32, {2}, {1}});
        },
        [](auto& s) { s.score.derivative = std::make_shared<const ir::Function>(); },
        [](auto& s) { s.mask = mod_of("mask"); },
        [](auto& s) { s.is_part = true; },
        [](auto& s) {
            s.origin = {0, 1};
        },
        [](auto& s) { s.max_scores = true; },
        [](auto& s) { s.joined_rows = true; },
        [](auto& s) { s.query_gradient = false; },
        [](auto& s) { s.key_gradient = false; },
        [](auto& s) { s.value_gradient = false; },
        [](auto& s) { s.dlse = true; },
        [](auto& s) { s.deterministic = false; },
        [](auto& s) { s.checked = true; },
        [](auto& s) { s.gradient = true; },
        [](auto& s) { s.autotune = true; },
        [](auto& s) { s.engine = EngineId::tiles; },
        [](auto& s) { s.forward_blocks.q = 32; },
        [](auto& s) { s.forward_blocks.num_warps = 4; },
        [](auto& s) { s.backward_blocks.kv = 32; },
        [](auto& s) { s.backward_blocks.num_stages = 2; },
    };
    EXPECT_EQ(small(), small());
    EXPECT_FALSE(small() < small());
    for (std::size_t i = 0; i < changes.size(); ++i) {
        SCOPED_TRACE(i);
        AttentionSpec changed = small();
        changes[i](changed);
        EXPECT_NE(changed, small());
        EXPECT_NE(changed < small(), small() < changed);
        EXPECT_EQ(changed, AttentionSpec(changed));
    }
}

TEST(AttentionSpec, ModsAreEqualByTheirText) {
    AttentionSpec a = small(), b = small();
    a.score = mod_of("same");
    b.score = mod_of("same");
    ASSERT_NE(a.score.function, b.score.function);
    EXPECT_EQ(a, b);
}

TEST(AttentionSpec, PrintsWhatItHas) {
    EXPECT_EQ(to_string(small()), "forward bf16 q 2x8x100x64 kv 2x2x300x32 on cpu, scale 0.125");
    AttentionSpec spec = small();
    spec.pass = Pass::backward;
    spec.device = Device::cuda(1);
    spec.sequences = 3;
    spec.causal = true;
    spec.window_left = 9;
    spec.segment_ids = i32;
    spec.sinks = f32;
    spec.block_mask = true;
    spec.mask_keys = 256;
    spec.dropout = 0.25;
    spec.score = mod_of("1234");
    spec.score.captures.push_back({f16, {2, 3}, {3, 1}});
    spec.deterministic = false;
    spec.engine = EngineId::sm90;
    spec.backward_blocks = {.q = 64, .kv = 0, .num_warps = 8, .num_stages = 2};
    EXPECT_EQ(
        to_string(spec),
        "backward bf16 q 2x8x100x64 kv 2x2x300x32 on cuda:1, scale 0.125, 3 packed "
        "sequences, causal, window (9, -1), i32 segment ids, f32 sinks, mask as data of "
        "about 256 keys a query, dropout 0.25, score mod of 4 characters f16[2, 3], any order, "
        "engine sm90, backward blocks 64 x 0, 8 warps, 2 stages");
}

TEST(AttentionSpec, NamesOfEngines) {
    EXPECT_EQ(engine_named(""), EngineId::fastest);
    EXPECT_EQ(engine_named("tiles"), EngineId::tiles);
    EXPECT_EQ(engine_named("sm90"), EngineId::sm90);
    try {
        engine_named("fast");
        FAIL() << "no error";
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("expected engine `tiles` or `sm90`"),
                                        HasSubstr("but got `fast`")));
    }
}

TEST(AttentionSpec, OfEqualCallsIsEqualWhateverTheArraysHold) {
    const auto spec_of = [](double value, const AttentionOptions& options) {
        const Tensor x = Tensor::full(f32, {1, 2, 40, 16}, value);
        return prepare(x, x, x, options).spec;
    };
    const auto alibi = [] {
        return Mod([](auto s, auto, auto, auto q, auto kv) { return s - (q - kv).to(f32); });
    };
    const AttentionSpec one = spec_of(1, {.causal = true, .score_mod = alibi()});
    EXPECT_EQ(one, spec_of(2, {.causal = true, .score_mod = alibi(), .seed = 3}));
    EXPECT_NE(one, spec_of(1, {.score_mod = alibi()}));
    EXPECT_FALSE(one.block_mask);
}

TEST(AttentionSpec, SaysAboutHowManyKeysTheMaskLeavesAQuery) {
    const Tensor x = Tensor::zeros(f32, {1, 2, 2048, 16});
    const auto keys = [&](std::int64_t window) {
        const BlockMask mask = create_block_mask(masks::window(window, 0), 1, 1, 2048, 2048);
        return prepare(x, x, x, {.block_mask = mask}).spec.mask_keys;
    };
    EXPECT_EQ(keys(0), 64);
    EXPECT_EQ(keys(200), 256);
    EXPECT_EQ(keys(2048), 1024);
    EXPECT_EQ(prepare(x, x, x, {.causal = true}).spec.mask_keys, 0);
}

TEST(AttentionSpec, EndsTheKeysAndDropsWindowsThatBoundNothing) {
    const Tensor q = Tensor::zeros(f32, {1, 2, 40, 16}), k = Tensor::zeros(f32, {1, 2, 90, 16});
    const AttentionCall causal = prepare(q, k, k, {.causal = true, .window = {60, -1}});
    EXPECT_EQ(causal.spec.kv_length, 40);
    EXPECT_EQ(causal.buffers.key.dim(2), 40);
    EXPECT_EQ(causal.given_kv_length, 90);
    EXPECT_EQ(causal.spec.window_left, -1);
}

}  // namespace
}  // namespace tilewright::attn
