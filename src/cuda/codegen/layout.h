// Layouts: which thread and register hold which element of a tile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/type.h"

namespace tilewright::cuda {

/// Position of an element in a tile, axis by axis.
using Coordinates = std::array<std::int64_t, ir::kMaxTileRank>;

/// How an axis of some extent is covered: `repeat << bits` positions, at least the extent.
/// Multiples of 16 keep an odd factor up to 15 as the repeat; other extents are covered by the next
/// power of two. Positions beyond the extent are phantoms: computed with, but never loaded or
/// stored.
struct Cover {
    int bits = 0;
    int repeat = 1;

    std::int64_t size() const { return std::int64_t{repeat} << bits; }
};
Cover cover(std::int64_t extent);
/// The extents of a tile with its phantoms.
ir::Shape covered(const ir::Shape& shape);
/// Its rows along the last axis, likewise.
std::int64_t covered_rows(const ir::Shape& shape);

/// A linear map over F2 from the bits of (register, lane, warp) to the bits of the coordinates: the
/// coordinates are the xor of the bases of all set bits. A basis packs the coordinate bits of all
/// axes, the last axis lowest; a lane or warp bit with basis 0 holds copies. The repeats of `cover`
/// are a counter in the register index, outermost, the same for every layout of a shape.
class Layout {
  public:
    Layout() = default;
    /// All bases of lanes and warps 0, no register bits. `warps` is a power of two.
    Layout(ir::Shape shape, int warps);

    ir::Shape shape;
    std::vector<std::uint64_t> reg, lane, warp;

    int warps() const { return 1 << warp.size(); }
    int registers() const;
    /// First bit of an axis in a packed basis.
    int offset(int axis) const;
    /// The packed basis of one bit of one axis.
    std::uint64_t basis(int axis, int bit) const {
        return std::uint64_t{1} << (offset(axis) + bit);
    }
    /// What a register adds to the coordinates of its thread.
    Coordinates register_coordinates(int index) const;
    /// The coordinates that a lane and warp add: xor of their bases.
    Coordinates thread_coordinates(int lane_index, int warp_index) const;
    /// Coordinates of a packed value, without repeats.
    Coordinates unpack(std::uint64_t packed) const;
    /// The register that adds these coordinates; -1 when none does.
    int find_register(const Coordinates& coordinates) const;

    /// True when some element lies beyond the shape.
    bool has_phantoms() const;
    bool has_phantoms(int axis) const { return cover(shape[axis]).size() != shape[axis]; }
    /// Lane (warp) bits that hold copies.
    unsigned copied_lanes() const;
    unsigned copied_warps() const;

    // ---- Layouts of related tiles. Every element stays in its thread and register.

    /// Of the tile without `axis`: registers and threads along it hold copies.
    Layout without(int axis) const;
    /// Of the tile with an axis of extent 1 inserted.
    Layout with_inserted(int axis) const;
    /// Result axis i is axis permutation[i] of this tile.
    Layout transposed(const std::vector<int>& permutation) const;
    /// Of a tile that broadcasts to this one: axes where `narrow` has extent 1 hold copies.
    Layout narrowed(const ir::Shape& narrow) const;
    /// Of the same elements in row-major order under another shape; nothing when an element would
    /// move (repeats or phantoms inside).
    std::optional<Layout> reshaped(const ir::Shape& shape) const;

    bool operator==(const Layout&) const = default;
    /// "reg [0:1 0:8] lane [...] warp [...]": axis:stride of each bit, for comments and keys.
    std::string to_string() const;
};

/// The default layout: vectors of `vector` elements along `order[0]`, then lanes, then warps, then
/// further registers, each over the axes in `order`.
Layout blocked(const ir::Shape& shape, int warps, int vector, const std::vector<int>& order);
/// The same with the axes from last to first.
Layout blocked(const ir::Shape& shape, int warps, int vector);
/// The same for a matrix whose rows each stay within a warp: warps take rows, registers the rest of
/// them. There are at least as many rows as warps.
Layout blocked_rows(const ir::Shape& shape, int warps, int vector);

/// How elements get from one layout to another one of the same shape.
struct Conversion {
    enum class Kind : std::uint8_t {
        relabel,  ///< every thread holds them already: register `source[r]` of target register r
        shuffle,  ///< they stay in their warp
        shared,   ///< through shared memory
    };
    Kind kind = Kind::shared;
    std::vector<int> source;
    // shuffle: target register r of lane l takes register source[r], or alternative[r] where the
    // parity of (l & select_lanes) is odd, from lane (xor of lane_map[i] over bits i of l) ^
    // flip[r].
    std::vector<int> alternative;
    unsigned select_lanes = 0;
    std::array<unsigned, 5> lane_map{};
    std::vector<unsigned> flip;
};
Conversion conversion(const Layout& from, const Layout& to);

/// Elements between the rows of a row-major copy in shared memory of a tile with elements of
/// `bytes`: padded so that writing `from` and reading `to` have the fewest bank conflicts.
std::int64_t row_pitch(const Layout& from, const Layout& to, int bytes);

/// The number of neighbours along the axis in consecutive registers, a power of two.
int vector_length(const Layout& layout, int axis);

}  // namespace tilewright::cuda
