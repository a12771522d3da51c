// The order of the tiles of products, and of programs.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd {

struct TilePlace {
    u32 row, column;
};

/// Tile `t` of rows x columns. Tiles are in groups of rows, each column by column, so that programs
/// that run at the same time read the same rows and few columns.
TW_DEVICE TilePlace tile_order(u32 t, u32 rows, u32 columns, u32 group) {
    const u32 first = t / (group * columns) * group;
    const u32 height = rows - first < group ? rows - first : group;
    const u32 in = t - first * columns;
    return {first + in % height, in / height};
}
template <int kGroup>
TW_DEVICE TilePlace tile_order(u32 t, u32 rows, u32 columns) {
    return tile_order(t, rows, columns, kGroup);
}

/// Program `t` where those that differ along `inner`, the columns, take different times. As many
/// of the others go side by side as make groups of 256 programs: those that run at the same time
/// take about as long as each other, and what a group reads stays in L2.
TW_DEVICE TilePlace unequal_order(u32 t, u32 others, u32 inner) {
    constexpr u32 kPrograms = 256;
    return tile_order(t, others, inner, inner < kPrograms ? kPrograms / inner : 1);
}

/// The row or column of tiles that a block of a pair has, the last one twice if there is no other.
TW_DEVICE u32 of_pair(u32 pair, u32 rank, u32 all) {
    const u32 at = 2 * pair + rank;
    return at < all ? at : all - 1;
}

}  // namespace twd
