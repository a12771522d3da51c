// Runs instructions on whole tiles: moves, arg reductions, sorting.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/execute_indices.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

/// Extents, padded with 1.
Coordinates dims_of(const ir::Shape& shape) {
    Coordinates dims = kUnitSteps;
    for (int axis = 0; axis < shape.rank(); ++axis) dims[axis] = shape[axis];
    return dims;
}

/// Calls visit(c) for every position in `dims` with axis `fixed` held at 0.
template <typename Visitor>
void for_each_line(Coordinates dims, int rank, int fixed, Visitor&& visit) {
    dims[fixed] = 1;
    for_each_place(dims, rank, visit);
}

std::int64_t offset_of(const ResolvedTile& tile, const Coordinates& c) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < ir::kMaxTileRank; ++axis) {
        offset += tile.offset(axis, c[axis]);
    }
    return offset;
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

/// One side of a copy: a tile with the start and step of the box in it.
struct Side {
    const ResolvedTile& tile;
    const Coordinates& start;
    const Coordinates& step;

    std::int64_t index(int axis, std::int64_t i) const { return start[axis] + i * step[axis]; }
    std::int64_t offset(int axis, std::int64_t i) const {
        return tile.offset(axis, index(axis, i));
    }
    /// Elements from one index of `axis` to the next, within a panel.
    std::int64_t stride(int axis) const {
        const std::size_t a = axis;
        return (axis == tile.lane_axis ? 1 : tile.stride[a]) * step[a];
    }
    /// The number of indices from `i` on in one panel.
    std::int64_t run(int axis, std::int64_t i) const {
        if (axis != tile.lane_axis) return std::numeric_limits<std::int64_t>::max();
        const std::int64_t left = tile.width - index(axis, i) % tile.width;
        return ceil_div(left, step[axis]);
    }
};

/// A run of indices along one axis within one panel on both sides.
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

/// The axis whose elements are contiguous, or -1.
int unit_axis(const Side& side, const Coordinates& dims, int rank) {
    for (int axis = rank - 1; axis >= 0; --axis) {
        if (dims[axis] > 1 && side.stride(axis) == 1) return axis;
    }
    return -1;
}

/// Calls visit(c, lanes) for the lines along `axis`, with as many lines at once as are contiguous
/// in a panel of `tile`: one if the lines themselves are along its lanes.
template <typename Visitor>
void for_each_bundle(const ir::Shape& shape, const ResolvedTile& tile, int axis, Visitor&& visit) {
    const int lane = tile.lane_axis == axis ? -1 : tile.lane_axis;
    const Coordinates dims = dims_of(shape);
    if (lane < 0) {
        return for_each_line(dims, shape.rank(), axis, [&](const Coordinates& c) { visit(c, 1); });
    }
    const std::size_t l = lane;
    Coordinates outer = dims;
    outer[l] = std::min<std::int64_t>(dims[l], 1);
    for_each_line(outer, shape.rank(), axis, [&](Coordinates c) {
        for (; c[l] < dims[l]; c[l] += tile.width) visit(c, std::min(tile.width, dims[l] - c[l]));
    });
}

/// Copies of elements, or zeros where `in` is null. Zeros become positive.
template <typename T>
void pick_line(T* out, std::int64_t out_stride, const T* in, std::int64_t in_stride,
               std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
        out[i * out_stride] = in != nullptr ? in[i * in_stride] + T{0} : T{0};
}

