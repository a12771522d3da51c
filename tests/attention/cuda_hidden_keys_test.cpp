// Keys that no query attends to, and scores up to the largest number, on a GPU: in every kernel of
// the Hopper engine and in tile programs.
#include "tests/attention/cuda_calls.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using namespace cuda_calls;

Tensor numbers(const std::vector<std::int32_t>& values, Device device = {}) {
    return Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())}).to(device);
}

/// A batch of three with keys that end at 0, in the middle and at the end; the rest is poisoned.
Case with_lengths(std::string name, std::int64_t dim, std::int64_t length, std::int64_t kv_length,
                  std::function<void(AttentionOptions&, Device)> change = {}) {
    const auto all = static_cast<std::int32_t>(kv_length);
    Case c{.name = fmt::format("{}, {} columns, {} queries", name, dim, length),
           .batch = 3,
           .heads = 4,
           .kv_heads = 2,
           .length = length,
           .kv_length = kv_length,
           .dim = dim,
           .max_scores = false,
           .poisoned = true};
    c.options = [=](Device device) {
        AttentionOptions options{.kv_lengths = numbers({0, all / 3 + 1, all}, device)};
        if (change) change(options, device);
        return options;
    };
    return c;
}

TEST(CudaHiddenKeys, LengthsInEveryKernelOfTheHopperEngine) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const std::int64_t dim : {64, 128, 256}) {
        check(with_lengths("full", dim, 300, 500), "sm90");
        check(with_lengths("causal", dim, 300, 250,
                           [](AttentionOptions& o, Device) {
                               o.causal = true;
                               o.deterministic = false;
                           }),
              "sm90");
        check(with_lengths("window", dim, 300, 500,
                           [](AttentionOptions& o, Device) {
                               o.window = {70, 30};
                           }),
              "sm90");
        check(with_lengths("mod", dim, 130, 500,
                           [](AttentionOptions& o, Device) { o.score_mod = scores::softcap(2); }),
              "sm90");
        check(with_lengths("segments", dim, 300, 300,
                           [](AttentionOptions& o, Device device) {
                               o.segment_ids = ids(3, 300, 70, device);
                           }),
              "sm90");
        check(with_lengths("mask", dim, 300, 400,
                           [](AttentionOptions& o, Device) {
                               o.mask = [](auto, auto, auto q, auto kv) {
                                   return (q + kv) % 7 != 0 && kv < q + 150;
                               };
                           }),
              "sm90");
        check(with_lengths("mask of blocks", dim, 300, 640,
                           [](AttentionOptions& o, Device) {
                               o.mask = [](auto, auto, auto q, auto kv) {
                                   return (q / 64 + kv / 64) % 3 != 0;
                               };
                           }),
              "sm90");
        for (const std::int64_t length : {1, 5}) {
            check(with_lengths("few queries", dim, length, 3000), "sm90");
        }
    }
    check(with_lengths("64-bit lengths, dropout, sinks", 64, 100, 300,
                       [](AttentionOptions& o, Device device) {
                           o.kv_lengths = o.kv_lengths.to(i64);
                           o.dropout = 0.2;
                           o.seed = 5;
                           o.sinks = random_tensor(bf16, {4}, 9).to(device);
                       }),
          "sm90");
}

