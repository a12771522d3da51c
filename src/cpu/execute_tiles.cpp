// Runs instructions on whole tiles: moves, scans, arg reductions, random bits.
#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/execute.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

using Dims = std::array<std::int64_t, ir::kMaxTileRank>;

/// Extents, filled up with 1.
Dims dims_of(const ir::Shape& shape) {
    Dims dims{1, 1, 1, 1};
    for (int axis = 0; axis < shape.rank(); ++axis)
        dims[static_cast<std::size_t>(axis)] = shape[axis];
    return dims;
}

/// Calls visit(c) for every coordinate of `dims` with axis `fixed` held at 0.
template <typename Visitor>
void for_each_line(Dims dims, int fixed, Visitor&& visit) {
    if (fixed >= 0) dims[static_cast<std::size_t>(fixed)] = 1;
    Coordinates c{};
    for (c[0] = 0; c[0] < dims[0]; ++c[0]) {
        for (c[1] = 0; c[1] < dims[1]; ++c[1]) {
            for (c[2] = 0; c[2] < dims[2]; ++c[2]) {
                for (c[3] = 0; c[3] < dims[3]; ++c[3]) visit(c);
            }
        }
    }
}

std::int64_t offset_of(const ResolvedTile& tile, const Coordinates& c) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < ir::kMaxTileRank; ++axis) {
        offset += tile.offset(axis, c[static_cast<std::size_t>(axis)]);
    }
    return offset;
}

std::uint64_t read(const ResolvedTile& tile, std::int64_t offset) {
    return ir::read_element(tile.dtype, tile.at(offset));
}

void write(const ResolvedTile& tile, std::int64_t offset, std::uint64_t bits) {
    ir::write_element(tile.dtype, tile.at(offset), bits);
}

template <typename T>
void copy_strided(std::byte* out, std::int64_t out_stride, const std::byte* in,
                  std::int64_t in_stride, std::int64_t count) {
    auto* to = reinterpret_cast<T*>(out);
    const auto* from = reinterpret_cast<const T*>(in);
    if (in_stride == 0) {
        const T value = *from;
        for (std::int64_t i = 0; i < count; ++i) to[i * out_stride] = value;
    } else {
        for (std::int64_t i = 0; i < count; ++i) to[i * out_stride] = from[i * in_stride];
    }
}

void copy_line(std::byte* out, std::int64_t out_stride, const std::byte* in, std::int64_t in_stride,
               std::int64_t count, int element) {
    if (out_stride == 1 && in_stride == 1) {
        std::memcpy(out, in, static_cast<std::size_t>(count * element));
        return;
    }
    switch (element) {
        case 1:
            return copy_strided<std::uint8_t>(out, out_stride, in, in_stride, count);
        case 2:
            return copy_strided<std::uint16_t>(out, out_stride, in, in_stride, count);
        case 4:
            return copy_strided<std::uint32_t>(out, out_stride, in, in_stride, count);
        default:
            return copy_strided<std::uint64_t>(out, out_stride, in, in_stride, count);
    }
}

/// One side of a copy: a tile with the start and step of the box in it.
struct Side {
    const ResolvedTile& tile;
    const Coordinates& start;
    const Coordinates& step;

    std::int64_t index(int axis, std::int64_t i) const {
        return start[static_cast<std::size_t>(axis)] + i * step[static_cast<std::size_t>(axis)];
    }
    std::int64_t offset(int axis, std::int64_t i) const {
        return tile.offset(axis, index(axis, i));
    }
    /// Elements from one index of `axis` to the next, within a panel.
    std::int64_t stride(int axis) const {
        const auto a = static_cast<std::size_t>(axis);
        return (axis == tile.lane_axis ? 1 : tile.stride[a]) * step[a];
    }
    /// How many indices from `i` on lie in one panel.
    std::int64_t run(int axis, std::int64_t i) const {
        if (axis != tile.lane_axis) return std::numeric_limits<std::int64_t>::max();
        const std::int64_t left = tile.width - index(axis, i) % tile.width;
        return ceil_div(left, step[static_cast<std::size_t>(axis)]);
    }
};

/// A run of indices along one axis that lies within one panel on both sides.
struct Segment {
    std::int64_t in = 0, out = 0;  ///< offsets of its first element
    std::int64_t count = 0;
};

std::vector<Segment> segments(const Side& in, const Side& out, int axis, std::int64_t dim) {
    std::vector<Segment> result;
    for (std::int64_t i = 0; i < dim;) {
        const std::int64_t count = std::min({dim - i, in.run(axis, i), out.run(axis, i)});
        result.push_back({in.offset(axis, i), out.offset(axis, i), count});
        i += count;
    }
    return result;
}

/// The axis whose elements lie side by side, or -1.
int unit_axis(const Side& side, const Dims& dims) {
    for (int axis = ir::kMaxTileRank - 1; axis >= 0; --axis) {
        if (dims[static_cast<std::size_t>(axis)] > 1 && side.stride(axis) == 1) return axis;
    }
    return -1;
}

}  // namespace

