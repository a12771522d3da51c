// The Hopper forward kernel: refusals, clean compilation of every configuration without a GPU and,
// on a Hopper GPU, results against the f64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "attention/reference.h"
#include "attention/sm90/wide_rows.h"
#include "tests/attention/sm90_support.h"
#include "tests/cuda/graph.h"

namespace tilewright::attn::sm90 {
namespace {

std::string refusal(const ForwardInputs& inputs) {
    try {
        check_forward(inputs);
    } catch (const UserError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(Sm90Forward, RefusesByName) {
    const ForwardInputs good = inputs_of({.heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 70});
    EXPECT_EQ(refusal(good), "accepted");
    const auto expect = [&](auto change, const std::string& text) {
        ForwardInputs bad = good;
        change(bad);
        EXPECT_EQ(refusal(bad), "[attention (sm90)] " + text);
    };
    expect([](auto& i) { i.dtype = DType::f32; },
           "query: expected bf16 or f16 elements but got f32");
    expect([](auto& i) { i.key.shape[1] = 3; },
           "key: expected a number of heads that divides query's but got 3");
    expect([](auto& i) { i.query.shape[3] = 100; },
           "query: expected a head dimension that is a multiple of 8 up to 256 but got 100");
    expect([](auto& i) { i.value.shape[3] = 264; },
           "value: expected a head dimension that is a multiple of 8 up to 256 but got 264");
    expect([](auto& i) { i.key.shape[2] = 0; }, "key: expected from 1 to 2^29 rows but got 0");
    expect([](auto& i) { i.value.shape[2] = 71; }, "value: expected 70 rows but got 71");
    expect([](auto& i) { i.out.shape[1] = 2; }, "out: expected 4 heads but got 2");
    expect([](auto& i) { i.query.strides[2] = 129; },
           "query: expected strides that are multiples of 8 elements but got 129");
    expect([](auto& i) { i.key.strides[3] = 2; }, "key: expected a last stride of 1 but got 2");
    expect([](auto& i) { i.value.address += 8; },
           "value: expected an address that is a multiple of 16 but got 3145736");
    expect([](auto& i) { i.scale = NAN; }, "scale: expected a finite number but got nan");
    expect([](auto& i) { i.lse = 0; },
           "lse: expected an address that is a multiple of 4 but got 0");
}

TEST(Sm90Forward, EveryConfigurationFitsSharedMemory) {
    constexpr int kHopperShared = 232448;
    for (std::int64_t dim = 8; dim <= 256; dim += 8) {
        for (std::int64_t value_dim :
             {dim, std::int64_t{64}, std::int64_t{128}, std::int64_t{256}}) {
            for (bool causal : {false, true}) {
                for (std::int64_t q_len : {1, 1000, 8192}) {
                    const ForwardDesc desc = check_forward(inputs_of({.heads = 16,
                                                                      .kv_heads = 16,
                                                                      .q_len = q_len,
                                                                      .kv_len = 100,
                                                                      .dim = dim,
                                                                      .value_dim = value_dim,
                                                                      .causal = causal}));
                    for (const ForwardConfig& config : forward_trials(desc, 132)) {
                        EXPECT_LE(forward_shared_bytes(desc, config), kHopperShared)
                            << dim << " x " << value_dim;
                    }
                }
            }
        }
    }
}

// No spills, no serialised wgmma, no ignored setmaxnreg: generate_forward makes them errors.
TEST(Sm90Forward, ConfigurationsCompileCleanly) {
    TW_REQUIRE_NVRTC();
    const Problem problems[] = {
        {.q_len = 8192, .kv_len = 8192},
        {.q_len = 8192, .kv_len = 8192, .causal = true},
        {.dtype = DType::f16, .q_len = 8192, .kv_len = 8192, .dim = 64, .value_dim = 64},
        {.q_len = 8192, .kv_len = 8192, .causal = true, .window = 1024},
        {.q_len = 8192, .kv_len = 8192, .dim = 64, .value_dim = 64, .causal = true, .window = 1024},
        {.q_len = 8192, .kv_len = 8192, .dim = 192, .value_dim = 128, .causal = true},
        {.q_len = 8192, .kv_len = 8192, .dim = 256, .value_dim = 256, .causal = true},
        {.q_len = 8192, .kv_len = 64, .dim = 72, .value_dim = 40, .scale = -1.0},
        // Few rows: grouped heads, one or two warpgroups, whole or split keys.
        {.batch = 64, .heads = 32, .kv_heads = 8, .kv_len = 8192},
        {.heads = 32, .kv_heads = 8, .kv_len = 8192, .dim = 64, .value_dim = 64, .causal = true},
        {.heads = 16, .kv_heads = 2, .q_len = 9, .kv_len = 8192, .dim = 192, .causal = true},
        {.heads = 8, .kv_heads = 1, .kv_len = 8192, .dim = 256, .value_dim = 256, .window = 999},
        {.heads = 3, .kv_heads = 1, .q_len = 60, .kv_len = 8192, .scale = -1.0},
    };
    for (const Problem& problem : problems) {
        ForwardDesc desc = check_forward(inputs_of(problem));
        if (problem.heads == 1) desc.heads = desc.kv_heads = 64;
        std::vector<ForwardConfig> configs = {choose_forward(desc, 132)};
        if (problem.causal && problem.q_len > 64) configs = forward_trials(desc, 132);
        for (const ForwardConfig& config : configs) {
            const cuda::CompileRequest request = generate_forward(desc, config);
            EXPECT_NO_THROW(cuda::compile(request)) << request.name;
        }
    }
}

TEST(Sm90Forward, DropoutCompilesCleanly) {
    TW_REQUIRE_NVRTC();
    for (const std::int64_t dim : {64, 96, 128}) {
        for (const bool causal : {false, true}) {
            ForwardDesc desc = check_forward(inputs_of(
                {.q_len = 8192, .kv_len = 8192, .dim = dim, .value_dim = dim, .causal = causal}));
            desc.dropout = true;
            const cuda::CompileRequest request = generate_forward(desc, choose_forward(desc, 132));
            EXPECT_NO_THROW(cuda::compile(request)) << request.name;
        }
    }
}

TEST(Sm90Forward, ListsAreTriedWithSeveralDepthsOfLoads) {
    TW_REQUIRE_NVRTC();
    for (const std::int64_t dim : {64, 128, 256}) {
        ForwardInputs inputs = inputs_of({.heads = 16,
                                          .kv_heads = 16,
                                          .q_len = 8192,
                                          .kv_len = 8192,
                                          .dim = dim,
                                          .value_dim = dim});
        inputs.mask = DeviceMask{.q_len = 8192, .kv_len = 8192};
        const ForwardDesc desc = check_forward(inputs);
        const std::vector<ForwardConfig> trials = forward_trials(desc, 132);
        EXPECT_GE(trials.size(), dim == 256 ? 1 : 3) << dim;  // of 256 columns no more fit
        EXPECT_EQ(trials.front(), choose_forward(desc, 132));
        for (const ForwardConfig& config : trials) {
            EXPECT_EQ(config.block_m(), trials.front().block_m());  // lists are made for one size
            EXPECT_EQ(config.block_n, trials.front().block_n);
            EXPECT_LE(forward_shared_bytes(desc, config), 232448);
            EXPECT_NO_THROW(cuda::compile(generate_forward(desc, config))) << dim;
        }
    }
}

TEST(Sm90Forward, FewRowsShareTilesAndSplitKeys) {
    const auto config = [](const Problem& p) {
        return choose_forward(check_forward(inputs_of(p)), 132);
    };
    // The heads of a group are in one tile. Unsplit tiles of long keys would leave multiprocessors
    // idle in the last of four waves, and here in the only one.
    const ForwardConfig many = config({.batch = 64, .heads = 32, .kv_heads = 8, .kv_len = 8192});
    EXPECT_EQ(many.warpgroups, 1);
    EXPECT_EQ(many.group, 4);
    EXPECT_EQ(config({.heads = 32, .kv_heads = 8, .kv_len = 131072}).stream_k, 132);
    // More rows than one warpgroup has; groups that are not a power of two; no empty split.
    EXPECT_EQ(config({.heads = 32, .kv_heads = 1, .q_len = 4, .kv_len = 999}).block_m(), 128);
    EXPECT_EQ(config({.heads = 6, .kv_heads = 2, .kv_len = 999}).group, 1);
    EXPECT_EQ(config({.heads = 8, .kv_heads = 8, .kv_len = 100}).stream_k, 0);
    EXPECT_EQ(
        config({.heads = 8, .kv_heads = 8, .q_len = 512, .kv_len = 512, .causal = true}).stream_k,
        0);
    EXPECT_EQ(config({.batch = 8, .heads = 32, .kv_heads = 8, .q_len = 4096, .kv_len = 4096}).group,
              1);
    // Tiles of one head run at the same time, so that they find its keys in L2.
    EXPECT_EQ(config({.batch = 2,
                      .heads = 8,
                      .kv_heads = 8,
                      .q_len = 8192,
                      .kv_len = 8192,
                      .dim = 256,
                      .value_dim = 256})
                  .stream_k,
              0);
}

TEST(Sm90Forward, RowsThatTmaReadsSlowlyAreCopiedWhereManyQueriesReadThem) {
    const auto config = [](const Problem& p) {
        return choose_forward(check_forward(inputs_of(p)), 132);
    };
    const auto square = [](std::int64_t length, std::int64_t dim, bool causal = false) {
        return Problem{.heads = 16,
                       .kv_heads = 16,
                       .q_len = length,
                       .kv_len = length,
                       .dim = dim,
                       .value_dim = dim,
                       .causal = causal};
    };
    EXPECT_TRUE(config(square(8192, 72)).wide);
    EXPECT_TRUE(config(square(8192, 200, true)).wide);
    EXPECT_FALSE(config(square(8192, 96)).wide);
    EXPECT_FALSE(config(square(1024, 72)).wide);
    EXPECT_FALSE(config(square(4096, 72, true)).wide);
    Problem grouped = square(1024, 72);
    grouped.kv_heads = 2;
    EXPECT_TRUE(config(grouped).wide);
    const ForwardDesc desc = check_forward(inputs_of(square(8192, 72)));
    ForwardConfig without = choose_forward(desc, 132);
    without.wide = false;
    EXPECT_GE(forward_workspace_bytes(desc, choose_forward(desc, 132)),
              forward_workspace_bytes(desc, without) + 2 * 16 * 8192 * 72 * 2);
    TW_REQUIRE_NVRTC();
    EXPECT_NO_THROW(cuda::compile(generate_wide_rows()));
}

// ---- on a Hopper GPU

/// Rows above a negative diagonal have no unmasked key: the reference only computes the others, as
/// its window cannot express this.
ReferenceOutput reference(const Problem& p, DType arithmetic, const Array& q, const Array& k,
                          const Array& v) {
    ReferenceOptions options;
    options.scale = p.scale != 0.0 ? p.scale : 1.0 / std::sqrt(static_cast<double>(p.dim));
    options.arithmetic = arithmetic;
    if (p.causal) options.window_right = std::max<std::int64_t>(p.diagonal, 0);
    options.window_left = p.window;
    const std::int64_t dead = p.causal ? std::clamp<std::int64_t>(-p.diagonal, 0, p.q_len) : 0;
    if (dead == 0) return reference_forward(q, k, v, options);

    ReferenceOutput whole;
    whole.out = Array({p.batch, p.heads, p.q_len, p.value_dim}, 0.0);
    whole.lse = Array({p.batch, p.heads, p.q_len}, -std::numeric_limits<double>::infinity());
    if (dead == p.q_len) return whole;
    Array live({p.batch, p.heads, p.q_len - dead, p.dim});
    const auto rows = [&](auto visit) {
        for (std::int64_t b = 0; b < p.batch; ++b) {
            for (std::int64_t h = 0; h < p.heads; ++h) {
                for (std::int64_t s = dead; s < p.q_len; ++s) visit(b, h, s);
            }
        }
    };
    rows([&](auto b, auto h, auto s) {
        std::copy_n(q.row(b, h, s), p.dim, live.row(b, h, s - dead));
    });
    const ReferenceOutput part = reference_forward(live, k, v, options);
    rows([&](auto b, auto h, auto s) {
        std::copy_n(part.out.row(b, h, s - dead), p.value_dim, whole.out.row(b, h, s));
        whole.lse(b, h, s) = part.lse(b, h, s - dead);
    });
    return whole;
}

class Sm90Gpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    /// Runs a problem and compares with the reference: at most twice the error of the plain
    /// computation in the same dtype, and lse to 1e-3.
    static void check(const Problem& p, unsigned seed = 1, double key_growth = 0.0) {
        SCOPED_TRACE(fmt::format("{} B{} H{}/{} L{} S{} D{}x{} {} diagonal {} window {} scale {}",
                                 name(p.dtype), p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len,
                                 p.dim, p.value_dim, p.causal ? "causal" : "full", p.diagonal,
                                 p.window, p.scale));
        Array q = Sample(p, p.heads, p.q_len, p.dim, seed).exact;
        Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, seed + 1).exact;
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, seed + 2).exact;
        if (key_growth != 0.0) {
            // Scores that change from block to block: the keys' first column grows.
            for (std::size_t i = 0; i < k.data.size(); i += static_cast<std::size_t>(p.dim)) {
                const double along = static_cast<double>(i / static_cast<std::size_t>(p.dim) %
                                                         static_cast<std::size_t>(p.kv_len)) /
                                     static_cast<double>(p.kv_len);
                const double amount = key_growth > 0 ? along : 1 - along;
                k.data[i] = round_to(k.data[i] + std::abs(key_growth) * amount, p.dtype);
            }
            for (std::size_t i = 0; i < q.data.size(); i += static_cast<std::size_t>(p.dim)) {
                q.data[i] = round_to(q.data[i] + 8.0, p.dtype);
            }
        }
        Device device(p, q, k, v);
        const cuda::Stream stream(0);
        forward(device.inputs, stream.handle());
        stream.synchronize();

        std::vector<std::uint16_t> bits(
            static_cast<std::size_t>(p.batch * p.heads * p.q_len * p.value_dim));
        std::vector<float> lse(static_cast<std::size_t>(p.batch * p.heads * p.q_len));
        device.out.buffer.download(bits.data(), bits.size() * 2, kGuard);
        device.lse.buffer.download(lse.data(), lse.size() * 4, kGuard);
        std::vector<double> out(bits.size());
        for_each(device.inputs.out, [&](std::size_t index, std::size_t at) {
            out[index] = from_bits(bits[at], p.dtype);
        });
        EXPECT_TRUE(device.guards_intact());

        const ReferenceOutput truth = reference(p, DType::f64, q, k, v);
        const ReferenceOutput plain = reference(p, p.dtype, q, k, v);
        expect_near_as_plain("out", out, truth.out.data, plain.out.data, p.dtype);
        for (std::size_t i = 0; i < lse.size(); ++i) {
            const double expected = truth.lse.data[i];
            const bool same = lse[i] == expected ||
                              std::abs(lse[i] - expected) <= 1e-3 + 1e-5 * std::abs(expected);
            ASSERT_TRUE(same) << "lse " << i << ": " << lse[i] << " against " << expected;
        }
    }
};

TEST_F(Sm90Gpu, HeadDimensions) {
    for (std::int64_t dim : {8, 40, 64, 96, 112, 192, 256}) {
        for (bool causal : {false, true}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 300,
                   .kv_len = 300,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = causal});
        }
    }
    check({.q_len = 300, .kv_len = 300, .dim = 192, .value_dim = 128, .causal = true});
    check({.q_len = 300, .kv_len = 300, .dim = 64, .value_dim = 256});
}

