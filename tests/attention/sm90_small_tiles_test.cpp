// Small tiles of the Hopper forward kernel, several thread blocks of which share a multiprocessor.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/attention/sm90_support.h"

namespace tilewright::attn::sm90 {
namespace {

/// Packed sequences, causal, of 64 columns unless said; made-up addresses.
ForwardInputs packed(std::int64_t sequences, std::int64_t dim = 64) {
    ForwardInputs inputs = inputs_of({.heads = 16,
                                      .kv_heads = 16,
                                      .q_len = 32768,
                                      .kv_len = 32768,
                                      .dim = dim,
                                      .value_dim = dim,
                                      .causal = true});
    inputs.q_starts = inputs.kv_starts = 7 << 20;
    inputs.sequences = sequences;
    return inputs;
}

TEST(Sm90SmallTiles, SmallDocumentsTakeTilesOfOneWarpgroup) {
    const auto config = [](const ForwardInputs& inputs) {
        return choose_forward(check_forward(inputs), 132);
    };
    EXPECT_EQ(config(packed(256)).warpgroups, 1);
    EXPECT_EQ(config(packed(256)).ctas, 3);
    EXPECT_EQ(config(packed(4)).warpgroups, 3);
    EXPECT_EQ(config(packed(4)).ctas, 1);
    EXPECT_EQ(config(packed(256, 256)).warpgroups, 2);
    ForwardInputs dropped = packed(256);
    dropped.dropout = 0.5;  // the draws take registers
    EXPECT_EQ(config(dropped).warpgroups, 3);
    // Autotuning measures both sizes.
    for (const std::int64_t sequences : {4, 256}) {
        const std::vector<ForwardConfig> trials =
            forward_trials(check_forward(packed(sequences)), 132);
        for (const int warpgroups : {1, 3}) {
            EXPECT_TRUE(std::any_of(trials.begin(), trials.end(), [&](const ForwardConfig& tried) {
                return tried.warpgroups == warpgroups;
            })) << sequences;
        }
    }
    // A mask as data says how many keys its queries have; lists are for one size of tiles.
    AttentionSpec spec;
    spec.device = tilewright::Device::cuda();
    spec.dtype = bf16;
    spec.batch = 1;
    spec.query_heads = spec.kv_heads = 16;
    spec.query_length = spec.kv_length = 32768;
    spec.head_dim = spec.value_dim = 64;
    spec.block_mask = true;
    for (const bool few : {false, true}) {
        spec.mask_keys = few ? 128 : 8192;
        ForwardDesc desc;
        ASSERT_FALSE(describe(spec, desc));
        EXPECT_EQ(choose_forward(desc, 132).warpgroups, few ? 1 : 3);
        ForwardInputs inputs = packed(0);
        inputs.q_starts = inputs.kv_starts = 0;
        inputs.upper_diagonal.reset();
        inputs.mask = DeviceMask{.q_len = 32768, .kv_len = 32768, .strips = few ? 1 : 3};
        EXPECT_EQ(config(inputs).warpgroups, few ? 1 : 3);
    }
}

TEST(Sm90SmallTiles, SeveralThreadBlocksOnAMultiprocessorCompileCleanly) {
    TW_REQUIRE_NVRTC();
    constexpr int kShared = 233472;  // of a multiprocessor, 1 KB of which each block reserves
    for (const bool lengths : {false, true}) {
        ForwardInputs listed = packed(256);
        if (lengths) {
            listed.kv_lengths = 8 << 20;
            listed.length_bytes = 4;
        }
        ForwardInputs masked = listed;
        masked.q_starts = masked.kv_starts = masked.sequences = 0;
        masked.upper_diagonal.reset();
        masked.mask = DeviceMask{.q_len = 32768, .kv_len = 32768, .strips = 1};
        for (const ForwardInputs& inputs : {listed, masked}) {
            for (const bool exact : {false, true}) {
                ForwardDesc desc = check_forward(inputs);
                desc.exact_maximum = desc.row_maximum = exact;
                const ForwardConfig config = choose_forward(desc, 132);
                EXPECT_EQ(config.ctas, 3);
                EXPECT_LE(config.ctas * (forward_shared_bytes(desc, config) + 1024), kShared);
                const cuda::CompileRequest request = generate_forward(desc, config);
                EXPECT_NO_THROW(cuda::compile(request)) << request.name;
            }
        }
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
