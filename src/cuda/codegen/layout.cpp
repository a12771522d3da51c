// The layout algebra: fragments, related tiles, conversions.
#include "cuda/codegen/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <span>

#include "support/check.h"

namespace tilewright::cuda {
namespace {

constexpr int kLaneBits = 5;
constexpr int kMaxRepeat = 15;
constexpr int kMinRepeatedBits = 4;
constexpr int kBanks = 32, kBankBytes = 4;

/// `from` with every basis mapped by `map`; register bits whose basis becomes 0 are removed.
template <typename Map>
Layout mapped(const Layout& from, const ir::Shape& shape, Map&& map) {
    Layout result(shape, from.warps());
    for (std::uint64_t basis : from.reg) {
        if (const std::uint64_t image = map(basis)) result.reg.push_back(image);
    }
    for (std::size_t bit = 0; bit < from.lane.size(); ++bit) result.lane[bit] = map(from.lane[bit]);
    for (std::size_t bit = 0; bit < from.warp.size(); ++bit) result.warp[bit] = map(from.warp[bit]);
    return result;
}

/// Packs the linear parts of coordinates for a layout.
std::uint64_t pack(const Layout& layout, const Coordinates& coordinates) {
    std::uint64_t packed = 0;
    for (int axis = 0; axis < layout.shape.rank(); ++axis) {
        packed |= static_cast<std::uint64_t>(coordinates[axis]) << layout.offset(axis);
    }
    return packed;
}

/// Expresses packed coordinates as xors of register and lane bases of one layout.
class Solver {
  public:
    explicit Solver(const Layout& layout) {
        for (std::size_t bit = 0; bit < layout.reg.size(); ++bit)
            add(layout.reg[bit], 1U << bit, 0);
        for (std::size_t bit = 0; bit < layout.lane.size(); ++bit)
            add(layout.lane[bit], 0, 1U << bit);
    }
    struct Place {
        unsigned reg = 0, lane = 0;
    };
    std::optional<Place> solve(std::uint64_t packed) const {
        Place place;
        for (const Row& row : rows_) {
            if ((packed ^ row.value) < packed) {
                packed ^= row.value;
                place.reg ^= row.place.reg;
                place.lane ^= row.place.lane;
            }
        }
        if (packed != 0) return std::nullopt;
        return place;
    }

  private:
    struct Row {
        std::uint64_t value;
        Place place;
    };
    void add(std::uint64_t value, unsigned reg, unsigned lane) {
        Place place{reg, lane};
        for (const Row& row : rows_) {
            if ((value ^ row.value) < value) {
                value ^= row.value;
                place.reg ^= row.place.reg;
                place.lane ^= row.place.lane;
            }
        }
        if (value == 0) return;
        rows_.push_back({value, place});
        std::sort(rows_.begin(), rows_.end(),
                  [](const Row& a, const Row& b) { return a.value > b.value; });
    }
    std::vector<Row> rows_;
};

/// Words in the busiest bank when a warp accesses its first register.
int conflicts(const Layout& layout, std::int64_t pitch, int bytes) {
    std::array<std::map<std::int64_t, int>, kBanks> words;
    const int last = layout.shape.rank() - 1;
    for (int lane = 0; lane < 32; ++lane) {
        const Coordinates at = layout.thread_coordinates(lane, 0);
        std::int64_t row = 0;
        for (int axis = 0; axis < last; ++axis) {
            row = row * cover(layout.shape[axis]).size() + at[axis];
        }
        const std::int64_t word = (row * pitch + at[last]) * bytes / kBankBytes;
        ++words[word % kBanks][word];
    }
    std::size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    return static_cast<int>(most);
}

}  // namespace

Cover cover(std::int64_t extent) {
    if (extent <= 1) return {};
    const int bits = std::countr_zero(static_cast<std::uint64_t>(extent));
    const std::int64_t odd = extent >> bits;
    if (odd == 1) return {bits, 1};
    if (bits >= kMinRepeatedBits && odd <= kMaxRepeat) return {bits, static_cast<int>(odd)};
    return {static_cast<int>(std::bit_width(static_cast<std::uint64_t>(extent - 1))), 1};
}

ir::Shape covered(const ir::Shape& shape) {
    std::vector<std::int64_t> extents;
    for (const std::int64_t extent : shape.dims()) extents.push_back(cover(extent).size());
    return ir::Shape(std::span<const std::int64_t>(extents));
}

std::int64_t covered_rows(const ir::Shape& shape) {
    std::int64_t rows = 1;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) rows *= cover(shape[axis]).size();
    return rows;
}

