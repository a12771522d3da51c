// Walks the elements of accesses with index tiles.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "cpu/execute.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {

/// Elements of a tile along a run: the first one and their stride.
struct Run {
    std::byte* first = nullptr;
    std::int64_t stride = 0;

    template <typename T>
    T& at(std::int64_t i) const {
        return reinterpret_cast<T*>(first)[i * stride];
    }
    std::byte* bytes_at(std::int64_t i, int element) const { return first + i * stride * element; }
};

/// A run whose elements are in the array with one stride: those of [lo, hi) are inside, element i
/// at offset + i * step.
struct Line {
    std::int64_t offset = 0, step = 0;
    std::int64_t lo = 0, hi = 0;
};

/// True when `count` indices are all inside; a loop without branches.
inline bool all_inside(const std::int32_t* indices, std::int64_t count, std::uint64_t extent) {
    const auto last = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(extent, std::numeric_limits<std::int32_t>::max()) - 1);
    if (extent == 0) return false;
    std::uint32_t signs = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto index = static_cast<std::uint32_t>(indices[i]);
        signs |= index | (last - index);
    }
    return signs >> 31 == 0;
}

/// Walks the elements of an access in runs along one axis. Within a run every tile has one stride.
class Walker {
  public:
    Walker(const Frame& frame, const Access& access, int axis)
        : frame_(frame), access_(access), ref_(frame.refs[access.ref]), axis_(axis) {
        for (int a = 0; a < access.shape.rank(); ++a) {
            dims_[a] = access.shape[a];
        }
        for (std::size_t dim = 0; dim < access.indices.size(); ++dim) {
            const AccessIndex& index = access.indices[dim];
            if (index.kind != ir::Index::Kind::tile) continue;
            tiles_[dim] = resolve(frame, index.tile);
            keep_panels(tiles_[dim], index.tile_axis);
            const int own = axis - index.tile_axis;
            if (own < 0 || own >= index.tile.shape.rank() || index.tile.shape[own] == 1) continue;
            varying_ = num_varying_++ == 0 ? dim : varying_;
        }
    }

    /// Ends runs where panels of a tile of the access's shape end.
    Walker& with(const ResolvedTile& tile) {
        if (tile.data) keep_panels(tile, 0);
        return *this;
    }

    /// Makes elements that are not owned count as outside of the array.
    void own(const Ownership& owned) { owned_ = owned; }
    const Ownership& owned() const { return owned_; }

    /// Calls visit(c, count) for every run, the last axis of the access fastest.
    template <typename Visitor>
    void for_each(Visitor&& visit) const {
        const std::size_t axis = axis_;
        Coordinates outer = dims_;
        outer[axis] = 1;
        for_each_place(outer, access_.shape.rank(), [&](Coordinates& c) {
            for (c[axis] = 0; c[axis] < dims_[axis];) {
                std::int64_t count = dims_[axis] - c[axis];
                for (std::size_t i = 0; i < num_widths_; ++i) {
                    count = std::min(count, widths_[i] - c[axis] % widths_[i]);
                }
                visit(c, count);
                c[axis] += count;
            }
            c[axis] = 0;
        });
    }

