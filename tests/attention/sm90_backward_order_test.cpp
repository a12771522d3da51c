// The order in which tiles of the Hopper backward kernel add to dQ, with causal masks: run on the
// host, as many multiprocessors would.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/ptx/types.cuh"  // the emulator's

namespace twd::attn {

// A configuration whose first heads go upward, the others downward.
constexpr bool kUpward = true, kDeterministic = true, kCutsTiles = true;
constexpr bool kUpperBound = true, kLowerBound = false, kLengths = false;
constexpr int kLengthBytes = 0, kBlockN = 128;
int kBlockM = 64;  ///< rows of a block; the kernel's is a constant

template <int kBytes>
int keys_of(const void*, int, int most) {
    return most;
}

using std::max;
using std::min;

}  // namespace twd::attn

#include "attention/sm90/backward_order.cuh"

namespace twd::attn {
namespace {

/// A causal problem of as many queries as keys.
BackwardParameters parameters(int heads, int per_kv_head, int length, int upward_heads,
                              int group_heads) {
    BackwardParameters p{};
    p.q_len = p.kv_len = length;
    p.batches = 1;
    p.kv_heads = p.batch_kv_heads = heads;
    p.heads_per_kv_head = per_kv_head;
    p.heads = heads * per_kv_head;
    p.q_blocks = (length + kBlockM - 1) / kBlockM;
    p.kv_tiles = (length + kBlockN - 1) / kBlockN;
    p.upward_heads = upward_heads;
    p.group_heads = group_heads;
    p.whole_places = p.kv_tiles * p.batch_kv_heads;
    p.pieces = 1;
    return p;
}

/// Multiprocessors that take tiles in the order of work; each waits in a visit until the tile that
/// adds before it has done so.
class Work {
  public:
    Work(const BackwardParameters& p, int multiprocessors) : p_(p) {
        const int places = p.kv_tiles * p.batch_kv_heads;
        for (int place = 0; place < places; ++place)
            tiles_.push_back(tile_at(place_at(place, p), p));
        next_ = std::min(multiprocessors, places);
        for (int i = 0; i < next_; ++i) running_.push_back({static_cast<std::size_t>(i), 0});
    }

    /// Runs until all is done, or nothing goes on.
    void run() {
        for (bool moves = true; moves;) {
            moves = false;
            for (std::pair<std::size_t, int>& each : running_) moves |= advance(each);
        }
    }

    void expect_done() const {
        EXPECT_EQ(next_, static_cast<int>(tiles_.size()));
        std::set<std::pair<int, int>> seen;
        std::map<std::pair<int, int>, std::vector<int>> wanted;
        for (const KeyTile& tile : tiles_) {
            EXPECT_TRUE(seen.emplace(tile.kv_head, tile.index).second) << "a tile comes twice";
            EXPECT_LT(tile.index, p_.kv_tiles);
            EXPECT_EQ(tile.blocks, tile.each * p_.heads_per_kv_head);
        }
        EXPECT_EQ(seen.size(), tiles_.size());
        for (int head = 0; head < p_.kv_heads; ++head) {
            for (int block = 0; block < p_.q_blocks; ++block) {
                SCOPED_TRACE("head " + std::to_string(head) + ", block " + std::to_string(block));
                // The tiles that have a key of the block's last row or of one before it.
                const int last_row = std::min((block + 1) * kBlockM, p_.q_len) - 1;
                std::vector<int> expected;
                for (int tile = 0; tile * kBlockN <= last_row; ++tile) expected.push_back(tile);
                if (head < p_.upward_heads) std::reverse(expected.begin(), expected.end());
                const auto added = added_.find({head, block});
                ASSERT_NE(added, added_.end());
                EXPECT_EQ(added->second, expected);
                const auto stored = stored_.find({head, block});
                ASSERT_NE(stored, stored_.end()) << "its dQ is never stored";
                EXPECT_EQ(stored->second, std::vector{expected.back()});
            }
        }
    }

  private:
    bool advance(std::pair<std::size_t, int>& each) {
        auto& [place, visit] = each;
        if (place >= tiles_.size()) return false;
        const KeyTile& tile = tiles_[place];
        if (visit == tile.each) {
            each = {static_cast<std::size_t>(next_), 0};
            if (next_ < static_cast<int>(tiles_.size())) ++next_;
            return true;
        }
        const int block = block_at(visit, tile.begin, tile.each, tile.is_descending);
        const std::pair key(tile.kv_head, block);
        unsigned& last = last_added_[key];
        if (last != predecessor_of(tile.index, block, tile.is_descending, p_)) return false;
        last = static_cast<unsigned>(tile.rank) + 1;
        added_[key].push_back(tile.index);
        const int finished =
            finished_blocks(tile.index, tile.begin, tile.each, tile.is_descending, p_);
        if (block < tile.begin + finished) stored_[key].push_back(tile.index);
        ++visit;
        return true;
    }