template <typename T>
void pick(const Pick& pick, const ResolvedTile& in_tile, const ResolvedTile& out_tile,
          std::int64_t at) {
    const ir::Shape& shape = pick.out.shape;
    const int picked = shape.rank(),
              inner = std::max(
                  unit_axis({out_tile, kOrigin, kUnitSteps}, dims_of(shape), shape.rank()), 0);
    const bool inside = at >= 0 && at < pick.in.shape[picked];
    const Side in{in_tile, kOrigin, kUnitSteps}, out{out_tile, kOrigin, kUnitSteps};
    const Coordinates dims = dims_of(shape);
    const std::int64_t start = inside ? in.offset(picked, at) : 0;
    const std::vector<Segment> lines =
        shape.rank() == 0 ? std::vector<Segment>{{0, 0, 1}} : segments(in, out, inner, dims[inner]);
    for_each_line(dims, shape.rank(), inner, [&](const Coordinates& c) {
        std::int64_t from = start, to = 0;
        for (int axis = 0; axis < shape.rank(); ++axis) {
            if (axis == inner) continue;
            from += in.offset(axis, c[axis]);
            to += out.offset(axis, c[axis]);
        }
        for (const Segment& line : lines) {
            const std::byte* const data = inside ? in_tile.at(from + line.in) : nullptr;
            pick_line(reinterpret_cast<T*>(out_tile.at(to + line.out)), out.stride(inner),
                      reinterpret_cast<const T*>(data), in.stride(inner), line.count);
        }
    });
}

bool is_zero(const std::byte* in, int element) {
    return std::all_of(in, in + element, [](std::byte b) { return b == std::byte{0}; });
}

/// True where the box fills `out` from its first element to its last, with no others in between.
bool fills(const ResolvedTile& out, const Coordinates& start, const ir::Shape& box) {
    std::int64_t last = 0;
    for (int axis = 0; axis < box.rank(); ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        const bool broken = axis == out.lane_axis && box[axis] % out.width != 0;
        if (start[a] != 0 || (broken && box[axis] > out.width)) return false;
        last += out.offset(axis, box[axis] - 1);
    }
    return last == box.size() - 1;
}

}  // namespace