    /// Calls visit(c, count, line) for every run, where all runs are lines, and prefetches memory
    /// some lines ahead: hardware prefetchers do not predict rows at arbitrary addresses.
    template <typename Visitor>
    void for_each_line(int element, Visitor&& visit) const {
        struct Waiting {
            Coordinates c;
            std::int64_t count;
            Line line;
        };
        constexpr std::size_t kAhead = 4;
        constexpr std::int64_t kMostBytes = 2048, kCacheLine = 64;
        std::array<Waiting, kAhead> waiting;
        std::size_t seen = 0, done = 0;
        const auto do_next = [&] {
            const Waiting& next = waiting[done++ % kAhead];
            visit(next.c, next.count, next.line);
        };
        for_each([&](const Coordinates& c, std::int64_t count) {
            if (seen - done == kAhead) do_next();
            Waiting& last = waiting[seen++ % kAhead];
            last = {c, count, line(c, count)};
            if (last.line.step != 1) return;
            const std::byte* const from = data() + (last.line.offset + last.line.lo) * element;
            const std::int64_t bytes =
                std::min((last.line.hi - last.line.lo) * element, kMostBytes);
            for (std::int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(from + at);
        });
        for (std::size_t left = seen - done; left > 0; --left) do_next();
    }

    /// A tile of the access's shape along the run from `c` on.
    Run run(const ResolvedTile& tile, const Coordinates& c) const {
        return run(tile, 0, access_.shape, c);
    }

    /// True when no index tile changes along a run.
    bool is_line() const { return num_varying_ == 0; }

    /// The line of the run from `c` on, where runs are lines.
    Line line(const Coordinates& c, std::int64_t count) const {
        Line line{0, 0, 0, count};
        // Unsigned: offsets of elements outside may wrap around, and are never used.
        std::uint64_t offset = 0;
        for (std::size_t dim = 0; dim < access_.indices.size(); ++dim) {
            const AccessIndex& index = access_.indices[dim];
            const std::int64_t extent = ref_.extents[dim], stride = ref_.strides[dim];
            std::int64_t first = 0;
            bool outside = !index_at(dim, c, first);
            if (index.kind == ir::Index::Kind::slice && index.axis == axis_) {
                const std::int64_t size = count * index.stride;
                outside = outside || first >= extent || first <= -size;
                if (!outside) {
                    if (first < 0) line.lo = std::max(line.lo, ceil_div(-first, index.stride));
                    const std::int64_t room = extent - first;
                    line.hi = std::min(line.hi, ceil_div(room, index.stride));
                    line.step += index.stride * stride;
                }
            } else {
                outside = outside || first < 0 || first >= extent;
            }
            if (outside) return {0, 0, count, count};
            offset += static_cast<std::uint64_t>(first) * static_cast<std::uint64_t>(stride);
        }
        line.offset = static_cast<std::int64_t>(offset);
        line.lo = std::min(line.lo, count);
        line.hi = std::max(line.hi, line.lo);
        return line;
    }

    /// Calls inside(i, offset) for the elements of the run from `c` on that are in the array, and
    /// outside(i) for the others, in order.
    template <typename Inside, typename Outside>
    void each(const Coordinates& c, std::int64_t count, Inside&& inside, Outside&& outside) const {
        if (is_line()) {
            const Line line = this->line(c, count);
            for (std::int64_t i = 0; i < line.lo; ++i) outside(i);
            for (std::int64_t i = line.lo; i < line.hi; ++i) inside(i, line.offset + i * line.step);
            for (std::int64_t i = line.hi; i < count; ++i) outside(i);
            return;
        }
        const AccessIndex& index = access_.indices[varying_];
        const bool sliced = std::any_of(
            access_.indices.begin(), access_.indices.end(), [&](const AccessIndex& other) {
                return other.kind == ir::Index::Kind::slice && other.axis == axis_;
            });
        if (num_varying_ > 1 || sliced) return each_of_several(c, count, inside, outside);
        std::int64_t base = 0;
        if (!fixed_offset(c, base)) {
            for (std::int64_t i = 0; i < count; ++i) outside(i);
            return;
        }
        const Run run = this->run(tiles_[varying_], index.tile_axis, index.tile.shape, c);
        const auto extent = static_cast<std::uint64_t>(ref_.extents[varying_]);
        const std::int64_t stride = ref_.strides[varying_];
        // As an unsigned number, a negative index is beyond every extent.
        const auto walk = [&](auto&& read) {
            if (varying_ == 0 && !owned_.all()) {
                // Which indices are owned is hard to predict, so that there is no branch.
                constexpr std::int64_t kGroup = 64;
                std::array<std::int64_t, kGroup> chosen, places;
                for (std::int64_t first = 0; first < count; first += kGroup) {
                    std::size_t n = 0;
                    for (std::int64_t i = first; i < std::min(first + kGroup, count); ++i) {
                        const std::int64_t at = read(i);
                        chosen[n] = i;
                        places[n] = at;
                        n += static_cast<std::uint64_t>(at) < extent && owned_.has(at) ? 1 : 0;
                    }
                    for (std::size_t j = 0; j < n; ++j)
                        inside(chosen[j], base + places[j] * stride);
                }
                return;
            }
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t at = read(i);
                if (static_cast<std::uint64_t>(at) < extent)
                    inside(i, base + at * stride);
                else
                    outside(i);
            }
        };
        if (index.tile.dtype == DType::i32) {
            const auto* const p = reinterpret_cast<const std::int32_t*>(run.first);
            if (run.stride != 1)
                return walk([p, s = run.stride](std::int64_t i) { return std::int64_t{p[i * s]}; });
            if (!owned_.all() || !all_inside(p, count, extent))
                return walk([p](std::int64_t i) { return std::int64_t{p[i]}; });
            if (stride == 1) {
                for (std::int64_t i = 0; i < count; ++i) inside(i, base + p[i]);
            } else {
                for (std::int64_t i = 0; i < count; ++i) inside(i, base + p[i] * stride);
            }
            return;
        }
        walk([&](std::int64_t i) { return element_of(varying_, run, i); });
    }

