// Tiles from runs and atoms.
#include "mask/tiles.h"

#include <algorithm>
#include <bit>

#include "support/integer.h"

namespace tilewright::mask {
namespace {

std::vector<RowCursor> cursors(const MaskData& data, const TileRow& row) {
    std::vector<RowCursor> result;
    const std::int64_t end = std::min(row.q + row.height, data.q_len);
    for (std::int64_t r = row.q / kAtom; r * kAtom < end; ++r) {
        result.emplace_back(data, row.head * data.rows() + r);
    }
    return result;
}

}  // namespace

std::vector<TileSpan> tile_spans(const MaskData& data, const TileRow& row) {
    std::vector<TileSpan> spans;
    std::vector<RowCursor> rows = cursors(data, row);
    std::int64_t next = 0;  // all tiles before this one are done
    const auto mixed = [&](std::int64_t first, std::int64_t end) {
        for (next = std::max(next, first); next < end; ++next) spans.push_back({next, 1, false});
    };
    for (std::int64_t column = 0; column < data.columns();) {
        bool none = true, full = true;
        std::int64_t end = data.columns();
        for (RowCursor& cursor : rows) {
            const AtomId id = cursor.at(column);
            none &= id == kNone;
            full &= id == kAll;
            end = std::min(end, cursor.change(column));
        }
        const std::int64_t from = column * kAtom, to = end * kAtom;
        const std::int64_t last = ceil_div(std::min(to, data.kv_len), row.width);
        if (full && !none) {
            const std::int64_t first_inside = ceil_div(from, row.width);
            const std::int64_t end_inside = to / row.width;
            mixed(from / row.width, std::min(first_inside, last));
            if (end_inside > first_inside) {
                spans.push_back({first_inside, end_inside - first_inside, true});
                next = end_inside;
            }
            mixed(end_inside, last);
        } else if (!none) {
            mixed(from / row.width, last);
        }
        column = end;
    }
    return spans;
}

std::int64_t TileBits::popcount() const {
    std::int64_t count = 0;
    for (const std::uint64_t word : words) count += std::popcount(word);
    return count;
}

TileBits TileBits::transposed() const {
    TileBits result(columns, rows);
    for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            if (get(i, j)) result.set(j, i);
        }
    }
    return result;
}

TileBits tile_bits(const MaskData& data, const TileRow& row, std::int64_t tile) {
    TileBits bits(row.height, row.width);
    for (std::int64_t i = 0; i < row.height; i += kAtom) {
        const std::int64_t rows = std::min(kAtom, row.height - i);
        for (std::int64_t j = 0; j < row.width; j += kAtom) {
            Atom atom = read_atom(data, row.head * data.rows(), row.q + i, tile * row.width + j);
            const Atom clip = corner_atom(rows, std::min(kAtom, row.width - j));
            for (std::int64_t r = 0; r < rows; ++r) {
                bits.words[(i + r) * bits.stride() + j / kAtom] = atom[r] & clip[r];
            }
        }
    }
    return bits;
}

std::int64_t TileTable::number(const TileRow& row, std::int64_t tile) {
    const std::int64_t kv = tile * width_;
    const std::int64_t kv_end = std::min(kv + width_, data_.kv_len);
    std::vector<std::uint32_t> key = {static_cast<std::uint32_t>(row.q % kAtom),
                                      static_cast<std::uint32_t>(kv % kAtom),
                                      static_cast<std::uint32_t>(kv_end - kv)};
    for (RowCursor& cursor : cursors(data_, row)) {
        for (std::int64_t c = kv / kAtom; c * kAtom < kv_end; ++c) key.push_back(cursor.at(c));
    }
    const auto [entry, fresh] = by_atoms_.try_emplace(std::move(key), 0);
    if (fresh) {
        TileBits bits = tile_bits(data_, {row.head, row.q, height_, width_}, tile);
        const auto [known, is_new] = by_bits_.try_emplace(bits, std::ssize(tiles_));
        if (is_new) {
            popcounts_.push_back(bits.popcount());
            tiles_.push_back(std::move(bits));
        }
        entry->second = known->second;
    }
    return entry->second;
}

}  // namespace tilewright::mask