Layout::Layout(ir::Shape tile, int warps)
    : shape(tile),
      lane(kLaneBits, 0),
      warp(static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(warps))), 0) {}

int Layout::registers() const {
    int count = 1 << reg.size();
    for (std::int64_t extent : shape.dims()) count *= cover(extent).repeat;
    return count;
}

int Layout::offset(int axis) const {
    int bits = 0;
    for (int a = shape.rank() - 1; a > axis; --a) bits += cover(shape[a]).bits;
    return bits;
}

Coordinates Layout::unpack(std::uint64_t packed) const {
    Coordinates result{};
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        const int bits = cover(shape[axis]).bits;
        result[axis] = static_cast<std::int64_t>(packed & ((std::uint64_t{1} << bits) - 1));
        packed >>= bits;
    }
    return result;
}

Coordinates Layout::register_coordinates(int index) const {
    std::uint64_t packed = 0;
    for (std::size_t bit = 0; bit < reg.size(); ++bit) {
        if ((index >> bit & 1) != 0) packed ^= reg[bit];
    }
    Coordinates result = unpack(packed);
    int repeat = index >> reg.size();
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        const Cover covered = cover(shape[axis]);
        result[axis] += std::int64_t{repeat % covered.repeat} << covered.bits;
        repeat /= covered.repeat;
    }
    return result;
}

Coordinates Layout::thread_coordinates(int lane_index, int warp_index) const {
    std::uint64_t packed = 0;
    for (std::size_t bit = 0; bit < lane.size(); ++bit) {
        if ((lane_index >> bit & 1) != 0) packed ^= lane[bit];
    }
    for (std::size_t bit = 0; bit < warp.size(); ++bit) {
        if ((warp_index >> bit & 1) != 0) packed ^= warp[bit];
    }
    return unpack(packed);
}

int Layout::find_register(const Coordinates& coordinates) const {
    std::uint64_t packed = 0;
    int repeat = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
        const Cover covered = cover(shape[axis]);
        const std::int64_t at = coordinates[axis];
        packed = packed << covered.bits |
                 static_cast<std::uint64_t>(at & ((std::int64_t{1} << covered.bits) - 1));
        repeat = repeat * covered.repeat + static_cast<int>(at >> covered.bits);
    }
    int index = 0;
    // Every basis of a register is a bit of its own, or 0, except in converted layouts.
    std::uint64_t seen = 0;
    bool single = true;
    for (const std::uint64_t basis : reg) {
        single = single && (basis & (basis - 1)) == 0 && (basis & seen) == 0;
        seen |= basis;
    }
    if (single) {
        for (std::size_t bit = 0; bit < reg.size(); ++bit) {
            if ((packed & reg[bit]) != 0) index |= 1 << bit;
        }
        return (packed & ~seen) == 0 ? (repeat << reg.size() | index) : -1;
    }
    // Else they are solved by elimination.
    std::vector<std::pair<std::uint64_t, int>> rows;
    for (std::size_t bit = 0; bit < reg.size(); ++bit) {
        std::uint64_t value = reg[bit];
        int combination = 1 << bit;
        for (const auto& [row, made_of] : rows) {
            if ((value ^ row) < value) value ^= row, combination ^= made_of;
        }
        if (value != 0) {
            rows.emplace_back(value, combination);
            std::sort(rows.rbegin(), rows.rend());
        }
    }
    for (const auto& [row, made_of] : rows) {
        if ((packed ^ row) < packed) packed ^= row, index ^= made_of;
    }
    return packed == 0 ? (repeat << reg.size() | index) : -1;
}

bool Layout::has_phantoms() const {
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (has_phantoms(axis)) return true;
    }
    return false;
}

unsigned Layout::copied_lanes() const {
    unsigned mask = 0;
    for (std::size_t bit = 0; bit < lane.size(); ++bit) mask |= (lane[bit] == 0 ? 1U : 0U) << bit;
    return mask;
}

unsigned Layout::copied_warps() const {
    unsigned mask = 0;
    for (std::size_t bit = 0; bit < warp.size(); ++bit) mask |= (warp[bit] == 0 ? 1U : 0U) << bit;
    return mask;
}

Layout Layout::without(int axis) const {
    const Layout target(shape.without(axis), warps());
    return mapped(*this, target.shape, [&](std::uint64_t basis) {
        const Coordinates old = unpack(basis);
        Coordinates next{};
        for (int a = 0, to = 0; a < shape.rank(); ++a) {
            if (a != axis) next[to++] = old[a];
        }
        return pack(target, next);
    });
}

