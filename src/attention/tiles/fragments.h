// Blocks of dQ in the order of a tensor core's accumulator, as the parts of dQ hold them.
#pragma once

#include "tilewright/lang.h"

namespace tilewright::attn::tiles {

/// A tile [rows, columns] as a line in the order of a tensor core's accumulator: the 32 lanes of a
/// warp hold adjacent elements, so that each of its additions covers 128 bytes.
inline Tile in_fragments(const Tile& tile) {
    const std::int64_t rows = tile.dim(0) / 8, columns = tile.dim(1) / 8;
    const Tile pieces = transpose(reshape(tile, {rows, 8, columns, 8}), {0, 2, 1, 3});
    const Tile pairs = transpose(reshape(pieces, {rows * columns, 8, 4, 2}), {0, 3, 1, 2});
    return reshape(pairs, {tile.size()});
}

/// The inverse, for a tile with `columns` columns.
inline Tile from_fragments(const Tile& line, std::int64_t columns) {
    const std::int64_t rows = line.size() / columns;
    const Tile pairs = transpose(reshape(line, {line.size() / 64, 2, 8, 4}), {0, 2, 3, 1});
    const Tile pieces = reshape(pairs, {rows / 8, columns / 8, 8, 8});
    return reshape(transpose(pieces, {0, 2, 1, 3}), {rows, columns});
}

}  // namespace tilewright::attn::tiles