TEST_F(Sm90Gpu, F16AgreesWithTheReference) {
    for (std::int64_t dim : {64, 128, 256}) {
        check({.dtype = DType::f16,
               .heads = 2,
               .kv_heads = 2,
               .q_len = 300,
               .kv_len = 400,
               .dim = dim,
               .value_dim = dim,
               .causal = dim == 128});
    }
}

TEST_F(Sm90Gpu, OddLengthsAgreeWithTheReference) {
    for (std::int64_t q_len : {1, 63, 129, 200}) {
        for (std::int64_t kv_len : {1, 79, 128, 257, 500}) {
            for (bool causal : {false, true}) {
                check({.heads = 2,
                       .kv_heads = 1,
                       .q_len = q_len,
                       .kv_len = kv_len,
                       .causal = causal});
            }
        }
    }
}

// Diagonals that leave rows, tiles, or everything fully masked.
TEST_F(Sm90Gpu, AnyDiagonalBoundsTheKeys) {
    for (std::int64_t diagonal : {-1000, -130, -1, 0, 1, 77, 1000}) {
        check({.heads = 2,
               .kv_heads = 2,
               .q_len = 300,
               .kv_len = 450,
               .causal = true,
               .diagonal = diagonal});
    }
}

TEST_F(Sm90Gpu, Windows) {
    for (std::int64_t window : {0, 1, 63, 130, 200, 1000}) {
        for (std::int64_t dim : {64, 128, 256}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 500,
                   .kv_len = 450,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = true,
                   .window = window});
            check({.q_len = 300,
                   .kv_len = 777,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = true,
                   .diagonal = 90,
                   .window = window});
        }
        check({.q_len = 400, .kv_len = 300, .window = window});  // no upper bound
    }
}