Layout Layout::with_inserted(int axis) const {
    // An extent of 1 has no bits, so packed coordinates stay.
    return mapped(*this, shape.with_inserted(axis, 1), [](std::uint64_t basis) { return basis; });
}

Layout Layout::transposed(const std::vector<int>& permutation) const {
    std::vector<std::int64_t> dims;
    for (int from : permutation) dims.push_back(shape[from]);
    const Layout target(ir::Shape(dims), warps());
    return mapped(*this, target.shape, [&](std::uint64_t basis) {
        const Coordinates old = unpack(basis);
        Coordinates next{};
        for (std::size_t a = 0; a < permutation.size(); ++a) {
            next[a] = old[permutation[a]];
        }
        return pack(target, next);
    });
}

Layout Layout::narrowed(const ir::Shape& narrow) const {
    if (narrow == shape) return *this;
    const Layout target(narrow, warps());
    return mapped(*this, narrow, [&](std::uint64_t basis) {
        Coordinates at = unpack(basis);
        for (int a = 0; a < shape.rank(); ++a) {
            if (narrow.rank() == 0 || narrow[a] == 1) at[a] = 0;
        }
        return narrow.rank() == 0 ? 0 : pack(target, at);
    });
}

std::optional<Layout> Layout::reshaped(const ir::Shape& next) const {
    const auto movable = [](const ir::Shape& tile) {
        bool leading = true;  // still at the outermost axis of more than one element
        for (int a = 0; a < tile.rank(); ++a) {
            const Cover covered = cover(tile[a]);
            if (covered.size() != std::max<std::int64_t>(tile[a], 1)) return false;
            if (covered.repeat != 1 && !leading) return false;
            if (tile[a] != 1) leading = false;
        }
        return true;
    };
    std::vector<std::int64_t> old_dims, new_dims;
    for (std::int64_t extent : shape.dims()) {
        if (extent != 1) old_dims.push_back(extent);
    }
    for (std::int64_t extent : next.dims()) {
        if (extent != 1) new_dims.push_back(extent);
    }
    if (old_dims != new_dims && (!movable(shape) || !movable(next))) return std::nullopt;
    return mapped(*this, next, [](std::uint64_t basis) { return basis; });
}

std::string Layout::to_string() const {
    const auto text = [&](const std::vector<std::uint64_t>& bases) {
        std::string line;
        for (std::uint64_t basis : bases) {
            if (!line.empty()) line += ' ';
            if (basis == 0) line += '-';
            const Coordinates at = unpack(basis);
            bool first = true;
            for (int axis = 0; axis < shape.rank(); ++axis) {
                const std::int64_t stride = at[axis];
                if (stride == 0) continue;
                line += fmt::format("{}{}:{}", first ? "" : "^", axis, stride);
                first = false;
            }
        }
        return line;
    };
    return fmt::format("{} reg [{}] lane [{}] warp [{}]", ir::to_string(shape), text(reg),
                       text(lane), text(warp));
}

Layout blocked(const ir::Shape& shape, int warps, int vector, const std::vector<int>& order) {
    Layout layout(shape, warps);
    std::vector<std::uint64_t> bits;
    for (int axis : order) {
        for (int bit = 0; bit < cover(shape[axis]).bits; ++bit)
            bits.push_back(layout.basis(axis, bit));
    }
    std::size_t next = 0;
    const int first_bits = order.empty() ? 0 : cover(shape[order[0]]).bits;
    const int vector_bits = std::min(std::countr_zero(static_cast<unsigned>(vector)), first_bits);
    for (int bit = 0; bit < vector_bits; ++bit) layout.reg.push_back(bits[next++]);
    for (auto& basis : layout.lane) basis = next < bits.size() ? bits[next++] : 0;
    for (auto& basis : layout.warp) basis = next < bits.size() ? bits[next++] : 0;
    while (next < bits.size()) layout.reg.push_back(bits[next++]);
    return layout;
}

Layout blocked(const ir::Shape& shape, int warps, int vector) {
    std::vector<int> order;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) order.push_back(axis);
    return blocked(shape, warps, vector, order);
}