/// Masks that leave whole keys out.
TEST(CudaHiddenKeys, OfMasksInTheHopperEngine) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const std::int64_t dim : {64, 128, 256}) {
        Case c{.name = fmt::format("every third key, {} columns", dim),
               .heads = 4,
               .kv_heads = 2,
               .length = 300,
               .kv_length = 500,
               .dim = dim,
               .max_scores = false,
               .poisoned = true};
        c.options = [](Device) {
            return AttentionOptions{
                .mask = [](auto, auto, auto q, auto kv) { return (kv % 3 == 0) & (q + 120 > kv); }};
        };
        check(c, "sm90");
        c.name = fmt::format("by head, {} columns", dim);
        c.options = [](Device) {
            return AttentionOptions{.mask = [](auto, auto h, auto q, auto kv) {
                return (kv % 5 == h / 2) & (kv < q + 300);
            }};
        };
        check(c, "sm90");
        c.name = fmt::format("segments of keys alone, {} columns", dim);
        c.options = [](Device device) {
            AttentionOptions options;
            std::vector<std::int32_t> of_queries, of_keys;
            for (int i = 0; i < 300; ++i) of_queries.push_back(i / 80 * 2);
            for (int i = 0; i < 500; ++i) of_keys.push_back(i / 37 % 9);
            options.segment_ids = numbers(of_queries, device).reshape({1, 300});
            options.kv_segment_ids = numbers(of_keys, device).reshape({1, 500});
            return options;
        };
        check(c, "sm90");
        c.poisoned = false;
        c.hidden = [](std::int64_t key) { return key >= 130 && key < 230; };
        c.name = fmt::format("a block mask, {} columns", dim);
        c.options = [](Device) {
            return AttentionOptions{.block_mask = create_block_mask(
                                        [](auto, auto, auto q, auto kv) {
                                            return ((kv < 130) | (kv >= 230)) & (kv <= q + 200);
                                        },
                                        1, 1, 300, 500)};
        };
        check(c, "sm90");
    }
}

/// Blocks contain rows of neighbouring packed sequences.
TEST(CudaHiddenKeys, OfPackedSequencesInTheHopperEngine) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const std::int64_t dim : {64, 128, 192, 256}) {
        for (const bool causal : {false, true}) {
            Case c{.name = fmt::format("packed, {} columns, causal: {}", dim, causal),
                   .heads = 4,
                   .kv_heads = 2,
                   .length = 330,
                   .kv_length = 470,
                   .dim = dim,
                   .max_scores = false};
            // The second has keys but no queries; the third has keys past the causal diagonal.
            c.hidden = [causal](std::int64_t key) {
                return (key >= 110 && key < 210) || (causal && key >= 410);
            };
            c.options = [causal](Device) {
                AttentionOptions options{.causal = causal};
                options.cu_seqlens = numbers({0, 130, 130, 330});
                options.kv_cu_seqlens = numbers({0, 110, 210, 470});
                return options;
            };
            check(c, "sm90");
            c.name += ", lengths";
            c.hidden = [](std::int64_t key) { return key >= 70 && key != 300; };
            c.options = [=](Device device) {
                AttentionOptions options{.causal = causal};
                options.cu_seqlens = numbers({0, 130, 130, 330});
                options.kv_cu_seqlens = numbers({0, 300, 300, 470});
                options.kv_lengths = numbers({70, 0, 0}, device);
                return options;
            };
            check(c, "sm90");
        }
    }
}

/// NaN in queries of one packed sequence does not reach others, forward and backward.
TEST(CudaHiddenKeys, QueriesOfPackedSequencesAreApart) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const std::int64_t dim : {64, 128, 192, 256}) {
        for (const bool deterministic : {false, true}) {
            AttentionOptions options{.deterministic = deterministic, .engine = "sm90"};
            options.cu_seqlens = numbers({0, 90, 150, 300});
            std::vector<Tensor> in;
            for (unsigned i = 0; i < 4; ++i)
                in.push_back(random_tensor(bf16, {1, 2, 300, dim}, i + 1));
            const auto run = [&] {
                std::vector<Tensor> at;
                for (const Tensor& x : in) at.push_back(x.to(kGpu));
                const AttentionOutput out = attention(at[0], at[1], at[2], options);
                const AttentionGradients g =
                    attention_backward(at[0], at[1], at[2], out, at[3], options);
                return std::vector<Array>{to_array(out.out), to_array(g.query), to_array(g.key),
                                          to_array(g.value)};
            };
            const std::vector<Array> want = run();
            for (Tensor& x : in) x.slice(2, 90, 60).fill(std::nan(""));
            const std::vector<Array> got = run();
            for (std::size_t n = 0; n < got.size(); ++n) {
                for (std::int64_t h = 0; h < 2; ++h) {
                    for (std::int64_t i = 0; i < 300; ++i) {
                        if (i >= 90 && i < 150) continue;
                        for (std::int64_t d = 0; d < dim; ++d) {
                            ASSERT_NEAR(got[n](0, h, i, d), want[n](0, h, i, d), 2e-2)
                                << "result " << n << " row " << i << " of " << dim << " columns";
                        }
                    }
                }
            }
        }
    }
}