// Tiles of 192 rows, whose warpgroups end at different blocks and skip masked ones.
TEST_F(Sm90Gpu, LongCausalTilesOfThreeWarpgroups) {
    for (std::int64_t dim : {64, 96}) {
        check({.batch = 2,
               .heads = 60,
               .kv_heads = 60,
               .q_len = 500,
               .kv_len = 500,
               .dim = dim,
               .value_dim = dim,
               .causal = true});
        for (std::int64_t diagonal : {-250, -31, 33, 95, 129}) {
            check({.q_len = 700,
                   .kv_len = 650,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = true,
                   .diagonal = diagonal});
        }
    }
}

TEST_F(Sm90Gpu, CopiesOfRowsChangeNoBit) {
    for (const bool rows_before_heads : {false, true}) {
        for (const std::int64_t dim : {8, 24, 40, 72, 80, 120, 136, 200}) {
            const Problem p{.batch = 2,
                            .heads = 6,
                            .kv_heads = 3,
                            .q_len = 300,
                            .kv_len = 333,
                            .dim = dim,
                            .value_dim = dim == 120 ? 64 : dim,
                            .causal = dim == 40,
                            .rows_before_heads = rows_before_heads};
            Device device(p, Sample(p, p.heads, p.q_len, p.dim, 1).exact,
                          Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact,
                          Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact);
            const ForwardDesc desc = check_forward(device.inputs);
            SCOPED_TRACE(dim);
            expect_copies_change_no_bit(
                choose_forward(desc, cuda::device_info(0).multiprocessors), {&device.out},
                device.inputs.workspace,
                [&](const ForwardConfig& config) { return forward_workspace_bytes(desc, config); },
                [&](const ForwardConfig& config, cuda::StreamHandle stream) {
                    launch_forward(device.inputs, desc, config, load_forward(desc, config, 0),
                                   stream);
                });
            EXPECT_TRUE(device.guards_intact());
        }
    }
}