    const BackwardParameters& p_;
    std::vector<KeyTile> tiles_;
    int next_ = 0;
    std::vector<std::pair<std::size_t, int>> running_;  ///< place and visit of each multiprocessor
    std::map<std::pair<int, int>, unsigned> last_added_;
    std::map<std::pair<int, int>, std::vector<int>> added_, stored_;  ///< tiles, by head and block
};

TEST(Sm90BackwardOrder, EveryTileAddsAfterTheOneBeforeItAndTheLastOneStores) {
    for (const int rows : {64, 80, 128}) {
        kBlockM = rows;
        for (const int length : {1, 64, 128, 129, 257, 400, 1000}) {
            for (const auto& [heads, upward, group] :
                 std::vector<std::array<int, 3>>{{3, 3, 1}, {5, 3, 1}, {5, 3, 2}, {4, 0, 1}}) {
                for (const int multiprocessors : {1, 2, 7, 132}) {
                    SCOPED_TRACE(::testing::Message()
                                 << rows << " rows, length " << length << ", " << upward << " of "
                                 << heads << " heads upward, " << group << " at a time, "
                                 << multiprocessors << " multiprocessors");
                    const BackwardParameters p = parameters(heads, 1, length, upward, group);
                    Work work(p, multiprocessors);
                    work.run();
                    work.expect_done();
                    if (::testing::Test::HasFailure()) return;
                }
            }
        }
    }
}

// Pieces of tiles make the visits of whole ones, each once and in the same order.
TEST(Sm90BackwardOrder, PiecesMakeTheVisitsOfTheirTiles) {
    kBlockM = 64;
    BackwardParameters p = parameters(3, 2, 1000, 2, 1);
    const int tiles = p.kv_tiles * p.batch_kv_heads;
    for (const int cut : {0, 1, 5, tiles}) {
        for (const int pieces : {1, 2, 3, 16}) {
            SCOPED_TRACE(::testing::Message() << cut << " tiles in " << pieces << " pieces");
            p.whole_places = tiles - cut;
            p.pieces = pieces;
            ASSERT_EQ(places_of(p), tiles + cut * (pieces - 1));
            std::map<std::pair<int, int>, std::vector<int>> visited, expected;
            for (int place = 0; place < places_of(p); ++place) {
                const KeyTile tile = tile_or_piece_at(place, p);
                EXPECT_EQ(tile.piece, place < tiles - cut ? 0 : place - (tiles - cut) + 1);
                EXPECT_EQ(tile.blocks, tile.each * 2);
                for (int i = 0; i < tile.each; ++i) {
                    visited[{tile.kv_head, tile.index}].push_back(
                        block_at(i, tile.begin, tile.each, tile.is_descending));
                }
            }
            for (int place = 0; place < tiles; ++place) {
                const KeyTile tile = tile_at(place_at(place, p), p);
                for (int i = 0; i < tile.each; ++i) {
                    expected[{tile.kv_head, tile.index}].push_back(
                        block_at(i, tile.begin, tile.each, tile.is_descending));
                }
            }
            EXPECT_EQ(visited, expected);
        }
    }
}

// Upward, tiles of a head begin with blocks of their own: at the same time, none waits.
TEST(Sm90BackwardOrder, UpwardTilesBeginAtDifferentBlocks) {
    kBlockM = 64;
    const BackwardParameters p = parameters(2, 1, 1024, 1, 1);
    std::map<int, std::set<int>> first;  // by head
    for (int place = 0; place < p.kv_tiles * p.batch_kv_heads; ++place) {
        const KeyTile tile = tile_at(place_at(place, p), p);
        const int block = block_at(0, tile.begin, tile.each, tile.is_descending);
        first[tile.kv_head].insert(block);
        if (tile.kv_head == 0) {
            EXPECT_EQ(predecessor_of(tile.index, block, tile.is_descending, p), 0U);
        }
    }
    EXPECT_EQ(first[0].size(), 8U);
    EXPECT_EQ(first[1].size(), 1U);
}

}  // namespace
}  // namespace twd::attn