/// NaN in a key that only later queries attend to does not reach earlier tiles, forward.
TEST(CudaHiddenKeys, LaterKeysDoNotReachEarlierTiles) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    struct Shape {
        std::int64_t length, dim, at, tile;
    };
    // Tiles of 192 x 80, 192 x 96, 128 x 128 and 128 x 64 pairs.
    for (const Shape s : {Shape{6400, 128, 199, 192},
                          {1600, 64, 200, 192},
                          {300, 128, 130, 128},
                          {300, 256, 130, 128}}) {
        for (const bool window : {false, true}) {
            SCOPED_TRACE(fmt::format("{} columns, window: {}", s.dim, window));
            // With a window, heads of 128 columns have tiles of 128 queries.
            const std::int64_t tile = window && s.dim == 128 ? 128 : s.tile;
            AttentionOptions options{.causal = !window, .engine = "sm90"};
            if (window) options.window = {100, 0};
            const Tensor q = random_tensor(bf16, {1, 1, s.length, s.dim}, 1),
                         k = random_tensor(bf16, q.shape(), 2),
                         v = random_tensor(bf16, q.shape(), 3);
            const auto run = [&] {
                return to_array(attention(q.to(kGpu), k.to(kGpu), v.to(kGpu), options).out);
            };
            const Array want = run();
            for (Tensor x : {k, v}) x.slice(2, s.at, 1).fill(std::nan(""));
            const Array got = run();
            for (std::int64_t i = 0; i < s.length; ++i) {
                const bool before = i / tile < s.at / tile;
                const bool attends = i >= s.at && (!window || i <= s.at + 100);
                if (before) {
                    EXPECT_EQ(got(0, 0, i, 3), want(0, 0, i, 3)) << i;
                } else if (attends) {
                    EXPECT_TRUE(std::isnan(got(0, 0, i, 3))) << i;
                }
            }
        }
    }
}

// ---- tile programs

/// A call of tile programs with NaN in the keys that no query may attend to.
Case by_tiles(std::string name, std::function<AttentionOptions(Device)> options) {
    return {.name = std::move(name),
            .length = 70,
            .kv_length = 150,
            .options = std::move(options),
            .poisoned = true};
}

TEST(CudaHiddenKeys, OfDiagonalsAndSegmentsInTilePrograms) {
    TW_REQUIRE_GPU();
    check(by_tiles("causal", [](Device) { return AttentionOptions{.causal = true}; }), "tiles");
    check(by_tiles("window", [](Device) { return AttentionOptions{.window = {9, 21}}; }), "tiles");
    Case c = by_tiles("segments of keys alone", [](Device device) {
        AttentionOptions options;
        std::vector<std::int32_t> of_queries, of_keys;
        for (int i = 0; i < 70; ++i) of_queries.push_back(i / 20 * 2);
        for (int i = 0; i < 150; ++i) of_keys.push_back(i / 7 % 9);
        options.segment_ids = numbers(of_queries, device).reshape({1, 70});
        options.kv_segment_ids = numbers(of_keys, device).reshape({1, 150});
        return options;
    });
    check(c, "tiles");
    c.dtype = f32;
    check(c, "tiles");
}