TEST_F(Sm90Gpu, GroupedHeadsAndLayouts) {
    for (bool rows_before_heads : {false, true}) {
        check({.batch = 2,
               .heads = 6,
               .kv_heads = 2,
               .q_len = 150,
               .kv_len = 200,
               .causal = true,
               .rows_before_heads = rows_before_heads});
        check({.batch = 3,
               .heads = 60,
               .kv_heads = 60,
               .q_len = 70,
               .kv_len = 90,
               .dim = 64,
               .value_dim = 64,
               .causal = true,
               .rows_before_heads = rows_before_heads});
    }
}

// Decoding and speculative decoding: few query rows, all heads of a group in one tile.
TEST_F(Sm90Gpu, FewRowsOfGroups) {
    const Problem p{.batch = 40, .heads = 32, .kv_heads = 4, .kv_len = 600};  // keys are not split
    check(p);
    Problem many = p;
    many.batch = 8, many.q_len = 7, many.kv_heads = 16, many.causal = true, many.diagonal = 593;
    many.rows_before_heads = true;
    check(many);
    many.heads = 128, many.kv_heads = 8, many.window = 100;  // more than 64 rows
    check(many);
    // Groups that are not a power of two get separate tiles.
    check({.batch = 30, .heads = 6, .kv_heads = 2, .q_len = 16, .kv_len = 300});
}

