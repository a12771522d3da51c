// The order in which thread blocks take the programs of a grid.
#include "cuda/device/tile/order.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace tilewright {
namespace {

using twd::TilePlace;

TEST(Order, EveryProgramHasItsPlace) {
    for (const auto& [others, inner] : std::vector<std::pair<unsigned, unsigned>>{
             {1, 1}, {64, 64}, {7, 100}, {3, 511}, {3, 512}, {2, 513}, {5, 2000}, {1000, 3}}) {
        std::set<std::pair<unsigned, unsigned>> places;
        for (unsigned t = 0; t < others * inner; ++t) {
            const TilePlace place = twd::unequal_order(t, others, inner);
            EXPECT_LT(place.row, others);
            EXPECT_LT(place.column, inner);
            places.emplace(place.row, place.column);
        }
        EXPECT_EQ(places.size(), std::size_t{others} * inner) << others << " x " << inner;
    }
}

/// When the last of `blocks` thread blocks ends, if a program of causal attention takes as many
/// steps as it visits blocks of keys: most programs in rows, the last four rows as blocks become
/// free (`run_scheduled`). As a multiple of the mean.
double longest(unsigned others, unsigned inner, unsigned blocks) {
    const unsigned programs = others * inner, rows = (programs + blocks - 1) / blocks;
    const unsigned alone = std::min(rows - 1, 4U) * blocks;
    std::vector<std::int64_t> ends(blocks);
    std::int64_t all = 0;
    for (unsigned t = 0; t < programs; ++t) {
        const std::int64_t steps = inner - twd::unequal_order(t, others, inner).column;
        all += steps;
        const bool in_row = t + alone < programs;
        (in_row ? ends[t % blocks] : *std::min_element(ends.begin(), ends.end())) += steps;
    }
    return static_cast<double>(*std::max_element(ends.begin(), ends.end())) * blocks /
           static_cast<double>(all);
}

// Head by head, the first row's pattern of long and short programs repeats: 1.27 for one batch of
// 16 heads and 16,384 queries, 1.04 for 4 batches and 8,192.
TEST(Order, UnequalProgramsFillAllMultiprocessors) {
    constexpr unsigned kBlocks = 132;
    EXPECT_LT(longest(16, 128, kBlocks), 1.03);
    EXPECT_LT(longest(64, 64, kBlocks), 1.01);
    EXPECT_LT(longest(128, 32, kBlocks), 1.01);
    EXPECT_LT(longest(64, 32, kBlocks), 1.02);
    EXPECT_LT(longest(64, 16, kBlocks), 1.05);
}

}  // namespace
}  // namespace tilewright