/// Masks as data, and mods that read arrays on the GPU, which are evaluated in the kernel.
TEST(CudaHiddenKeys, OfMasksInTilePrograms) {
    TW_REQUIRE_GPU();
    const auto third = [](Device device) {
        const Capture kinds = capture(numbers({1, 0, 0}, device), "kinds");
        return AttentionOptions{.mask = [kinds](auto, auto h, auto q, auto kv) {
            return (kinds[(kv + h / 2) % 3] == 1) & (q + 40 > kv);
        }};
    };
    check(by_tiles("arrays of the GPU", third), "tiles");
    Case decoded = by_tiles("arrays of the GPU, one query", third);
    decoded.heads = 4;
    decoded.length = 1;
    decoded.backward = false;
    check(decoded, "tiles");
    const auto data = [](Device) {
        return AttentionOptions{.mask = [](auto, auto, auto q, auto kv) {
            return ((kv % 5 == 1) | (kv / 64 == 1)) & (q + 99 > kv);
        }};
    };
    Case c = by_tiles("data", data);
    check(c, "tiles");
    c.dtype = f32;
    c.name += ", lengths, dropout, a mod";
    c.batch = 2;
    c.options = [=](Device device) {
        AttentionOptions options = data(device);
        options.kv_lengths = numbers({61, 150}, device);
        options.dropout = 0.2;
        options.score_mod = scores::softcap(2);
        return options;
    };
    check(c, "tiles");
}

/// Programs of warpgroups have only one form of their loop; another program corrects the results.
TEST(CudaHiddenKeys, InProgramsOfWarpgroups) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const auto check_wide = [](Case c) {
        c.dim = 64;
        c.backward = false;  // see CudaWarpgroups
        check(c, "tiles");
    };
    Case c = by_tiles("window by warpgroups", [](Device) {
        return AttentionOptions{.window = {9, 21}};
    });
    check_wide(c);
    c.length = 130;
    c.name = "segments by warpgroups";
    c.options = [](Device device) {
        AttentionOptions options{.segment_ids = ids(1, 130, 50, device)};
        std::vector<std::int32_t> of_keys;
        for (int i = 0; i < 150; ++i) of_keys.push_back(i / 7 % 9);
        options.kv_segment_ids = numbers(of_keys, device).reshape({1, 150});
        return options;
    };
    check_wide(c);
}

/// The engine's kernels evaluate masks that read arrays on the GPU.
TEST(CudaHiddenKeys, OfMasksThatTheHopperEngineEvaluates) {
    TW_REQUIRE_GPU();
    if (!has_sm90() || is_stand_in()) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    for (const std::int64_t dim : {64, 128, 256}) {
        for (const std::int64_t length : {1, 70, 300}) {
            Case c =
                by_tiles(fmt::format("arrays of the GPU, {} queries", length), [](Device device) {
                    const Capture kinds = capture(numbers({1, 0, 0}, device), "kinds");
                    return AttentionOptions{.mask = [kinds](auto, auto, auto q, auto kv) {
                        return (kinds[kv % 3] == 1) & (q + 150 > kv);
                    }};
                });
            c.dim = dim;
            c.length = length;
            c.kv_length = 500;
            c.max_scores = length == 70;
            check(c, "sm90");
        }
    }
}

/// A NaN in a key reaches the queries that attend to it, and no tile without such queries.
TEST(CudaHiddenKeys, WhatSomeQueriesAttendReachesThemAlone) {
    TW_REQUIRE_GPU();
    constexpr std::int64_t kLength = 200, kAt = 100, kLeft = 20, kTile = 64;
    const AttentionOptions options{.causal = true, .window = {kLeft, 0}, .engine = "tiles"};
    const Tensor q = random_tensor(bf16, {1, 1, kLength, 16}, 1),
                 k = random_tensor(bf16, q.shape(), 2), v = random_tensor(bf16, q.shape(), 3);
    const auto run = [&] {
        return to_array(attention(q.to(kGpu), k.to(kGpu), v.to(kGpu), options).out);
    };
    const Array want = run();
    v.slice(2, kAt, 1).fill(std::nan(""));
    const Array got = run();
    for (std::int64_t i = 0; i < kLength; ++i) {
        const bool attends = i >= kAt && i <= kAt + kLeft;
        if (attends) {
            EXPECT_TRUE(std::isnan(got(0, 0, i, 3))) << i;
        } else if (i / kTile != kAt / kTile) {
            EXPECT_NEAR(got(0, 0, i, 3), want(0, 0, i, 3), 1e-2) << i;
        }
    }
}

