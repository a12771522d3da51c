// `attention` on GPU tensors: both engines against the f64 reference on the CPU. On a GPU or the
// stand-in for one (tests/cuda/fake).
#include "tests/attention/cuda_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tilewright/attention.h"
#include "tilewright/masks.h"
#include "tilewright/run.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using namespace cuda_calls;

/// Padding that a mod shifts far down does not contribute to gradients of the rows before it.
void expect_no_gradient_of_padding(const char* engine) {
    constexpr std::int64_t kRows = 40;
    const auto rows = [](const Tensor& x) { return x.slice(2, 0, kRows).contiguous(); };
    AttentionOptions options{.score_mod = [](auto s, auto, auto, auto q, auto kv) {
        return where(q < kRows && kv < kRows, s, s - 1e10);
    }};
    options.engine = engine;
    const Tensor x = random_tensor(bf16, {1, 2, 70, 64}, 1).to(kGpu);
    const Tensor dout = random_tensor(bf16, {1, 2, 70, 64}, 2).to(kGpu);
    const AttentionGradients got =
        attention_backward(x, x, x, attention(x, x, x, options), dout, options);
    const Tensor part = rows(x);
    const AttentionOptions plain{.engine = engine};
    const AttentionGradients want =
        attention_backward(part, part, part, attention(part, part, part, plain), rows(dout), plain);
    constexpr double kTolerance = 0.03;  // for sums of 40 terms of size 1
    for (const auto& [g, w] :
         {std::pair(got.query, want.query), {got.key, want.key}, {got.value, want.value}}) {
        const Array ours = to_array(rows(g)), expected = to_array(w);
        for (std::size_t i = 0; i < expected.data.size(); ++i) {
            ASSERT_NEAR(ours.data[i], expected.data[i], kTolerance) << engine << ' ' << i;
        }
    }
}

TEST(CudaCalls, PlainCausalWindowAndGroups) {
    TW_REQUIRE_GPU();
    check_engines({.name = "causal, heads in groups",
                   .options = [](Device) { return AttentionOptions{.causal = true}; }});
    check_engines(
        {.name = "gradients in the order of arrival", .length = 90, .options = [](Device) {
             return AttentionOptions{.causal = true, .deterministic = false};
         }});
    for (const std::int64_t dim : {64, 128}) {
        if (is_stand_in() && dim > 64) continue;
        for (const bool ordered : {false, true}) {
            Case c{.name = fmt::format("wide blocks, {} columns, ordered: {}", dim, ordered),
                   .length = 200,
                   .kv_length = 300,
                   .dim = dim};
            c.options = [=](Device) {
                return AttentionOptions{.causal = true, .deterministic = ordered};
            };
            check(c, "tiles");
        }
    }
    if (is_stand_in()) return;
    for (DType dtype : {f32, f16, bf16}) {
        for (std::int64_t dim : {64, 128, 256}) {
            check_engines({.name = "gradients in the order of arrival",
                           .dtype = dtype,
                           .length = 333,
                           .kv_length = 200,
                           .dim = dim,
                           .options = [](Device) {
                               return AttentionOptions{.window = {150, 5}, .deterministic = false};
                           }});
        }
        check_engines({.name = "plain", .dtype = dtype, .length = 200, .kv_length = 333});
        check_engines({.name = "window", .dtype = dtype, .dim = 64, .options = [](Device) {
                           return AttentionOptions{.window = {20, 5}};
                       }});
        check_engines({.name = "wide", .dtype = dtype, .length = 1, .dim = 128});
    }
}