Layout blocked_rows(const ir::Shape& shape, int warps, int vector) {
    Layout layout(shape, warps);
    std::vector<std::uint64_t> rows, columns;
    for (int bit = 0; bit < cover(shape[0]).bits; ++bit) rows.push_back(layout.basis(0, bit));
    for (int bit = 0; bit < cover(shape[1]).bits; ++bit) columns.push_back(layout.basis(1, bit));
    const auto take = [](std::vector<std::uint64_t>& from) {
        const std::uint64_t basis = from.front();
        from.erase(from.begin());
        return basis;
    };
    for (int size = 1; size < vector && !columns.empty(); size *= 2) {
        layout.reg.push_back(take(columns));
    }
    // Lanes along short rows leave as many rows as the warps need.
    const std::size_t kept = layout.warp.size();
    for (auto& basis : layout.lane) {
        basis = !columns.empty() ? take(columns) : rows.size() > kept ? take(rows) : 0;
    }
    for (auto& basis : layout.warp) basis = rows.empty() ? 0 : take(rows);
    layout.reg.insert(layout.reg.end(), columns.begin(), columns.end());
    layout.reg.insert(layout.reg.end(), rows.begin(), rows.end());
    return layout;
}

Conversion conversion(const Layout& from, const Layout& to) {
    TW_ASSERT(from.shape == to.shape && from.warp.size() == to.warp.size());
    Conversion result;
    if (from.warp != to.warp) return result;
    const int registers = to.registers();
    const int low_bits = static_cast<int>(to.reg.size());
    if (from.lane == to.lane) {
        result.source.reserve(registers);
        for (int r = 0; r < registers; ++r) {
            const int source = from.find_register(to.register_coordinates(r));
            if (source < 0) break;
            result.source.push_back(source);
        }
        if (static_cast<int>(result.source.size()) == registers) {
            result.kind = Conversion::Kind::relabel;
            return result;
        }
        result.source.clear();
    }
    const Solver solver(from);
    std::vector<Solver::Place> reg_places;
    unsigned dependent = 0;  // register bits of the source that depend on the target's lane
    for (std::uint64_t basis : to.reg) {
        const auto place = solver.solve(basis);
        if (!place) return result;
        reg_places.push_back(*place);
    }
    for (std::size_t bit = 0; bit < to.lane.size(); ++bit) {
        if (to.lane[bit] == from.lane[bit]) {
            result.lane_map[bit] = 1U << bit;
            continue;
        }
        const auto place = solver.solve(to.lane[bit]);
        if (!place) return result;
        result.lane_map[bit] = place->lane;
        if (place->reg != 0) {
            if (dependent != 0 && dependent != place->reg) return result;
            dependent = place->reg;
            result.select_lanes |= 1U << bit;
        }
    }
    for (int r = 0; r < registers; ++r) {
        Solver::Place place;
        for (int bit = 0; bit < low_bits; ++bit) {
            if ((r >> bit & 1) == 0) continue;
            place.reg ^= reg_places[bit].reg;
            place.lane ^= reg_places[bit].lane;
        }
        const int repeat = r >> low_bits << from.reg.size();
        result.source.push_back(repeat | static_cast<int>(place.reg));
        result.alternative.push_back(repeat | static_cast<int>(place.reg ^ dependent));
        result.flip.push_back(place.lane);
    }
    result.kind = Conversion::Kind::shuffle;
    return result;
}

int vector_length(const Layout& layout, int axis) {
    int bits = 0;
    while (bits < std::ssize(layout.reg) && bits < cover(layout.shape[axis]).bits &&
           layout.reg[bits] == layout.basis(axis, bits)) {
        ++bits;
    }
    return 1 << bits;
}

std::int64_t row_pitch(const Layout& from, const Layout& to, int bytes) {
    const int last = from.shape.rank() - 1;
    if (last < 0) return 1;
    const std::int64_t width = cover(from.shape[last]).size();
    if (last == 0) return width;
    std::int64_t best = width;
    int best_cost = INT32_MAX;
    for (int pad : {0, 16, 8, 4}) {
        if (pad % bytes != 0) continue;
        const std::int64_t pitch = width + pad / bytes;
        // A vector longer than the padding's alignment would be split.
        const auto splits = [&](const Layout& layout) {
            return pad % std::min(16, vector_length(layout, last) * bytes) != 0;
        };
        const int cost = conflicts(from, pitch, bytes) + conflicts(to, pitch, bytes) +
                         (splits(from) ? 4 : 0) + (splits(to) ? 4 : 0);
        if (cost < best_cost) {
            best_cost = cost;
            best = pitch;
        }
    }
    return best;
}

}  // namespace tilewright::cuda