// ---- scores up to the largest number

struct Large {
    DType dtype;
    const char* engine;
    std::int64_t length, dim;
};

/// out is a row of v, lse is the score, and gradients are finite, without these rows' share.
void expect_row(const Large& c, const Mod& mod, std::int64_t winner, double score) {
    const Tensor q = random_tensor(c.dtype, {1, 2, c.length, c.dim}, 1).to(kGpu),
                 k = random_tensor(c.dtype, {1, 2, 300, c.dim}, 2).to(kGpu),
                 v = random_tensor(c.dtype, {1, 2, 300, c.dim}, 3).to(kGpu);
    AttentionOptions options{.score_mod = mod, .engine = c.engine};
    for (const bool max_scores : {false, true}) {
        options.max_scores = max_scores;
        const AttentionOutput out = attention(q, k, v, options);
        const Array got = to_array(out.out), lse = to_array(out.lse), want = to_array(v);
        for (std::int64_t i = 0; i < c.length; ++i) {
            ASSERT_NEAR(lse(0, 1, i) / score, 1, 1e-6) << i;
            ASSERT_NEAR(got(0, 1, i, 5), want(0, 1, winner, 5), 1e-2) << i;
        }
        if (max_scores) {
            EXPECT_NEAR(to_array(out.max_scores)(0, 1, 0) / score, 1, 1e-6);
        }
        if (c.length == 1) continue;
        const AttentionGradients g = attention_backward(q, k, v, out, out.out, options);
        for (const Tensor& x : {g.query, g.key, g.value})
            for (const double number : to_array(x).data) ASSERT_EQ(number, 0);
    }
}

std::vector<Large> large_cases() {
    std::vector<Large> cases;
    for (const DType dtype : {f16, bf16, f32}) cases.push_back({dtype, "tiles", 70, 64});
    if (!has_sm90()) return cases;
    for (const DType dtype : {f16, bf16}) {
        for (const std::int64_t dim : {64, 128, 256}) {
            for (const std::int64_t length : {1, 70, 400}) {
                cases.push_back({dtype, "sm90", length, dim});
            }
        }
    }
    return cases;
}

TEST(CudaLargeScores, EveryFiniteScoreIsAScore) {
    TW_REQUIRE_GPU();
    // The scores of two keys and of the others are in arrays, so that one kernel is enough.
    const auto with = [](const Large& c, std::int64_t at, double score, double second) {
        const auto array = [](auto value) {
            return Tensor::from_vector(std::vector{value}, {1}).to(kGpu);
        };
        const Capture key = capture(array(at), "key"),
                      high = capture(array(static_cast<float>(score)), "high", false),
                      low = capture(array(static_cast<float>(second)), "low", false);
        expect_row(
            c,
            [=](auto s, auto, auto, auto, auto kv) {
                return where(kv == key[0], high[0], where(kv % 77 == 3, low[0], s - 2.9e38));
            },
            at, score);
    };
    for (const Large& c : large_cases()) {
        SCOPED_TRACE(fmt::format("{} {} {} rows of {}", name(c.dtype), c.engine, c.length, c.dim));
        for (const std::int64_t at : {2, 200, 299}) {
            for (const double score : {1.69e38, 1.71e38, 2.3e38, 2.4e38, 3.0e38, 3.4e38}) {
                with(c, at, score, 0);
                with(c, at, score, score * 0.95);
            }
            with(c, at, -2.5e38, -2.6e38);
        }
        expect_row(
            c, [](auto s, auto, auto, auto, auto kv) { return where(kv == 2, 3.0e38, s); }, 2,
            3.0e38);
    }
}

TEST(CudaLargeScores, OfF64) {
    TW_REQUIRE_GPU();
    for (const double score : {9e307, 1.7e308}) {
        expect_row(
            {f64, "tiles", 33, 16},
            [=](auto s, auto, auto, auto, auto kv) { return where(kv == 2, score, s); }, 2, score);
    }
}

