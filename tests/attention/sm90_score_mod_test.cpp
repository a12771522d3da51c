// Score mods and masks of the Hopper kernels without a GPU: their text, their lists, and clean
// compilation of variants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <limits>

#include "attention/sm90/backward.h"
#include "attention/sm90/lists.h"
#include "tests/attention/sm90_programmable.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::attn::sm90 {
namespace {

using testing::HasSubstr;
using testing::Not;

ScoreModText header_of(const Mod& mod, std::int64_t length = 8192, bool derivative = false) {
    const mod::Traced& traced = mod::trace(mod);
    const std::vector<cuda::DeviceAddress> addresses(traced.captures.size(), 1 << 20);
    const std::vector<CaptureView> views = views_of(traced.captures, addresses);
    ScoreModFacts facts =
        score_mod_facts(*traced.function, views, length, length, /*columns_are_keys=*/!derivative);
    facts.derivative = derivative;
    return score_mod_header(*traced.function, facts);
}

std::string text_of(const Mod& mod, std::int64_t length = 8192, bool derivative = false) {
    const ScoreModText header = header_of(mod, length, derivative);
    EXPECT_EQ(header.refusal, "");
    return header.text;
}

/// The text of `exponent`, which runs for every score.
std::string exponent_of(const Mod& mod) {
    const std::string text = text_of(mod);
    return text.substr(text.find("float exponent("));
}

/// The text of `gradient`, which runs for every score in the backward pass.
std::string gradient_of(const Mod& mod) {
    const std::string text = text_of(mod, 8192, true);
    const std::size_t begin = text.find("float gradient(");
    return text.substr(begin, text.find("}", begin) - begin);
}

TEST(Sm90ScoreMod, AffinePartsJoinTheExponent) {
    // One multiply-add for the position, one for the score; the slope is read once for a tile.
    const Tensor slopes = Tensor::zeros(f32, {16});
    const std::string whole = text_of(scores::alibi(capture(slopes)));
    EXPECT_THAT(whole.substr(0, whole.find("enter_rows")), HasSubstr("__ldg"));
    const std::string text = exponent_of(scores::alibi(capture(slopes)));
    EXPECT_THAT(text,
                HasSubstr("fmaf(score, (1.442695f * scale), fmaf(static_cast<float>(offset),"));
    EXPECT_THAT(text, Not(HasSubstr("__ldg")));
    // A soft cap's division and both of its factors become constants.
    EXPECT_THAT(exponent_of(scores::softcap(20, true)), HasSubstr("ptx::tanh_approx"));
    EXPECT_THAT(exponent_of(scores::softcap(20, true)), Not(HasSubstr(" / ")));
    EXPECT_THAT(exponent_of(scores::softcap(20)), HasSubstr("tanhf"));
}

TEST(Sm90ScoreMod, ChoicesBetweenFactorsTakeOneMultiplyAdd) {
    const Mod checkerboard([](auto s, auto, auto, auto q, auto kv) {
        const Tile distance = abs(kv - q);
        const Tile halved = where(distance % 1 == 0, s * 0.5, s);
        return where(distance % 2 == 0, halved * 2, halved);
    });
    const std::string text = exponent_of(checkerboard);
    EXPECT_THAT(text, HasSubstr("& 1"));
    EXPECT_THAT(text, Not(HasSubstr("abs")));
    EXPECT_THAT(text, HasSubstr("? (1.442695f * scale) : (0.7213475f * scale)"));
    EXPECT_EQ(text.find("fmaf(score"), text.rfind("fmaf(score"));
    // Both choices are finite, so that a gradient of 0 needs no special case.
    EXPECT_THAT(gradient_of(checkerboard), HasSubstr("return grad * "));
    // Two multiply-adds if more than a factor differs, and no score times 0.
    const Mod shifted(
        [](auto s, auto, auto, auto q, auto kv) { return where(q % 2 == 0, s * 2 + kv * 0.5, s); });
    EXPECT_NE(exponent_of(shifted).find("fmaf(score"), exponent_of(shifted).rfind("fmaf(score"));
    const Mod zeroed(
        [](auto s, auto, auto, auto q, auto kv) { return where((q + kv) % 2 == 0, s, 0.0); });
    EXPECT_THAT(exponent_of(zeroed), Not(HasSubstr("0.0f * scale")));
}

// A finite score times log2(e) may be infinite: an FMA, which rounds once, adds it, so that it does
// not matter beside an offset of -inf.
TEST(Sm90ScoreMod, LargeScoresStayFinite) {
    const Mod literal([](auto s, auto, auto, auto, auto kv) { return where(kv == 2, 3.0e38, s); });
    EXPECT_THAT(exponent_of(literal), HasSubstr("fmaf(2.164"));
    EXPECT_THAT(exponent_of(literal), Not(HasSubstr("inf")));
    const Capture table = capture(Tensor::full(f32, {4}, 3.0e38), "table");
    const Mod captured(
        [table](auto s, auto, auto h, auto, auto kv) { return where(kv == 2, table[h], s); });
    EXPECT_THAT(exponent_of(captured),
                ::testing::ContainsRegex("fmaf\\(m?[a-z0-9]+, 1.442695f, start\\)"));
    // The exact maximum is taken of the score itself.
    const std::string text = text_of(literal);
    EXPECT_THAT(text.substr(text.find("float modified(")), HasSubstr("scale"));
    EXPECT_THAT(text.substr(text.find("float modified(")), Not(HasSubstr("1.442695")));
}

TEST(Sm90ScoreMod, MaskedPairsNeedNoDerivative) {
    const auto infinity = std::numeric_limits<double>::infinity();
    const Mod causal(
        [infinity](auto s, auto, auto, auto q, auto kv) { return where(q >= kv, s, -infinity); });
    EXPECT_THAT(gradient_of(causal), HasSubstr("return grad;"));
    const Mod above([infinity](auto s, auto, auto, auto q, auto kv) {
        return where(q < kv, -infinity, s * 3);
    });
    EXPECT_THAT(gradient_of(above), HasSubstr("return grad * 3.0f;"));
    // This does not hold for a pair with a finite constant score, which has no gradient.
    const Mod constant([](auto s, auto, auto, auto q, auto kv) { return where(q >= kv, s, -5.0); });
    EXPECT_THAT(gradient_of(constant), HasSubstr("? 1.0f : 0.0f"));
}

TEST(Sm90ScoreMod, PositionsBeyondF32AreConvertedOneByOne) {
    const Mod mod = scores::alibi(8);
    EXPECT_THAT(text_of(mod, 1 << 21), HasSubstr("static_cast<float>(offset)"));
    EXPECT_THAT(text_of(mod, 1 << 25), Not(HasSubstr("static_cast<float>(offset)")));
}

TEST(Sm90ScoreMod, WhatFitsIsComputedInInt) {
    const Mod bits(
        [](auto s, auto, auto, auto q, auto kv) { return where(((q ^ kv) & 6) == 0, s, 0.0); });
    EXPECT_THAT(text_of(bits), HasSubstr("const int v6 = row ^ column;"));
    const auto product = [](std::int64_t mask) {
        return Mod([mask](auto s, auto, auto, auto q, auto kv) {
            return s + cast(cast(q & mask, i32) * cast(kv & mask, i32), f32);
        });
    };
    EXPECT_THAT(text_of(product(0x7FFF)), Not(HasSubstr("wrapping_mul")));
    EXPECT_THAT(text_of(product(0xFFFF)), HasSubstr("wrapping_mul"));
}

TEST(Sm90ScoreMod, ColumnsAreReadInPairsWhereThatIsSafe) {
    const auto mod = [](std::int64_t extent) {
        return Mod(
            [table = capture(Tensor::zeros(bf16, {4, extent}))](
                auto s, auto, auto h, auto, auto kv) { return s + cast(table(h, kv), f32); });
    };
    EXPECT_THAT(text_of(mod(8192)), HasSubstr("load_pair"));
    EXPECT_THAT(text_of(mod(8193)), Not(HasSubstr("load_pair")));  // the last pair crosses the end
    EXPECT_THAT(text_of(mod(4096)), Not(HasSubstr("load_pair")));  // columns beyond it are clamped
}

TEST(Sm90ScoreMod, ReadsNothingOfAnEmptyArray) {
    const Mod mod([table = capture(Tensor::zeros(f32, {0}))](auto s, auto, auto h, auto, auto) {
        return s + table[h];
    });
    EXPECT_THAT(text_of(mod), Not(HasSubstr("__ldg")));
}

TEST(Sm90ScoreMod, RefusesByName) {
    const Mod mod([table = capture(Tensor::zeros(f8e5m2, {4}))](auto s, auto, auto h, auto, auto) {
        return s + cast(table[h], f32);
    });
    const ScoreModText header = header_of(mod);
    EXPECT_THAT(header.refusal, HasSubstr("f8e5m2"));
    EXPECT_EQ(header.text, "");
}

// ---- lists

TEST(Sm90MaskLists, CausalTilesPutTheDiagonalFirst) {
    const auto plan =
        mask::make_plan(mask_data(1, 500, 500, [](auto, auto q, auto kv) { return kv <= q; }),
                        plan_options(128, 128));
    const MaskLists lists = lists_of(plan);
    ASSERT_EQ(lists.tiles.size(), 3u);
    EXPECT_EQ(lists.tiles[0].index, 2);
    EXPECT_EQ(lists.tiles[0].blocks, 8);
    EXPECT_EQ(lists.tiles[2].blocks, 3);
    const twd::attn::MaskEntry* const first = lists.entries.data() + lists.tiles[2].first_entry;
    EXPECT_EQ(first[0].first, 2);  // the diagonal of the lowest warpgroup alone
    EXPECT_EQ(first[0].states, twd::attn::kBlockPartial << 4);
    EXPECT_EQ(first[2].first, 0);
    EXPECT_EQ(first[2].states,
              twd::attn::kBlockPartial | twd::attn::kBlockFull << 2 | twd::attn::kBlockFull << 4);
}

TEST(Sm90MaskLists, ATileWithoutAKeyHasOneEmptyBlock) {
    const auto plan = mask::make_plan(
        mask_data(1, 200, 100, [](auto, auto, auto) { return false; }), plan_options(256, 256));
    const MaskLists lists = lists_of(plan);
    for (const twd::attn::MaskTile& tile : lists.tiles) {
        EXPECT_EQ(tile.blocks, 1);
        const auto entry = static_cast<std::size_t>(tile.first_entry);
        EXPECT_EQ(lists.entries[entry].states, twd::attn::kHidesSome);
        EXPECT_EQ(lists.live[entry], 0u);
    }
}

TEST(Sm90MaskLists, TellWhichKeysAreAttended) {
    const auto attended = [](std::int64_t kv) { return kv % 3 == 0 && kv < 150; };
    const auto words = [&](std::int64_t first) {
        std::uint64_t word = 0;
        for (int i = 0; i < 64; ++i) word |= std::uint64_t{attended(first + i)} << i;
        return word;
    };
    // Each key is attended by some queries of every tile.
    const auto data = mask_data(
        1, 300, 200, [&](auto, auto q, auto kv) { return attended(kv) && (q + kv) % 5 == 0; });
    const MaskLists lists = lists_of(mask::make_plan(data, plan_options(128, 128)));
    ASSERT_EQ(lists.live.size(), lists.entries.size());
    for (std::size_t i = 0; i + 1 < lists.entries.size(); ++i) {
        EXPECT_EQ(lists.live[i], words(std::int64_t{64} * lists.entries[i].first)) << i;
        EXPECT_NE(lists.entries[i].states & twd::attn::kHidesSome, 0);
    }
    const MaskLists keys = key_lists_of(
        mask::make_plan(data, backward_plan_options(choose_listed_backward(128, 128, false))), 200,
        1);
    ASSERT_EQ(keys.live.size(), 2 * keys.tiles.size());
    for (std::size_t i = 0; i < keys.tiles.size(); ++i) {
        for (std::size_t strip = 0; strip < 2; ++strip) {
            const std::int64_t first =
                128 * keys.tiles[i].index + 64 * static_cast<std::int64_t>(strip);
            EXPECT_EQ(keys.live[2 * i + strip], words(first)) << first;
        }
    }
}

// ---- compiling

TEST(Sm90Programmable, VariantsCompileCleanly) {
    TW_REQUIRE_NVRTC();
    const auto compile = [](ForwardInputs inputs) {
        const ForwardDesc desc = check_forward(inputs);
        cuda::CompileRequest request = generate_forward(desc, choose_forward(desc, 132));
        if (inputs.score_mod) request.spill_limit_bytes = 0;
        EXPECT_NO_THROW(cuda::compile(request)) << request.name;
    };
    const Problem problem{
        .heads = 64, .kv_heads = 64, .q_len = 8192, .kv_len = 8192, .causal = true};
    for (const Mod& mod : {scores::alibi(16), scores::softcap(20, true)}) {
        ForwardInputs inputs = inputs_of(problem);
        inputs.score_mod = mod::trace(mod).function;
        compile(inputs);
    }
    ForwardInputs listed = inputs_of(problem);
    listed.upper_diagonal.reset();
    listed.mask = DeviceMask{.q_len = 8192, .kv_len = 8192};
    compile(listed);
    ForwardInputs segments = inputs_of(problem);
    segments.q_segments = segments.kv_segments = 7 << 20;
    segments.dropout = 0.1;
    compile(segments);
    EXPECT_NO_THROW(cuda::compile(generate_lists()));
    ForwardInputs exact = inputs_of(problem);
    exact.row_max = 7 << 20;
    exact.sinks = 8 << 20;
    compile(exact);
}

// What a user's mod keeps for the columns of a tile may exceed the registers.
TEST(Sm90Programmable, ModsMaySpill) {
    TW_REQUIRE_NVRTC();
    std::vector<Capture> arrays;
    for (int i = 0; i < 12; ++i) arrays.push_back(capture(Tensor::zeros(f32, {2048})));
    const Mod mod([&arrays](auto s, auto, auto, auto q, auto kv) {
        Tile sum = s;
        for (const Capture& array : arrays) sum = sum * array(kv) + array(q);
        return sum;
    });
    const mod::Traced& traced = mod::trace(mod);
    ForwardInputs inputs = inputs_of({.heads = 8, .kv_heads = 8, .q_len = 2048, .kv_len = 2048});
    inputs.score_mod = traced.function;
    inputs.captures = views_of(traced.captures, std::vector<cuda::DeviceAddress>(12, 1 << 20));
    const ForwardDesc desc = check_forward(inputs);
    EXPECT_GT(cuda::compile(generate_forward(desc, choose_forward(desc, 132))).spill_bytes, 0);
}

TEST(Sm90Programmable, BackwardVariantsCompileCleanly) {
    TW_REQUIRE_NVRTC();
    const auto compile = [](std::int64_t dim, const std::function<void(BackwardInputs&)>& change) {
        BackwardInputs inputs;
        const ForwardInputs forward = inputs_of({.heads = 16,
                                                 .kv_heads = 16,
                                                 .q_len = 8192,
                                                 .kv_len = 8192,
                                                 .dim = dim,
                                                 .value_dim = dim,
                                                 .causal = true});
        static_cast<ProblemInputs&>(inputs) = forward;
        inputs.grad_query = inputs.query;
        inputs.grad_key = inputs.key;
        inputs.grad_value = inputs.value;
        inputs.grad_out = inputs.out;
        change(inputs);
        const BackwardDesc desc = check_backward(inputs);
        for (const cuda::CompileRequest& unit : generate_backward(desc, choose_backward(desc))) {
            EXPECT_NO_THROW(cuda::compile(unit)) << unit.name;
        }
    };
    const auto list = [](BackwardInputs& inputs) {
        inputs.upper_diagonal.reset();
        inputs.mask = DeviceMask{.q_len = 8192, .kv_len = 8192, .by_key = true};
        if (inputs.query.shape[3] > 128) {
            inputs.query_mask = DeviceMask{.q_len = 8192, .kv_len = 8192};
        }
    };
    compile(256, list);
    compile(128, list);
    compile(64, [&](BackwardInputs& inputs) {
        list(inputs);
        inputs.deterministic = false;
    });
    compile(64, [&](BackwardInputs& inputs) {  // 128 rows beside an affine mod
        list(inputs);
        inputs.score_mod = mod::trace(scores::alibi(16)).function;
    });
    for (std::int64_t dim : {128, 256}) {
        compile(dim,
                [](BackwardInputs& inputs) { inputs.q_segments = inputs.kv_segments = 7 << 20; });
        compile(dim, [](BackwardInputs& inputs) {
            inputs.dropout = 0.1;
            inputs.sinks = inputs.grad_sinks = 7 << 20;
        });
    }
}

TEST(Sm90MaskLists, KeysPastTheEndTakeNoPart) {
    const auto plan =
        mask::make_plan(mask_data(1, 300, 200, [](auto, auto, auto) { return true; }),
                        backward_plan_options(choose_listed_backward(128, 128, false)));
    const MaskLists lists = key_lists_of(plan, 200, 1);
    ASSERT_EQ(lists.tiles.size(), 2u);
    const twd::attn::MaskEntry& whole =
        lists.entries[static_cast<std::size_t>(lists.tiles[0].first_entry) + 1];
    EXPECT_EQ(whole.first, 0);
    EXPECT_EQ(whole.count, 4);
    EXPECT_EQ(whole.states, twd::attn::kBlockFull | twd::attn::kBlockFull << 2);
    EXPECT_EQ(whole.bits, -1);
    // Of 128 keys 72 exist: the second strip is partial, and comes after the first tile.
    const twd::attn::MaskEntry& part =
        lists.entries[static_cast<std::size_t>(lists.tiles[1].first_entry) + 1];
    EXPECT_EQ(part.states, twd::attn::kBlockFull | twd::attn::kBlockPartial << 2 |
                               1 << twd::attn::kPredecessorShift);
    std::size_t set = 0;
    for (std::size_t i = 0; i < 256; ++i) {
        set += static_cast<std::size_t>(
            std::popcount(lists.bits[static_cast<std::size_t>(part.bits) * 256 + i]));
    }
    EXPECT_EQ(set, 72u * 64);
}

}  // namespace
}  // namespace tilewright::attn::sm90