TEST(CudaCalls, ScoreModsWithCapturedGradients) {
    TW_REQUIRE_GPU();
    check_engines(
        {.name = "ALiBi by a table and a cap", .dtype = f32, .options = [](Device device) {
             const Capture slopes = capture(random_tensor(f32, {2}, 11).to(device), "slopes");
             return AttentionOptions{
                 .causal = true, .score_mod = compose(scores::softcap(5), scores::alibi(slopes))};
         }});
    if (is_stand_in()) return;
    check_engines(
        {.name = "bias of pairs", .options = [](Device device) {
             const Capture bias = capture(random_tensor(f32, {2, 70, 70}, 12).to(device), "bias");
             return AttentionOptions{.score_mod = [bias](auto s, auto, auto h, auto q, auto kv) {
                 return s + bias(h, q, kv);
             }};
         }});
    check_engines(
        {.name = "relative bias", .options = [](Device device) {
             const Capture bias = capture(random_tensor(f32, {2, 139}, 13).to(device), "bias");
             return AttentionOptions{.score_mod = [bias](auto s, auto, auto h, auto q, auto kv) {
                 return s + bias(h, q - kv + 69);
             }};
         }});
}

TEST(CudaCalls, ScoresOfAnyMagnitude) {
    TW_REQUIRE_GPU();
    for (const double c : {0x1p20, 0x1p33, -0x1p33, -0x1p126}) {
        const auto large = [c](Device device) {
            const Capture table = capture(
                Tensor::from_vector(std::vector<float>{0, static_cast<float>(c)}, {2}).to(device));
            // Some rows have only scores shifted so far that they are rounded away.
            return AttentionOptions{.score_mod = [=](auto s, auto, auto, auto q, auto kv) {
                return where(kv % 3 == q % 3, s + table[where(q % 2 == 0, 1, 0)], s - std::fabs(c));
            }};
        };
        for (const bool max_scores : {false, true}) {
            Case test{.name = fmt::format("{}", c),
                      .kv_length = is_stand_in() ? 200 : 700,
                      .options = large,
                      .backward = false,
                      .max_scores = max_scores};
            check_engines(test);
            test.length = 1;
            check_engines(test);
        }
    }
}

TEST(CudaCalls, RowsOfLargeScoresHaveNoGradient) {
    TW_REQUIRE_GPU();
    for (const char* engine : {"tiles", ""}) {
        if (*engine != 0 || has_sm90()) expect_no_gradient_of_padding(engine);
    }
}

TEST(CudaCalls, MasksAsDataAndAsMods) {
    TW_REQUIRE_GPU();
    const auto documents = [](Device device) {
        return AttentionOptions{
            .mask = masks::causal() &
                    masks::document(capture(ids(1, 70, 20, device).reshape({70}), "ids"))};
    };
    // Ids on the GPU are read by the program; ids on the host become a mask as data.
    check_engines({.name = "documents inlined", .options = documents});
    check_engines({.name = "documents as data", .options = [&](Device) {
                       return AttentionOptions{
                           .window = {-1, 30},
                           .block_mask = create_block_mask(documents(Device{}).mask, 1, 1, 70, 70)};
                   }});
}

TEST(CudaCalls, SegmentsPackedSequencesSinksAndDropout) {
    TW_REQUIRE_GPU();
    check_engines({.name = "segments, sinks, dropout", .dtype = f32, .options = [](Device device) {
                       AttentionOptions options{.causal = true,
                                                .segment_ids = ids(1, 70, 30, device)};
                       options.sinks = random_tensor(f32, {2}, 21).to(device);
                       options.dropout = 0.25;
                       options.seed = 1234567890123;
                       return options;
                   }});
    check_engines({.name = "packed", .options = [](Device) {
                       AttentionOptions options{.causal = true};
                       options.cu_seqlens = Tensor::from_vector(std::vector{0, 30, 30, 70}, {4});
                       return options;
                   }});
}

TEST(CudaCalls, PackedSequencesWithAMaskAsData) {
    TW_REQUIRE_GPU();
    // In packed coordinates, where one sequence has other starts in the keys, and one is empty.
    const auto packed = [](bool causal, Window window) {
        return [=](Device device) {
            AttentionOptions options{.causal = causal, .window = window};
            options.cu_seqlens = Tensor::from_vector(std::vector{0, 30, 30, 70}, {4});
            options.kv_cu_seqlens = Tensor::from_vector(std::vector{0, 35, 50, 90}, {4});
            options.block_mask = create_block_mask(
                [](auto, auto, auto q, auto kv) { return (q + kv) % 7 != 0; }, 1, 1, 70, 90);
            options.sinks = random_tensor(f32, {2}, 21).to(device);
            return options;
        };
    };
    check_engines({.name = "causal", .kv_length = 90, .options = packed(true, {})});
    check_engines({.name = "window", .kv_length = 90, .options = packed(false, {3, 9})});
    // Dropout counts positions within a sequence.
    check({.name = "dropout",
           .kv_length = 90,
           .options =
               [&](Device device) {
                   AttentionOptions options = packed(false, {-1, -1})(device);
                   options.dropout = 0.25;
                   return options;
               }},
          "tiles");
}