    /// Indices of one dimension, side by side, and their first rows of a tile.
    struct IndexRows {
        const std::int32_t* first = nullptr;
        std::int64_t rows = 1, row_stride = 0, extent = 0, stride = 0;
    };
    /// The whole access, where it is an array's one dimension indexed by rows of i32 that lie along
    /// the axis of the walk.
    std::optional<IndexRows> index_rows() const {
        const int rank = access_.shape.rank();
        if (access_.indices.size() != 1 || num_varying_ != 1 || rank > 2) return std::nullopt;
        const AccessIndex& index = access_.indices[0];
        if (index.tile.dtype != DType::i32 || index.tile.shape != access_.shape || !is_whole() ||
            !has_rows(tiles_[0]))
            return std::nullopt;
        const Run run = this->run(tiles_[0], 0, index.tile.shape, kOrigin);
        if (run.stride != 1) return std::nullopt;
        IndexRows result{reinterpret_cast<const std::int32_t*>(run.first)};
        result.extent = ref_.extents[0];
        result.stride = ref_.strides[0];
        if (rank == 2) {
            result.rows = dims_[static_cast<std::size_t>(1 - axis_)];
            result.row_stride = row_stride(tiles_[0]);
        }
        return result;
    }
    /// Rows of an array with two dimensions, chosen by indices of i32.
    struct ArrayRows {
        const std::int32_t* indices = nullptr;
        std::int64_t index_stride = 0, rows = 0, extent = 0;
        Ownership owned;
        std::byte* first = nullptr;  ///< where row 0 begins
        std::int64_t row_bytes = 0;  ///< from row to row of the array
        std::int64_t wanted = 0;     ///< bytes of a row

        /// Calls visit(i, row, next) for each owned row in order, with nullptr where it is outside.
        /// `next` is a row to be prefetched, or this one: hardware prefetchers do not predict rows.
        template <typename Visitor>
        void for_each(Visitor&& visit) const {
            constexpr std::int64_t kAhead = 4;
            const auto row = [&](std::int64_t i) -> std::byte* {
                const std::int64_t at = indices[i * index_stride];
                const bool inside =
                    static_cast<std::uint64_t>(at) < static_cast<std::uint64_t>(extent);
                return inside && owned.has(at) ? first + at * row_bytes : nullptr;
            };
            if (!owned.all()) {
                // Owned rows first, so that each has one to prefetch.
                constexpr std::int64_t kGroup = 64;
                std::array<std::int64_t, kGroup> chosen;
                for (std::int64_t i = 0; i < rows;) {
                    std::size_t n = 0;
                    for (; i < rows && n < chosen.size(); ++i) {
                        chosen[n] = i;
                        n += row(i) != nullptr ? 1 : 0;
                    }
                    for (std::size_t j = 0; j < n; ++j)
                        visit(chosen[j], row(chosen[j]),
                              row(chosen[std::min<std::size_t>(j + kAhead, n - 1)]));
                }
                return;
            }
            for (std::int64_t i = 0; i < rows; ++i) {
                std::byte* const at = row(i);
                const std::byte* const next = i + kAhead < rows ? row(i + kAhead) : nullptr;
                visit(i, at, next ? next : at);
            }
        }
    };
    /// The whole access, where it is of such rows, whose elements lie along the axis of the walk.
    std::optional<ArrayRows> array_rows(int element) const {
        if (access_.indices.size() != 2 || access_.shape.rank() != 2 || axis_ != 1 || !is_whole())
            return std::nullopt;
        const AccessIndex &by = access_.indices[0], &along = access_.indices[1];
        if (by.kind != ir::Index::Kind::tile || along.kind != ir::Index::Kind::slice ||
            along.stride != 1 || along.axis != 1 || by.tile.dtype != DType::i32 ||
            by.tile.shape.rank() != 1 || tiles_[0].lane_axis >= 0 || ref_.strides[1] != 1)
            return std::nullopt;
        const std::int64_t start = frame_.integer(along.slot);
        if (start < 0 || start > ref_.extents[1] - dims_[1]) return std::nullopt;
        ArrayRows result;
        result.indices = reinterpret_cast<const std::int32_t*>(tiles_[0].data);
        result.index_stride = tiles_[0].stride[0];
        result.rows = dims_[0];
        result.extent = ref_.extents[0];
        result.owned = owned_;
        result.first = data() + start * element;
        result.row_bytes = ref_.strides[0] * element;
        result.wanted = dims_[1] * element;
        return result;
    }
    /// True when runs are as long as their axis.
    bool is_whole() const {
        return std::all_of(
            widths_.begin(), widths_.begin() + static_cast<std::ptrdiff_t>(num_widths_),
            [&](std::int64_t width) { return width >= dims_[static_cast<std::size_t>(axis_)]; });
    }
    /// True when the axis across the walk has one stride.
    bool has_rows(const ResolvedTile& tile) const {
        return tile.lane_axis < 0 || tile.lane_axis == axis_;
    }
    /// Elements from row to row of a tile of two axes, whose rows lie along the axis of the walk.
    std::int64_t row_stride(const ResolvedTile& tile) const {
        return access_.shape.rank() < 2 ? 0 : tile.offset(1 - axis_, 1);
    }
    std::int64_t row_length() const { return dims_[static_cast<std::size_t>(axis_)]; }

