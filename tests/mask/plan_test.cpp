// Plans against the dense mask: a plan visits exactly the pairs that attend, for any tile sizes.
#include "mask/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "mask/dense.h"
#include "tests/mask/random_mask.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright::mask {
namespace {

using testing::throws;

using tilewright::testing::random_dense_mask;

bool plan_bit(const MaskPlan& plan, std::int64_t tile, std::int64_t i, std::int64_t j) {
    const auto& dims = plan.bits.shape();
    switch (plan.options.bits) {
        case BitOrder::rows:
            return (plan.bits.data<std::uint64_t>()[(tile * dims[1] + i) * dims[2] + j / 64] >>
                        (j % 64) &
                    1) != 0;
        case BitOrder::bytes:
            return plan.bits.get({tile, i, j}) != 0;
        case BitOrder::atoms: {
            const std::int64_t atom = plan.bits.get_int({tile, i / 64, j / 64});
            return (plan.atoms.data<std::uint64_t>()[atom * 64 + i % 64] >> (j % 64) & 1) != 0;
        }
        case BitOrder::wgmma: {
            const std::int64_t lane = (i % 8) * 4 + j % 8 / 2, warp = i % 64 / 16;
            const std::int64_t reg = j / 8 * 4 + i % 16 / 8 * 2 + j % 2;
            const std::uint32_t* words =
                plan.bits.data<std::uint32_t>() +
                ((tile * dims[1] + i / 64) * 128 + warp * 32 + lane) * dims[3];
            return (words[reg / 32] >> (reg % 32) & 1) != 0;
        }
    }
    return false;
}

// How often a kernel that follows the plan visits each pair: 0 or 1, never 2.
std::vector<int> visited(const MaskPlan& plan, const Tensor& dense) {
    const std::int64_t q_len = dense.dim(2), kv_len = dense.dim(3);
    std::vector<int> counts(static_cast<std::size_t>(dense.size()));
    const PlanOptions& options = plan.options;
    const std::int64_t height = options.by_kv ? options.block_kv : options.block_q;
    const std::int64_t width = options.by_kv ? options.block_q : options.block_kv;
    const auto visit = [&](std::int64_t head, std::int64_t row, std::int64_t tile,
                           std::int64_t bits) {
        for (std::int64_t i = 0; i < height; ++i) {
            for (std::int64_t j = 0; j < width; ++j) {
                const std::int64_t r = row * height + i, c = tile * width + j;
                const std::int64_t q = options.by_kv ? c : r, kv = options.by_kv ? r : c;
                const bool flip = options.by_kv != options.transpose_bits;
                const bool on =
                    bits < 0 || (flip ? plan_bit(plan, bits, j, i) : plan_bit(plan, bits, i, j));
                const bool inside = q < q_len && kv < kv_len;
                if (!on) continue;
                // Only full tiles may extend past the mask, and only in rows; bits never do.
                if (!inside) {
                    EXPECT_TRUE(bits < 0 && (options.by_kv ? q < q_len : kv < kv_len));
                }
                if (inside) ++counts[static_cast<std::size_t>((head * q_len + q) * kv_len + kv)];
            }
        }
    };
    for (std::int64_t r = 0; r < plan.batch * plan.heads * plan.rows; ++r) {
        const std::int32_t* header = plan.headers.data<std::int32_t>() + r * 4;
        const auto* partial = plan.partial.data<std::int32_t>();
        const auto* full = plan.full.data<std::int32_t>();
        for (std::int32_t i = header[0]; i < header[0] + header[1]; ++i)
            visit(r / plan.rows, r % plan.rows, partial[i * 2], partial[i * 2 + 1]);
        for (std::int32_t i = header[2]; i < header[2] + header[3]; ++i) {
            for (std::int32_t t = 0; t < full[i * 2 + 1]; ++t)
                visit(r / plan.rows, r % plan.rows, full[i * 2] + t, -1);
        }
    }
    return counts;
}

TEST(MaskPlan, VisitsWhatTheMaskSays) {
    std::mt19937_64 random(11);
    const auto pick = [&](std::initializer_list<std::int64_t> values) {
        return values.begin()[random() % values.size()];
    };
    for (int round = 0; round < 120; ++round) {
        const Tensor dense =
            random_dense_mask(random(), pick({1, 2}), pick({1, 3}), pick({1, 63, 64, 130, 257}),
                              pick({1, 64, 100, 321}));
        PlanOptions options;
        options.by_kv = random() % 2 != 0;
        options.transpose_bits = random() % 2 != 0;
        options.bits = static_cast<BitOrder>(random() % 4);
        const bool whole = options.bits == BitOrder::atoms || options.bits == BitOrder::wgmma;
        options.block_q = whole ? pick({64, 128, 192}) : pick({1, 16, 48, 64, 100, 128});
        options.block_kv = whole ? pick({64, 128, 256}) : pick({8, 64, 80, 128, 200});
        const MaskPlan plan = make_plan(from_dense(dense), options);
        const std::vector<int> want = dense.to_vector<int>();
        ASSERT_EQ(visited(plan, dense), want) << "round " << round;
    }
}

TEST(MaskPlan, CausalIsFullBelowTheDiagonal) {
    Tensor dense = Tensor::zeros(boolean, {1, 1, 512, 512});
    for (std::int64_t q = 0; q < 512; ++q) {
        for (std::int64_t kv = 0; kv <= q; ++kv) dense.set({0, 0, q, kv}, 1);
    }
    const MaskPlan plan = make_plan(from_dense(dense), {.block_q = 128, .block_kv = 128});
    EXPECT_EQ(plan.headers.to_vector<int>(),
              (std::vector<int>{0, 1, 0, 0, 1, 1, 0, 1, 2, 1, 1, 1, 3, 1, 2, 1}));
    EXPECT_EQ(plan.partial.to_vector<int>(), (std::vector<int>{0, 0, 1, 0, 2, 0, 3, 0}));
    EXPECT_EQ(plan.full.to_vector<int>(), (std::vector<int>{0, 1, 0, 2, 0, 3}));
    EXPECT_EQ(plan.bits.dim(0), 1);
    EXPECT_EQ(plan.work_list(1, 2).to_vector<int>(), (std::vector<int>{3, 7, 2, 6, 1, 5, 0, 4}));
    // A tile may be full although it is not aligned to the 64 x 64 atoms.
    const MaskPlan wide = make_plan(from_dense(dense), {.block_q = 64, .block_kv = 96});
    EXPECT_EQ(wide.full_tiles, 16);
}

TEST(MaskPlan, RefusesTilesThatDoNotFit) {
    const MaskData data = from_dense(Tensor::zeros(boolean, {1, 1, 10, 10}));
    EXPECT_THAT([&] { make_plan(data, {.block_q = 0}); }, throws("of 1 to"));
    EXPECT_THAT([&] { make_plan(data, {.block_kv = 8192}); }, throws("of 1 to"));
    EXPECT_THAT([&] { make_plan(data, {.block_q = 80, .bits = BitOrder::atoms}); },
                throws("expected tiles of whole 64 x 64 atoms but got 80 x"));
    EXPECT_THAT([&] { make_plan(data, {.block_q = 64, .block_kv = 100, .bits = BitOrder::wgmma}); },
                throws("rows % 64 == 0 and columns % 8 == 0 but got 64 x 100"));
    EXPECT_THAT(
        [&] {
            make_plan(from_dense(Tensor::zeros(boolean, {2, 1, 10, 10})), {}).work_list(3, 1);
        },
        throws("expected batches 2 and heads 1 (1 broadcasts) but got 3 and 1"));
}

}  // namespace
}  // namespace tilewright::mask
