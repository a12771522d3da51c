// Which packed sequence a tile or a block of the Hopper kernels belongs to: the search by a warp,
// emulated on the host, against one sequence after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/device/ptx/types.cuh"  // the emulator's

namespace twd::attn {
using std::max;
using std::min;
}  // namespace twd::attn

#include "attention/sm90/packed_sequences.cuh"

namespace twd::attn {
namespace {

int parts_of(const std::vector<int>& starts, std::size_t sequence, int size) {
    return (starts[sequence + 1] - starts[sequence] + size - 1) / size;
}

PackedPlace reference_place(const std::vector<int>& rows, const std::vector<int>& columns,
                            int place, int tile_rows, int block_columns) {
    PackedPlace at{0, 0, 0};
    for (std::size_t s = 0; s + 1 < rows.size(); ++s) {
        const int tiles = parts_of(rows, s, tile_rows);
        at.sequence = static_cast<int>(s);
        if (place < at.first_place + tiles) return at;
        at.first_place += tiles;
        at.first_block += parts_of(columns, s, block_columns);
    }
    at.sequence = static_cast<int>(rows.size()) - 1;
    return at;
}

BlockRows reference_rows(const std::vector<int>& starts, int block_rows, int block) {
    for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
        const int blocks = parts_of(starts, s, block_rows);
        if (block < blocks) {
            const int inside = block * block_rows, rows = starts[s + 1] - starts[s];
            return {starts[s] + inside, min(block_rows, rows - inside)};
        }
        block -= blocks;
    }
    return {0, 0};
}

/// Starts of sequences of 0 to `most` rows, some of which are empty.
std::vector<int> random_starts(std::mt19937& random, int sequences, int most) {
    std::vector<int> starts = {0};
    for (int s = 0; s < sequences; ++s) {
        const bool empty = random() % 5 == 0;
        starts.push_back(
            starts.back() +
            (empty ? 0 : static_cast<int>(random() % static_cast<unsigned>(most + 1))));
    }
    return starts;
}

TEST(Sm90PackedSequences, AWarpFindsTheSequenceOfEveryTile) {
    std::mt19937 random(1);
    for (const int sequences : {1, 2, 31, 32, 33, 64, 100}) {
        const std::vector<int> rows = random_starts(random, sequences, 500),
                               columns = random_starts(random, sequences, 300);
        int tiles = 0;
        for (int s = 0; s < sequences; ++s)
            tiles += parts_of(rows, static_cast<std::size_t>(s), 192);
        for (int place = 0; place < tiles + 2; ++place) {
            SCOPED_TRACE(std::to_string(sequences) + " sequences, place " + std::to_string(place));
            std::vector<PackedPlace> found(32);
            emulator::run_block(32, 1, [&] {
                found[threadIdx.x] =
                    find_packed(rows.data(), columns.data(), sequences, place, 192, 64);
            });
            const PackedPlace expected = reference_place(rows, columns, place, 192, 64);
            for (const PackedPlace& at : found) {
                ASSERT_EQ(at.sequence, expected.sequence);
                if (at.sequence == sequences) continue;
                ASSERT_EQ(at.first_place, expected.first_place);
                ASSERT_EQ(at.first_block, expected.first_block);
            }
        }
    }
}

TEST(Sm90PackedSequences, EveryBlockFindsItsRows) {
    std::mt19937 random(2);
    constexpr int kThreads = 128, kRows = 64;
    for (const int sequences : {1, 2, 31, 32, 33, 64, 100}) {
        const std::vector<int> starts = random_starts(random, sequences, 300);
        int blocks = 0;
        for (int s = 0; s < sequences; ++s) {
            blocks += parts_of(starts, static_cast<std::size_t>(s), kRows);
        }
        for (int first = 0; first < blocks + 2; first += kThreads) {
            std::vector<BlockRows> found(kThreads);
            emulator::run_block(kThreads, 1, [&] {
                const int block = first + static_cast<int>(threadIdx.x);
                found[threadIdx.x] = rows_of_block(starts.data(), sequences, kRows, block);
            });
            for (int i = 0; i < kThreads; ++i) {
                const BlockRows expected = reference_rows(starts, kRows, first + i);
                const BlockRows& rows = found[static_cast<std::size_t>(i)];
                ASSERT_EQ(rows.first, expected.first) << sequences << ' ' << first + i;
                ASSERT_EQ(rows.count, expected.count) << sequences << ' ' << first + i;
            }
        }
    }
}

}  // namespace
}  // namespace twd::attn
