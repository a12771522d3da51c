// Rows of a mask in tiles of any size: which are full, which need their bits.
#pragma once

#include <map>
#include <vector>

#include "mask/mask_data.h"

namespace tilewright::mask {

/// Adjacent tiles of a row. A span that is not full is one tile in which some piece is not full; it
/// may still turn out to be empty or full.
struct TileSpan {
    std::int64_t first = 0, count = 1;
    bool full = false;
};

/// One row of tiles: queries [q, q + height) of head `head`, with keys in tiles of `width`.
struct TileRow {
    std::int64_t head = 0;  ///< index over batch and heads
    std::int64_t q = 0, height = 64, width = 64;
};

/// The spans of a row in order; tiles in none of them are empty. The work is proportional to the
/// row's runs.
std::vector<TileSpan> tile_spans(const MaskData& data, const TileRow& row);

/// The bits of a tile, row by row, each row padded to whole 64-bit words.
struct TileBits {
    std::int64_t rows = 0, columns = 0;
    std::vector<std::uint64_t> words;

    TileBits(std::int64_t r, std::int64_t c)
        : rows(r), columns(c), words(static_cast<std::size_t>(r * ((c + 63) / 64))) {}
    std::int64_t stride() const { return (columns + 63) / 64; }
    bool get(std::int64_t i, std::int64_t j) const {
        return (words[i * stride() + j / 64] >> (j % 64) & 1) != 0;
    }
    void set(std::int64_t i, std::int64_t j) {
        words[i * stride() + j / 64] |= std::uint64_t{1} << (j % 64);
    }
    std::int64_t popcount() const;
    TileBits transposed() const;
    auto operator<=>(const TileBits&) const = default;
};

TileBits tile_bits(const MaskData& data, const TileRow& row, std::int64_t tile);

/// Distinct tiles of one size, recognised by the atoms they consist of, so that a tile's bits are
/// assembled only once.
class TileTable {
  public:
    TileTable(const MaskData& data, std::int64_t height, std::int64_t width)
        : data_(data), height_(height), width_(width) {}

    /// The index of the tile's bits in tiles(), which holds every distinct tile once.
    std::int64_t number(const TileRow& row, std::int64_t tile);
    const std::vector<TileBits>& tiles() const { return tiles_; }
    /// Number of bits set in a tile.
    std::int64_t popcount(std::int64_t number) const { return popcounts_[number]; }

  private:
    const MaskData& data_;
    std::int64_t height_, width_;
    std::map<std::vector<std::uint32_t>, std::int64_t> by_atoms_;
    std::map<TileBits, std::int64_t> by_bits_;
    std::vector<TileBits> tiles_;
    std::vector<std::int64_t> popcounts_;
};

}  // namespace tilewright::mask
