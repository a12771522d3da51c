// Configurations of the Hopper backward kernels: without a GPU, that each fits shared memory and
// compiles cleanly; on a Hopper GPU, gradients where one decides how work is divided, which tile
// stores dQ, and in which order tiles go.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "attention/sm90/backward_query.h"
#include "tests/attention/sm90_backward_gpu.h"
#include "tests/cuda/graph.h"

namespace tilewright::attn::sm90 {
namespace {

TEST(Sm90Backward, EveryConfigurationFitsSharedMemory) {
    constexpr int kHopperShared = 232448;
    for (std::int64_t dim = 8; dim <= 256; dim += 8) {
        for (std::int64_t value_dim = 8; value_dim <= 256; value_dim += 8) {
            const BackwardDesc desc = check_backward(backward_inputs_of(
                {.q_len = 100, .kv_len = 100, .dim = dim, .value_dim = value_dim}));
            for (const BackwardConfig& config : backward_trials(desc)) {
                EXPECT_LE(backward_shared_bytes(desc, config), kHopperShared)
                    << dim << " x " << value_dim;
            }
            if (desc.over_128()) {
                EXPECT_LE(backward_query_shared_bytes(desc), kHopperShared)
                    << dim << " x " << value_dim;
            }
        }
    }
}

// No spills, no serialised wgmma, no ignored setmaxnreg: generate_backward turns all of them into
// errors.
TEST(Sm90Backward, ConfigurationsCompileCleanly) {
    TW_REQUIRE_NVRTC();
    const Problem problems[] = {
        {.dim = 128, .value_dim = 128, .causal = true},
        {.dtype = DType::f16, .dim = 128, .value_dim = 128, .causal = true, .window = 100},
        {.dtype = DType::f16, .dim = 64, .value_dim = 64, .causal = true},
        {.dim = 96, .value_dim = 96},
        {.dim = 40, .value_dim = 72},
        {.dim = 64, .value_dim = 64, .causal = true, .window = 100},
        {.dim = 256, .value_dim = 256, .causal = true},
        {.dim = 192, .value_dim = 128},
        {.dim = 96, .value_dim = 96, .causal = true},
        {.dim = 128, .value_dim = 128, .causal = true},
        {.dim = 96, .value_dim = 96},
        {.dtype = DType::f16, .dim = 64, .value_dim = 64, .causal = true},
        // The last tile stores dQ: of groups, without a mask, in blocks of 80 rows.
        {.batch = 8, .heads = 64, .kv_heads = 8, .q_len = 4096, .kv_len = 4096, .causal = true},
        {.q_len = 4096, .kv_len = 4096},
        // Without a mask, tiles can be cut.
        {.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192},
        {.dtype = DType::f16, .dim = 128, .value_dim = 128},
        {.heads = 8, .q_len = 4096, .kv_len = 4096, .causal = true},
        // Tiles go upward, in blocks of 64 rows.
        {.batch = 32, .heads = 16, .kv_heads = 16, .q_len = 1024, .kv_len = 1024, .causal = true},
    };
    bool deterministic = false;
    for (const Problem& problem : problems) {
        const BackwardDesc desc = check_backward(backward_inputs_of(problem, deterministic));
        for (const BackwardConfig& config : backward_trials(desc)) {
            for (const cuda::CompileRequest& unit : generate_backward(desc, config)) {
                EXPECT_NO_THROW(cuda::compile(unit)) << unit.name;
            }
        }
        deterministic = !deterministic;
    }
}

TEST_F(Sm90BackwardGpu, CopiesOfRowsChangeNoBit) {
    for (const bool rows_before_heads : {false, true}) {
        for (const std::int64_t dim : {8, 40, 72, 104, 136, 248}) {
            const Problem p{.batch = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .q_len = 300,
                            .kv_len = 333,
                            .dim = dim,
                            .value_dim = dim == 136 ? 64 : dim,
                            .causal = dim == 40,
                            .rows_before_heads = rows_before_heads};
            BackwardDevice device(p, Sample(p, p.heads, p.q_len, p.dim, 1).exact,
                                  Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact,
                                  Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact,
                                  Sample(p, p.heads, p.q_len, p.value_dim, 4).exact, Array{},
                                  /*deterministic=*/true);
            const BackwardDesc desc = check_backward(device.inputs);
            SCOPED_TRACE(dim);
            expect_copies_change_no_bit(
                choose_backward(desc), {&device.grad_query, &device.grad_key, &device.grad_value},
                device.inputs.workspace,
                [&](const BackwardConfig& config) {
                    return backward_workspace_bytes(desc, config);
                },
                [&](const BackwardConfig& config, cuda::StreamHandle stream) {
                    launch_backward(device.inputs, desc, config, load_backward(desc, config, 0),
                                    stream);
                });
        }
    }
}

TEST_F(Sm90BackwardGpu, SplitsOfGroupedHeads) {
    for (const int splits : {1, 2, 4}) {
        for (const bool deterministic : {false, true}) {
            SCOPED_TRACE(fmt::format("{} splits", splits));
            const auto change = [&](BackwardConfig& config) {
                config.splits = splits;
                config.fused = false;
            };
            check({.batch = 2,
                   .heads = 8,
                   .kv_heads = 2,
                   .q_len = 500,
                   .kv_len = 450,
                   .causal = true,
                   .diagonal = -50},
                  deterministic, /*with_grad_lse=*/true, 1, change);
            check({.heads = 4,
                   .kv_heads = 1,
                   .q_len = 300,
                   .kv_len = 300,
                   .dim = 64,
                   .value_dim = 64,
                   .rows_before_heads = true},
                  deterministic, false, 2, change);
            check({.heads = 4,
                   .kv_heads = 1,
                   .q_len = 300,
                   .kv_len = 300,
                   .dim = 192,
                   .value_dim = 256,
                   .causal = true},
                  deterministic, false, 3, change);
        }
    }
}

// dK and dV of tiles that are cut are the sums of their pieces'.
TEST_F(Sm90BackwardGpu, TilesInPieces) {
    for (const auto& [cut, pieces] : {std::pair(0, 1), {1, 2}, {5, 3}, {12, 4}}) {
        for (const bool deterministic : {false, true}) {
            SCOPED_TRACE(fmt::format("{} tiles in {} pieces", cut, pieces));
            const auto change = [&](BackwardConfig& config) {
                config.splits = 1;
                config.cut_tiles = cut;
                config.pieces = pieces;
            };
            check({.batch = 1, .heads = 3, .kv_heads = 3, .q_len = 450, .kv_len = 500},
                  deterministic, /*with_grad_lse=*/true, 1, change);
            check({.dtype = DType::f16,
                   .batch = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .q_len = 700,
                   .kv_len = 333,
                   .dim = 64,
                   .value_dim = 64,
                   .rows_before_heads = true},
                  deterministic, false, 2, change);
            check({.heads = 6,
                   .kv_heads = 6,
                   .q_len = 300,
                   .kv_len = 257,
                   .dim = 96,
                   .value_dim = 72},
                  deterministic, false, 3, change);
        }
    }
}

// The last tile that adds to a block of dQ stores it.
TEST_F(Sm90BackwardGpu, TilesStoreQueryGradients) {
    const auto fused = [](BackwardConfig& config) { EXPECT_TRUE(config.fused); };
    const auto expect = [&](Problem p, int block_m, unsigned seed) {
        p.causal = true;
        check(p, /*deterministic=*/true, /*with_grad_lse=*/seed % 2 == 0, seed,
              [&](BackwardConfig& config) {
                  fused(config);
                  EXPECT_EQ(config.block_m, block_m);
              });
    };
    for (const DType dtype : {DType::bf16, DType::f16}) {
        for (const std::int64_t dim : {8, 40, 64, 72, 96, 128}) {
            const int block_m = dim > 64 ? 64 : 128;
            expect({.dtype = dtype,
                    .batch = 2,
                    .heads = 3,
                    .kv_heads = 3,
                    .q_len = 400,
                    .kv_len = 400,
                    .dim = dim,
                    .value_dim = dim,
                    .rows_before_heads = dtype == DType::f16},
                   block_m, 1);
        }
    }
    for (const std::int64_t q_len : {1, 63, 64, 65, 128, 129, 200, 257}) {
        for (const std::int64_t dim : {64, 128}) {
            expect({.heads = 2,
                    .kv_heads = 2,
                    .q_len = q_len,
                    .kv_len = q_len,
                    .dim = dim,
                    .value_dim = dim},
                   dim == 64 ? 128 : 64, 2);
        }
    }
    // More tiles than multiprocessors.
    expect({.batch = 4, .heads = 40, .kv_heads = 40, .q_len = 300, .kv_len = 300}, 64, 3);
}

// Blocks of 80 rows begin and end inside of tiles.
TEST_F(Sm90BackwardGpu, TilesStoreQueryGradientsOfGroupsAndWithoutAMask) {
    int splits = 0, block_m = 80;
    const auto change = [&](BackwardConfig& config) {
        config.block_m = block_m;
        config.fused = config.ordered = true;
        if (splits > 0) config.splits = splits;
    };
    unsigned seed = 0;
    const auto expect = [&](Problem p, std::int64_t heads, std::int64_t kv_heads, bool causal) {
        p.heads = heads;
        p.kv_heads = kv_heads;
        p.causal = causal;
        ++seed;
        check(p, /*deterministic=*/seed % 2 == 0, /*with_grad_lse=*/seed % 3 == 0, seed, change);
    };
    const auto problem = [](std::int64_t length, std::int64_t dim) {
        return Problem{.q_len = length,
                       .kv_len = length,
                       .dim = dim,
                       .value_dim = dim,
                       .rows_before_heads = length % 2 == 0};
    };
    for (const std::int64_t length : {79, 80, 81, 128, 129, 400}) {
        expect(problem(length, 128), 2, 2, true);
        expect(problem(length, 128), 2, 2, false);
        expect(problem(length, 128), 4, 2, true);
    }
    for (const std::int64_t dim : {72, 96, 128}) {
        for (const int of_group : {1, 2, 4}) {
            splits = of_group;
            SCOPED_TRACE(fmt::format("{} splits", splits));
            expect(problem(257, dim), 8, 2, true);
            expect(problem(257, dim), 8, 2, false);
            block_m = 64;
            expect(problem(257, dim), 8, 2, true);
            block_m = 80;
        }
        splits = 0;
    }
    for (const bool causal : {false, true}) {
        expect({.dtype = DType::f16, .q_len = 300, .kv_len = 300}, 4, 2, causal);
        // More tiles than multiprocessors.
        expect({.q_len = 200, .kv_len = 200, .dim = 72, .value_dim = 72}, 140, 70, causal);
    }
    for (const std::int64_t kv_len : {40, 127, 128, 500}) {
        expect({.q_len = 200, .kv_len = kv_len}, 2, 1, false);
    }
}

// The first heads go upward, the last ones downward, if there are more than one group of them.
TEST_F(Sm90BackwardGpu, TilesGoUpward) {
    const auto expect = [](Problem p, int block_m, bool fused, bool ahead) {
        p.causal = true;
        check(p, /*deterministic=*/true, /*with_grad_lse=*/ahead, 1, [&](BackwardConfig& config) {
            config.block_m = block_m;
            config.fused = fused;
            config.ahead = ahead;
            config.upward = true;
        });
    };
    const Problem problem{.batch = 4, .heads = 36, .kv_heads = 36, .q_len = 400, .kv_len = 400};
    expect(problem, 64, true, true);
    expect(problem, 80, true, false);
    Problem grouped = problem;
    grouped.kv_heads = 27;
    grouped.heads = 54;
    expect(grouped, 80, true, false);
    Problem narrow = problem;
    narrow.heads = narrow.kv_heads = 60;
    narrow.dim = narrow.value_dim = 64;
    expect(narrow, 128, true, true);
    for (const std::int64_t length : {64, 129, 257}) {  // all downward
        Problem small{.batch = 2, .heads = 3, .kv_heads = 3, .q_len = length, .kv_len = length};
        expect(small, 64, true, true);
        small.dim = small.value_dim = 72;
        expect(small, 80, false, false);
    }
}

// The next tile's first products are issued before this one's results are stored.
TEST_F(Sm90BackwardGpu, FirstProductsComeAhead) {
    const auto expect = [](const Problem& p, int block_m, bool deterministic) {
        check(p, deterministic, /*with_grad_lse=*/false, 1, [&](BackwardConfig& config) {
            config.block_m = block_m;
            config.ahead = true;
        });
    };
    for (const bool deterministic : {false, true}) {
        for (const std::int64_t dim : {40, 64, 96, 128}) {
            const int block_m = dim > 64 ? 64 : 128;
            // More tiles than multiprocessors.
            Problem p{.batch = 3,
                      .heads = 24,
                      .kv_heads = 24,
                      .q_len = 300,
                      .kv_len = 300,
                      .dim = dim,
                      .value_dim = dim,
                      .causal = true,
                      .rows_before_heads = dim == 96};
            expect(p, block_m, deterministic);
            p.causal = false;
            p.kv_heads = 8;
            p.kv_len = 500;
            expect(p, block_m, deterministic);
        }
    }
}

// Each form in which dQ is stored: by a kernel, and by the last tiles of short, grouped, split,
// long, unmasked and narrow problems.
TEST_F(Sm90BackwardGpu, ReplaysFromAGraph) {
    struct Form {
        std::int64_t heads, kv_heads, length, dim;
        bool causal, is_fused;
        int block_m;
    };
    const Form forms[] = {
        {40, 40, 600, 128, true, false, 64}, {40, 40, 600, 128, true, true, 64},
        {80, 40, 600, 128, true, true, 64},  {8, 1, 600, 128, true, true, 64},
        {8, 8, 2100, 128, true, true, 80},   {8, 8, 2100, 96, true, true, 80},
        {40, 40, 600, 128, false, true, 80}, {40, 40, 600, 64, true, true, 128},
    };
    for (const Form& form : forms) {
        SCOPED_TRACE(fmt::format("{} heads on {}, {} rows of {}, {}", form.heads, form.kv_heads,
                                 form.length, form.dim, form.causal ? "causal" : "full"));
        const Problem p{.heads = form.heads,
                        .kv_heads = form.kv_heads,
                        .q_len = form.length,
                        .kv_len = form.length,
                        .dim = form.dim,
                        .value_dim = form.dim,
                        .causal = form.causal};
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
        BackwardDevice device(p, q, k, k, q, {}, /*deterministic=*/form.is_fused);
        const BackwardConfig config = choose_backward(check_backward(device.inputs));
        EXPECT_EQ(config.fused, form.is_fused);
        EXPECT_EQ(config.block_m, form.block_m);
        const cuda::Stream stream(0);
        backward(device.inputs, stream.handle());  // loads the kernels
        stream.synchronize();
        const auto gradients = [&] {
            return std::array{device.bits(device.grad_query, device.inputs.grad_query),
                              device.bits(device.grad_key, device.inputs.grad_key),
                              device.bits(device.grad_value, device.inputs.grad_value)};
        };
        const auto direct = gradients();
        const testing_support::Graph graph(
            stream, [&] { backward(device.inputs, stream.handle()); },
            testing_support::Capture::all_threads);
        for (Guarded* gradient : {&device.grad_query, &device.grad_key, &device.grad_value}) {
            gradient->buffer.fill(kPoison);
        }
        for (int run = 0; run < 3; ++run) graph.launch(stream);
        stream.synchronize();
        EXPECT_TRUE(device.guards_intact());
        const auto replayed = gradients();
        EXPECT_EQ(replayed[1], direct[1]);
        EXPECT_EQ(replayed[2], direct[2]);
        if (form.is_fused) {
            EXPECT_EQ(replayed[0], direct[0]);
            continue;
        }
        double difference = 0, size = 0;  // sums without an order
        for (std::size_t i = 0; i < direct[0].size(); ++i) {
            const double x = from_bits(direct[0][i], p.dtype);
            difference += std::pow(from_bits(replayed[0][i], p.dtype) - x, 2);
            size += x * x;
        }
        EXPECT_LT(difference, 1e-5 * size);
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