    std::byte* data() const { return static_cast<std::byte*>(ref_.data); }

  private:
    void keep_panels(const ResolvedTile& tile, int first_axis) {
        if (tile.lane_axis >= 0 && tile.lane_axis + first_axis == axis_) {
            widths_[num_widths_++] = tile.width;
        }
    }

    Run run(const ResolvedTile& tile, int first_axis, const ir::Shape& shape,
            const Coordinates& c) const {
        if (!tile.data) return {};
        std::int64_t offset = 0;
        for (int axis = 0; axis < shape.rank(); ++axis) {
            if (shape[axis] == 1) continue;
            offset += tile.offset(axis, c[first_axis + axis]);
        }
        const int own = axis_ - first_axis;
        Run result{tile.at(offset), 0};
        if (own >= 0 && own < shape.rank() && shape[own] > 1) {
            result.stride = own == tile.lane_axis ? 1 : tile.stride[own];
        }
        return result;
    }

    std::int64_t element_of(std::size_t dim, const Run& run, std::int64_t i) const {
        const DType dtype = access_.indices[dim].tile.dtype;
        if (dtype == DType::i64) return run.at<std::int64_t>(i);
        if (dtype == DType::i32) return run.at<std::int32_t>(i);
        return static_cast<std::int64_t>(
            ir::read_element(dtype, run.bytes_at(i, tiles_[dim].element)));
    }

    /// The index of a dimension at `c`; false when it does not fit 64 bits, or is not owned.
    bool index_at(std::size_t dim, const Coordinates& c, std::int64_t& at) const {
        const AccessIndex& index = access_.indices[dim];
        if (index.kind == ir::Index::Kind::tile) {
            at = element_of(dim, run(tiles_[dim], index.tile_axis, index.tile.shape, c), 0);
            return dim != 0 || owned_.has(at);
        }
        at = frame_.integer(index.slot);
        if (index.kind == ir::Index::Kind::scalar) return dim != 0 || owned_.has(at);
        const std::int64_t step = c[index.axis] * index.stride;
        return !__builtin_add_overflow(at, step, &at);
    }

    /// The offset from all dimensions but the varying one; false when one of them is outside.
    bool fixed_offset(const Coordinates& c, std::int64_t& offset) const {
        for (std::size_t dim = 0; dim < access_.indices.size(); ++dim) {
            if (dim == varying_) continue;
            std::int64_t at = 0;
            if (!index_at(dim, c, at) || at < 0 || at >= ref_.extents[dim]) return false;
            offset += at * ref_.strides[dim];
        }
        return true;
    }

    template <typename Inside, typename Outside>
    void each_of_several(Coordinates c, std::int64_t count, Inside&& inside,
                         Outside&& outside) const {
        const std::size_t axis = axis_;
        const std::int64_t first = c[axis];
        for (std::int64_t i = 0; i < count; ++i) {
            c[axis] = first + i;
            std::int64_t offset = 0;
            bool within = true;
            for (std::size_t dim = 0; dim < access_.indices.size() && within; ++dim) {
                std::int64_t at = 0;
                within = index_at(dim, c, at) && at >= 0 && at < ref_.extents[dim];
                if (within) offset += at * ref_.strides[dim];
            }
            if (within)
                inside(i, offset);
            else
                outside(i);
        }
    }

    static constexpr std::size_t kMostTiles = ir::kMaxRefRank + 4;

    const Frame& frame_;
    const Access& access_;
    const ir::RefArgument& ref_;
    Ownership owned_;
    int axis_;
    Coordinates dims_ = kUnitSteps;
    std::array<ResolvedTile, ir::kMaxRefRank> tiles_;  ///< by dimension
    std::array<std::int64_t, kMostTiles> widths_{};
    std::size_t num_widths_ = 0;
    std::size_t varying_ = 0;  ///< the first dimension whose index tile changes along a run
    int num_varying_ = 0;
};

/// The last axis: elements in the order of the definition.
inline int last_axis(const Access& access) {
    return std::max(access.shape.rank() - 1, 0);
}

/// The axis along which the elements of `tile` are contiguous.
inline int best_axis(const ResolvedTile& tile, const Access& access) {
    return tile.lane_axis >= 0 ? tile.lane_axis : last_axis(access);
}

/// Calls f with an unsigned integer of `bytes` bytes.
template <typename F>
void with_word(int bytes, F&& f) {
    switch (bytes) {
        case 1:
            return f(std::uint8_t{});
        case 2:
            return f(std::uint16_t{});
        case 4:
            return f(std::uint32_t{});
        default:
            return f(std::uint64_t{});
    }
}

}  // namespace tilewright::cpu