/// Keys of equal scores share the probability; a score of +inf gives NaN.
TEST(CudaLargeScores, EqualOnesAndInfinity) {
    TW_REQUIRE_GPU();
    for (const Large& c : large_cases()) {
        if (c.dtype != bf16) continue;
        SCOPED_TRACE(fmt::format("{} {} rows of {}", c.engine, c.length, c.dim));
        const Tensor q = random_tensor(bf16, {1, 1, c.length, c.dim}, 1).to(kGpu),
                     v = random_tensor(bf16, {1, 1, 300, c.dim}, 3).to(kGpu);
        const auto run = [&](const Mod& mod) {
            return to_array(attention(q, v, v, {.score_mod = mod, .engine = c.engine}).out);
        };
        const Array values = to_array(v);
        for (const double score : {3.0e38, -3.0e38}) {
            const Array got = run([score](auto, auto, auto, auto, auto kv) {
                return where(kv == 5 || kv == 280, score, -3.3e38);
            });
            EXPECT_NEAR(got(0, 0, 0, 1), (values(0, 0, 5, 1) + values(0, 0, 280, 1)) / 2, 2e-2);
        }
        double mean = 0;
        for (std::int64_t j = 0; j < 300; ++j) mean += values(0, 0, j, 1) / 300;
        const Mod all_equal[] = {
            [](auto, auto, auto, auto, auto) { return -3.0e38; },
            [](auto s, auto, auto, auto, auto) { return s - 3.0e38; },
            [](auto s, auto, auto, auto, auto kv) { return s + where(kv < 0, 1.0, -3.0e38); },
            [](auto s, auto, auto, auto, auto kv) { return s + 1e38 * where(kv < 0, 1.0, -3.0); }};
        for (const Mod& mod : all_equal) EXPECT_NEAR(run(mod)(0, 0, 0, 1), mean, 2e-2);
        const Array infinite =
            run([](auto s, auto, auto, auto, auto kv) { return where(kv == 5, INFINITY, s); });
        EXPECT_TRUE(std::isnan(infinite(0, 0, 0, 1)));
        const Array none = run([](auto, auto, auto, auto, auto) { return -INFINITY; });
        EXPECT_EQ(none(0, 0, 0, 1), 0);
    }
}

/// Products of queries and keys may be this large without a mod, too.
TEST(CudaLargeScores, WithoutAMod) {
    TW_REQUIRE_GPU();
    for (const Large& c : large_cases()) {
        if (c.dtype == f16) continue;
        SCOPED_TRACE(fmt::format("{} {} {} rows of {}", name(c.dtype), c.engine, c.length, c.dim));
        Tensor q = Tensor::zeros(c.dtype, {1, 1, c.length, c.dim}),
               k = Tensor::zeros(c.dtype, {1, 1, 300, c.dim});
        const Tensor v = random_tensor(c.dtype, {1, 1, 300, c.dim}, 3);
        q.slice(3, 0, 1).fill(0x1p63);
        k.set({0, 0, 20, 0}, 0x1.8p64);
        k.set({0, 0, 250, 0}, 0x1.cp64);  // score 0x1.cp127
        const AttentionOutput out =
            attention(q.to(kGpu), k.to(kGpu), v.to(kGpu), {.scale = 1, .engine = c.engine});
        const Array got = to_array(out.out), want = to_array(v), lse = to_array(out.lse);
        for (std::int64_t i = 0; i < c.length; ++i) {
            EXPECT_NEAR(lse(0, 0, i) / 0x1.cp127, 1, 1e-6);
            EXPECT_NEAR(got(0, 0, i, 5), want(0, 0, 250, 5), 1e-2);
        }
        if (c.length == 1) continue;
        const AttentionGradients g = attention_backward(q.to(kGpu), k.to(kGpu), v.to(kGpu), out,
                                                        out.out, {.scale = 1, .engine = c.engine});
        for (const Tensor& x : {g.query, g.key, g.value})
            for (const double number : to_array(x).data) ASSERT_EQ(number, 0);
    }
}

}  // namespace
}  // namespace tilewright