void copy_line(std::byte* out, std::int64_t out_stride, const std::byte* in, std::int64_t in_stride,
               std::int64_t count, int element) {
    if (out_stride == 1 && in_stride == 1) {
        std::memcpy(out, in, count * element);
        return;
    }
    if (out_stride == 1 && in_stride == 0 && is_zero(in, element)) {
        std::memset(out, 0, count * element);
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

void copy_box(const ResolvedTile& in_tile, const Coordinates& in_start, const Coordinates& in_step,
              const ResolvedTile& out_tile, const Coordinates& out_start, const ir::Shape& box,
              StripFunction transpose) {
    const Coordinates dims = dims_of(box);
    if (*std::min_element(dims.begin(), dims.end()) == 0) return;
    const Side in{in_tile, in_start, in_step};
    const Side out{out_tile, out_start, kUnitSteps};
    const int element = out_tile.element;
    bool splat = true;
    std::int64_t only = 0;
    for (int axis = 0; axis < box.rank(); ++axis) {
        splat &= dims[axis] == 1 || (in_tile.stride[axis] == 0 && axis != in_tile.lane_axis);
        only += in.offset(axis, 0);
    }
    if (splat && fills(out_tile, out_start, box)) {
        return copy_line(out_tile.at(0), 1, in_tile.at(only), 0, box.size(), element);
    }
    int inner = unit_axis(out, dims, box.rank());
    if (inner < 0) inner = std::max(box.rank() - 1, 0);
    const auto inner_dim = dims[inner];
    const int cross = unit_axis(in, dims, box.rank());
    const bool transposes = transpose && cross >= 0 && cross != inner && in.stride(inner) != 1 &&
                            in.stride(inner) != 0 && out.stride(inner) == 1;
    const std::int64_t in_stride = in.stride(inner), out_stride = out.stride(inner);
    if (!transposes && inner_dim == box.size() && in.run(inner, 0) >= inner_dim &&
        out.run(inner, 0) >= inner_dim) {
        std::int64_t from = 0, to = 0;
        for (int axis = 0; axis < box.rank(); ++axis) {
            from += in.offset(axis, 0);
            to += out.offset(axis, 0);
        }
        return copy_line(out_tile.at(to), out_stride, in_tile.at(from), in_stride, inner_dim,
                         element);
    }
    Coordinates outer = dims;
    if (transposes) outer[cross] = 1;
    // Offsets along the lane axis need divisions: they are computed once, not for every line.
    const std::vector<Segment> lines = segments(in, out, inner, inner_dim);
    const std::vector<Segment> crossings =
        transposes ? segments(in, out, cross, dims[cross]) : std::vector<Segment>();
    for_each_line(outer, box.rank(), inner, [&](const Coordinates& c) {
        std::int64_t in_base = 0, out_base = 0;
        for (int axis = 0; axis < box.rank(); ++axis) {
            if (axis == inner || (transposes && axis == cross)) continue;
            in_base += in.offset(axis, c[axis]);
            out_base += out.offset(axis, c[axis]);
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

void execute(Frame& frame, const Pick& instruction) {
    const ResolvedTile in = resolve(frame, instruction.in), out = resolve(frame, instruction.out);
    const std::int64_t slot = frame.integer(instruction.at);
    const std::int64_t at =
        instruction.dtype == DType::i32 ? static_cast<std::int32_t>(slot) : slot;
    switch (instruction.in.dtype) {
        case DType::f32:
            return pick<float>(instruction, in, out, at);
        case DType::f64:
            return pick<double>(instruction, in, out, at);
        case DType::i32:
            return pick<std::int32_t>(instruction, in, out, at);
        default:
            return pick<std::int64_t>(instruction, in, out, at);
    }
}

// ---- Across lanes.

void execute(Frame& frame, const ArgReduce& reduce) {
    const ResolvedTile in = resolve(frame, reduce.in);
    const ResolvedTile out = resolve(frame, reduce.out);
    const bool across = in.lane_axis == reduce.axis;
    const std::int64_t extent = reduce.in.shape[reduce.axis];
    const Kernels& kernels = *frame.program->kernels;
    const StripFunction function = across ? kernels.arg_reduce_lanes(reduce.reduction, in.dtype)
                                          : kernels.arg_reduce_rows(reduce.reduction, in.dtype);
    const std::size_t most = across ? 1 : in.width;
    std::vector<std::uint64_t> values(most);
    std::vector<std::int32_t> indices(most);
    for_each_bundle(reduce.in.shape, in, reduce.axis, [&](Coordinates c, std::int64_t lanes) {
        std::fill(indices.begin(), indices.end(), -1);
        Strip strip;
        strip.out = values.data();
        strip.accumulator = indices.data();
        const std::int64_t length = across ? in.width : extent;
        for (std::int64_t first = 0; first < extent; first += length) {
            const std::int64_t count = std::min(length, extent - first);
            strip.rows = across ? 1 : count;
            strip.lanes = across ? count : lanes;
            const std::byte* data = in.at(offset_of(in, c) + in.offset(reduce.axis, first));
            strip.in[0] = {data, across ? 0 : in.stride[reduce.axis], 1};
            strip.immediate[0] = static_cast<double>(first);
            function(strip);
        }
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            std::int64_t to = 0;
            for (int axis = 0, result_axis = 0; axis < reduce.in.shape.rank(); ++axis) {
                if (axis == reduce.axis) continue;
                const std::int64_t at = c[axis];
                to += out.offset(result_axis++, axis == in.lane_axis ? at + lane : at);
            }
            const std::int32_t index = indices[lane];
            write(out, to, static_cast<std::uint64_t>(std::max(index, 0)));
        }
    });
}

void execute(Frame& frame, const SortLines& sort) {
    const auto resolved = [&](const Tile& tile) {
        return tile.home == Home::none ? ResolvedTile() : resolve(frame, tile);
    };
    const ResolvedTile in = resolved(sort.in), out = resolved(sort.out),
                       places = resolved(sort.places);
    const Tile& result = sort.out.home != Home::none ? sort.out : sort.places;
    SortLine line;
    line.length = sort.in.shape[sort.axis];
    line.count = result.shape[sort.axis];
    line.descending = sort.descending;
    line.work = resolve(frame, sort.work).data;
    const ir::Shape& shape = result.shape;
    for_each_line(dims_of(shape), shape.rank(), sort.axis, [&](const Coordinates& c) {
        line.in = in.at(offset_of(in, c));
        if (out.data != nullptr) line.out = out.at(offset_of(out, c));
        if (places.data != nullptr) {
            line.places = reinterpret_cast<std::int32_t*>(places.at(offset_of(places, c)));
        }
        sort.function(line);
    });
}

}  // namespace tilewright::cpu