void copy_box(const ResolvedTile& in_tile, const Coordinates& in_start, const Coordinates& in_step,
              const ResolvedTile& out_tile, const Coordinates& out_start, const ir::Shape& box,
              StripFunction transpose) {
    static constexpr Coordinates kUnitSteps{1, 1, 1, 1};
    const Dims dims = dims_of(box);
    if (*std::min_element(dims.begin(), dims.end()) == 0) return;
    const Side in{in_tile, in_start, in_step};
    const Side out{out_tile, out_start, kUnitSteps};
    const int element = out_tile.element;
    int inner = unit_axis(out, dims);
    if (inner < 0) inner = std::max(box.rank() - 1, 0);
    const auto inner_dim = dims[static_cast<std::size_t>(inner)];
    const int cross = unit_axis(in, dims);
    const bool transposes = transpose && cross >= 0 && cross != inner && in.stride(inner) != 1 &&
                            in.stride(inner) != 0 && out.stride(inner) == 1;
    const std::int64_t in_stride = in.stride(inner), out_stride = out.stride(inner);
    if (!transposes && inner_dim == box.size() && in.run(inner, 0) >= inner_dim &&
        out.run(inner, 0) >= inner_dim) {
        std::int64_t from = 0, to = 0;
        for (int axis = 0; axis < ir::kMaxTileRank; ++axis) {
            from += in.offset(axis, 0);
            to += out.offset(axis, 0);
        }
        return copy_line(out_tile.at(to), out_stride, in_tile.at(from), in_stride, inner_dim,
                         element);
    }
    Dims outer = dims;
    if (transposes) outer[static_cast<std::size_t>(cross)] = 1;
    // Offsets along the lane axis cost divisions: they are computed once, not for every line.
    const std::vector<Segment> lines = segments(in, out, inner, inner_dim);
    const std::vector<Segment> crossings =
        transposes ? segments(in, out, cross, dims[static_cast<std::size_t>(cross)])
                   : std::vector<Segment>();
    for_each_line(outer, inner, [&](const Coordinates& c) {
        std::int64_t in_base = 0, out_base = 0;
        for (int axis = 0; axis < ir::kMaxTileRank; ++axis) {
            if (axis == inner || (transposes && axis == cross)) continue;
            in_base += in.offset(axis, c[static_cast<std::size_t>(axis)]);
            out_base += out.offset(axis, c[static_cast<std::size_t>(axis)]);
        }
        for (const Segment& line : lines) {
            const std::int64_t from = in_base + line.in;
            const std::int64_t to = out_base + line.out;
            if (!transposes) {
                copy_line(out_tile.at(to), out_stride, in_tile.at(from), in_stride, line.count,
                          element);
                continue;
            }
            for (const Segment& across : crossings) {
                Strip strip;
                strip.rows = line.count;
                strip.lanes = across.count;
                strip.in[0] = {in_tile.at(from + across.in), in_stride, 1};
                strip.out = out_tile.at(to + across.out);
                strip.out_row_stride = out.stride(cross);
                transpose(strip);
            }
        }
    });
}

void execute(Frame& frame, const Move& move) {
    copy_box(resolve(frame, move.in), move.in_start, move.in_step, resolve(frame, move.out),
             move.out_start, move.box, kernels().transpose(move.in.dtype, move.in.dtype));
}

// ---- Across lanes.

void execute(Frame& frame, const ArgReduce& reduce) {
    const ResolvedTile in = resolve(frame, reduce.in);
    const ResolvedTile out = resolve(frame, reduce.out);
    const std::int64_t extent = reduce.in.shape[reduce.axis];
    for_each_line(dims_of(reduce.in.shape), reduce.axis, [&](const Coordinates& c) {
        const std::int64_t base = offset_of(in, c);
        std::int64_t best = 0;
        std::uint64_t best_bits = extent > 0 ? read(in, base) : 0;
        for (std::int64_t i = 1; i < extent; ++i) {
            const std::uint64_t bits = read(in, base + in.offset(reduce.axis, i));
            if (!ir::replaces_extreme(reduce.reduction, in.dtype, best_bits, bits)) continue;
            best = i;
            best_bits = bits;
        }
        std::int64_t to = 0;
        for (int axis = 0, result_axis = 0; axis < ir::kMaxTileRank; ++axis) {
            if (axis == reduce.axis) continue;
            to += out.offset(result_axis++, c[static_cast<std::size_t>(axis)]);
        }
        write(out, to, static_cast<std::uint64_t>(best));
    });
}

void execute(Frame& frame, const Scan& scan) {
    const ResolvedTile in = resolve(frame, scan.in);
    const ResolvedTile out = resolve(frame, scan.out);
    const std::int64_t extent = scan.in.shape[scan.axis];
    const auto step = [&](std::byte* to, const std::byte* before, const std::byte* value) {
        Strip strip;
        strip.rows = strip.lanes = 1;
        strip.in[0] = {before, 0, 0};
        strip.in[1] = {value, 0, 0};
        strip.out = to;
        scan.function(strip);
    };
    for_each_line(dims_of(scan.in.shape), scan.axis, [&](const Coordinates& c) {
        const std::int64_t in_base = offset_of(in, c);
        const std::int64_t out_base = offset_of(out, c);
        const auto at = [&](std::int64_t i) { return scan.reverse ? extent - 1 - i : i; };
        std::uint64_t carried = scan.identity;
        for (std::int64_t i = 0; i < extent; ++i) {
            const std::byte* value = in.at(in_base + in.offset(scan.axis, at(i)));
            std::byte* to = out.at(out_base + out.offset(scan.axis, at(i)));
            const std::uint64_t before = carried;
            step(reinterpret_cast<std::byte*>(&carried),
                 reinterpret_cast<const std::byte*>(&before), value);
            std::memcpy(to, scan.exclusive ? &before : &carried,
                        static_cast<std::size_t>(out.element));
        }
    });
}

void execute(Frame& frame, const RandomBits& random) {
    const ResolvedTile key = resolve(frame, random.key);
    const ResolvedTile counter = resolve(frame, random.counter);
    const ResolvedTile out = resolve(frame, random.out);
    const std::uint64_t key_bits = read(key, 0);
    for_each_line(dims_of(random.out.shape), -1, [&](const Coordinates& c) {
        write(out, offset_of(out, c), ir::philox(key_bits, read(counter, offset_of(counter, c))));
    });
}

}  // namespace tilewright::cpu