// Split-KV.
TEST_F(Sm90Gpu, FewRowsOverManyKeys) {
    check({.heads = 16, .kv_heads = 1, .kv_len = 30000});
    check({.batch = 2,
           .heads = 4,
           .kv_heads = 2,
           .q_len = 5,
           .kv_len = 3333,
           .dim = 64,
           .value_dim = 64,
           .causal = true,
           .diagonal = 3328,
           .rows_before_heads = true});
    check({.heads = 4, .kv_heads = 4, .q_len = 300, .kv_len = 5000, .window = 4000});
}

TEST_F(Sm90Gpu, FewRowsOfHeadDimOver128) {
    check({.heads = 8, .kv_heads = 1, .q_len = 2, .kv_len = 2500, .dim = 192});
    check({.heads = 3,
           .kv_heads = 3,
           .q_len = 30,
           .kv_len = 2500,
           .dim = 256,
           .value_dim = 256,
           .causal = true,
           .diagonal = 2000});
    // Fully masked rows beside others.
    check({.dtype = DType::f16,
           .heads = 4,
           .kv_heads = 2,
           .q_len = 10,
           .kv_len = 3000,
           .causal = true,
           .diagonal = -4,
           .scale = -0.1});
}

TEST_F(Sm90Gpu, ScalesOfAnySign) {
    for (double scale : {-0.1, 1e-30, 2.0}) {
        check({.q_len = 200, .kv_len = 300, .scale = scale});
    }
}

