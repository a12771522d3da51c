// Shared memory of the Hopper kernels: one description for the host, which reserves it, and the
// kernels.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"
#include "attention/sm90/memory_parameters.h"
#include "tests/cuda/test_support.h"
#include "tilewright/error.h"

namespace tilewright::attn::sm90 {
namespace {

AttentionSpec spec_of(Pass pass, std::int64_t dim) {
    AttentionSpec spec;
    spec.pass = pass;
    spec.dtype = bf16;
    spec.batch = 1;
    spec.query_heads = spec.kv_heads = 2;
    spec.query_length = spec.kv_length = 1024;
    spec.head_dim = spec.value_dim = dim;
    return spec;
}

/// The compiler's log if the host reserved 16 bytes more than it does.
std::string log_of_another_size(cuda::CompileRequest request, int reserved) {
    int changed = 0;
    for (cuda::Header& header : request.headers) {
        const std::string was = fmt::format("kReservedBytes = {};", reserved);
        const std::size_t at = header.text.find(was);
        if (at == std::string::npos) continue;
        ++changed;
        header.text.replace(at, was.size(), fmt::format("kReservedBytes = {};", reserved + 16));
    }
    EXPECT_EQ(changed, 1) << request.name;
    try {
        cuda::compile(request);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "compiled";
}

TEST(Sm90Memory, KernelsDoNotCompileForAnotherNumberOfBytes) {
    TW_REQUIRE_NVRTC();
    constexpr int kAlignment = 1024;  // added by the host
    const auto matches = testing::HasSubstr("the host reserves another number of bytes");
    ForwardDesc forward;
    ASSERT_FALSE(describe(spec_of(Pass::forward, 64), forward));
    const ForwardConfig config = choose_forward(forward, 132);
    EXPECT_THAT(log_of_another_size(generate_forward(forward, config),
                                    forward_shared_bytes(forward, config) - kAlignment),
                matches);
    BackwardDesc backward;
    ASSERT_FALSE(describe(spec_of(Pass::backward, 64), backward));
    const BackwardConfig tiles = choose_backward(backward);
    EXPECT_THAT(log_of_another_size(generate_backward(backward, tiles).front(),
                                    backward_shared_bytes(backward, tiles) - kAlignment),
                matches);
}

/// Offsets increase, tiles are aligned to the swizzle, barriers to 8 bytes.
void expect_in_order(const std::vector<int>& tiles, int barriers, int bits, int total) {
    int last = 0;
    for (const int offset : tiles) {
        EXPECT_GE(offset, last);
        EXPECT_EQ(offset % 1024, 0);
        last = offset;
    }
    EXPECT_GE(barriers, last);
    EXPECT_EQ(barriers % 8, 0);
    EXPECT_GT(bits, barriers);
    EXPECT_EQ(bits % 16, 0);
    EXPECT_GE(total, bits);
}

TEST(Sm90Memory, PartsFollowEachOther) {
    for (int dim = 8; dim <= 256; dim += 8) {
        for (const bool listed : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {}", dim, listed));
            const auto q = twd::attn::memory_of(twd::attn::QueryTileShape{.query_dim = dim,
                                                                          .value_dim = 264 - dim,
                                                                          .warpgroups = 2,
                                                                          .block_n = 64,
                                                                          .stages = 2,
                                                                          .value_stages = 2,
                                                                          .query_buffers = 2,
                                                                          .query_gradient = false,
                                                                          .listed = listed,
                                                                          .mask_bits = listed});
            expect_in_order({q.key_offset, q.value_offset}, q.barrier_offset, q.bits_offset,
                            q.total);
            const auto k = twd::attn::memory_of(twd::attn::KeyTileShape{.query_dim = dim,
                                                                        .value_dim = 264 - dim,
                                                                        .warpgroups = 2,
                                                                        .over_128 = dim > 128,
                                                                        .block_m = 64,
                                                                        .stages = 2,
                                                                        .listed = listed,
                                                                        .mask_bits = listed});
            expect_in_order(
                {k.value_offset, k.query_offset, k.grad_out_offset, k.score_offset, k.grad_offset},
                k.barrier_offset, k.bits_offset, k.total);
        }
    }
}

/// 128 x 128 keys and two buffers of 128 x 128 queries in bf16, worked out by hand.
TEST(Sm90Memory, OfOneConfiguration) {
    const auto m = twd::attn::memory_of(twd::attn::QueryTileShape{.query_dim = 128,
                                                                  .value_dim = 128,
                                                                  .warpgroups = 2,
                                                                  .block_n = 128,
                                                                  .stages = 2,
                                                                  .value_stages = 2,
                                                                  .query_buffers = 2,
                                                                  .query_gradient = false,
                                                                  .listed = false,
                                                                  .mask_bits = false});
    EXPECT_EQ(m.key_offset, 65536);
    EXPECT_EQ(m.value_offset, 131072);
    EXPECT_EQ(m.barrier_offset, 196608);
    EXPECT_EQ(m.total, 196864);
}

}  // namespace
}  // namespace tilewright::attn::sm90