TEST(CudaCalls, KeysThatDoNotExistContributeNothing) {
    TW_REQUIRE_GPU();
    const auto lengths = [](Device device, DType dtype = i32) {
        return Tensor::from_vector(std::vector{41, 70}, {2}, dtype).to(device);
    };
    for (const bool on_gpu : {true, false}) {
        check_engines({.name = fmt::format("lengths, on the GPU: {}", on_gpu),
                       .batch = 2,
                       .kv_length = 90,
                       .options =
                           [=](Device device) {
                               return AttentionOptions{.kv_lengths =
                                                           lengths(on_gpu ? device : Device{})};
                           },
                       .poisoned = true});
    }
    check_engines({.name = "lengths and causal",
                   .dtype = f32,
                   .batch = 2,
                   .kv_length = 90,
                   .options =
                       [=](Device device) {
                           return AttentionOptions{.causal = true,
                                                   .kv_lengths = lengths(device, i64)};
                       },
                   .poisoned = true});
    check_engines({.name = "lengths and a mod",
                   .batch = 2,
                   .kv_length = 90,
                   .options =
                       [=](Device device) {
                           return AttentionOptions{.kv_lengths = lengths(device),
                                                   .score_mod = scores::softcap(2)};
                       },
                   .poisoned = true});
    check_engines(
        {.name = "one query",
         .batch = 2,
         .length = 1,
         .kv_length = 90,
         .options = [=](Device device) { return AttentionOptions{.kv_lengths = lengths(device)}; },
         .poisoned = true});
    check_engines({.name = "one length, known to the host",
                   .kv_length = 90,
                   .options =
                       [=](Device) {
                           return AttentionOptions{
                               .kv_lengths = Tensor::from_vector(std::vector{33}, {1}, i32)};
                       },
                   .poisoned = true});
    check_engines({.name = "causal tail",
                   .kv_length = 130,
                   .options = [](Device) { return AttentionOptions{.causal = true}; },
                   .poisoned = true});
    check_engines({.name = "window's tail",
                   .kv_length = 130,
                   .options =
                       [](Device) {
                           return AttentionOptions{.window = {-1, 7}};
                       },
                   .poisoned = true});
}

/// Lengths on a GPU are not checked, but clamped.
TEST(CudaCalls, LengthsOutsideClamp) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {3, 1, 20, 16}, 1),
                 k = random_tensor(bf16, {3, 1, 40, 16}, 2);
    const auto with = [&](std::vector<std::int32_t> lengths) {
        return attention(q.to(kGpu), k.to(kGpu), k.to(kGpu),
                         {.kv_lengths = Tensor::from_vector(lengths, {3}).to(kGpu)})
            .out.to(Device{})
            .to(f32)
            .to_vector<float>();
    };
    EXPECT_EQ(with({-5, 41, 1 << 30}), with({0, 40, 40}));
}

TEST(CudaCalls, NothingToAttend) {
    TW_REQUIRE_GPU();
    check_engines({.name = "no keys", .kv_length = 0, .options = [](Device device) {
                       return AttentionOptions{.sinks = random_tensor(bf16, {2}, 22).to(device)};
                   }});
    check_engines({.name = "no queries", .length = 0});
    check_engines({.name = "rows without a key", .options = [](Device) {
                       return AttentionOptions{
                           .mask = [](auto, auto, auto q, auto kv) { return q < kv - 20; }};
                   }});
}

}  // namespace
}  // namespace tilewright