// Scores that grow, shrink and jump between blocks: both repairs of the speculative row maximum.
TEST_F(Sm90Gpu, ScoresThatJump) {
    for (double growth : {40.0, -40.0, 400.0, -400.0, 4000.0, -4000.0}) {
        for (bool causal : {false, true}) {
            check({.q_len = 300, .kv_len = 1000, .causal = causal, .diagonal = 700}, 5, growth);
        }
        check({.q_len = 200, .kv_len = 700, .dim = 64, .value_dim = 64}, 6, growth);
    }
}

TEST_F(Sm90Gpu, ReplaysFromAGraph) {
    const Problem p{.heads = 40, .kv_heads = 40, .q_len = 600, .kv_len = 600, .causal = true};
    const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
    Device device(p, q, q, q);
    const cuda::Stream stream(0);
    forward(device.inputs, stream.handle());  // loads the kernel
    stream.synchronize();
    std::vector<std::uint16_t> direct(static_cast<std::size_t>(q.size())), replayed = direct;
    device.out.buffer.download(direct.data(), direct.size() * 2, kGuard);
    device.out.buffer.fill(kPoison);

    const testing_support::Graph graph(
        stream, [&] { forward(device.inputs, stream.handle()); },
        testing_support::Capture::all_threads);
    for (int run = 0; run < 3; ++run) graph.launch(stream);
    stream.synchronize();
    device.out.buffer.download(replayed.data(), replayed.size() * 2, kGuard);
    EXPECT_EQ(replayed, direct);
}

}  // namespace
}  // namespace tilewright::attn::sm90
