// Runs gathers, scatters, masked stores and atomics: accesses that are not plain rectangles.
#include "cpu/execute_indices.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "cpu/simd/element.h"
#include "cpu/simd/scalar_ops.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

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
            if (run.stride == 1) return walk([p](std::int64_t i) { return std::int64_t{p[i]}; });
            return walk([p, s = run.stride](std::int64_t i) { return std::int64_t{p[i * s]}; });
        }
        walk([&](std::int64_t i) { return element_of(varying_, run, i); });
    }

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
        return static_cast<std::int64_t>(
            ir::read_element(dtype, run.bytes_at(i, tiles_[dim].element)));
    }

    /// The index of a dimension at `c`; false when it does not fit 64 bits.
    bool index_at(std::size_t dim, const Coordinates& c, std::int64_t& at) const {
        const AccessIndex& index = access_.indices[dim];
        if (index.kind == ir::Index::Kind::tile) {
            at = element_of(dim, run(tiles_[dim], index.tile_axis, index.tile.shape, c), 0);
            return true;
        }
        at = frame_.integer(index.slot);
        if (index.kind == ir::Index::Kind::scalar) return true;
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
    int axis_;
    Coordinates dims_ = kUnitSteps;
    std::array<ResolvedTile, ir::kMaxRefRank> tiles_;  ///< by dimension
    std::array<std::int64_t, kMostTiles> widths_{};
    std::size_t num_widths_ = 0;
    std::size_t varying_ = 0;  ///< the first dimension whose index tile changes along a run
    int num_varying_ = 0;
};

/// The last axis: elements in the order of the definition.
int last_axis(const Access& access) {
    return std::max(access.shape.rank() - 1, 0);
}

/// The axis along which the elements of `tile` are contiguous.
int best_axis(const ResolvedTile& tile, const Access& access) {
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

ir::Op combining(ir::Op atomic) {
    return atomic == ir::Op::atomic_max   ? ir::Op::max
           : atomic == ir::Op::atomic_min ? ir::Op::min
                                          : ir::Op::add;
}

/// Replaces the element at `memory` by combine(old) atomically; returns the old bits.
template <typename Word, typename Combine>
std::uint64_t exchange(DType dtype, std::byte* memory, Combine&& combine) {
    std::atomic_ref<Word> word(*reinterpret_cast<Word*>(memory));
    Word old = word.load(std::memory_order_relaxed);
    while (true) {
        const std::uint64_t old_bits = ir::read_element(dtype, &old);
        Word desired = 0;
        ir::write_element(dtype, &desired, combine(old_bits));
        if (word.compare_exchange_weak(old, desired, std::memory_order_acq_rel)) return old_bits;
    }
}

template <typename Combine>
std::uint64_t exchange(DType dtype, std::byte* memory, Combine&& combine) {
    switch (size_of(dtype)) {
        case 1:
            return exchange<std::uint8_t>(dtype, memory, combine);
        case 2:
            return exchange<std::uint16_t>(dtype, memory, combine);
        case 4:
            return exchange<std::uint32_t>(dtype, memory, combine);
        default:
            return exchange<std::uint64_t>(dtype, memory, combine);
    }
}

/// The tiles of an atomic, and the walk over its elements.
struct AtomicAccess {
    const Atomic& atomic;
    DType dtype;
    int element;
    ResolvedTile value, desired, mask, out;
    Walker walker;

    AtomicAccess(const Frame& frame, const Atomic& a)
        : atomic(a),
          dtype(a.access.dtype),
          element(size_of(a.access.dtype)),
          value(resolve(frame, a.value)),
          desired(resolve(frame, a.desired)),
          mask(resolve(frame, a.mask)),
          out(resolve(frame, a.out)),
          walker(frame, a.access, last_axis(a.access)) {
        walker.with(value).with(desired).with(mask).with(out);
    }
    bool combines() const {
        return atomic.op != ir::Op::atomic_xchg && atomic.op != ir::Op::atomic_cas;
    }
    /// Only the sum, the maximum or the minimum of every element is needed.
    bool is_plain() const { return combines() && !mask.data && !out.data; }
};

/// Combines rows of the array with rows of the value by a kernel. Only where no other thread
/// accesses the array.
void combine_rows(const AtomicAccess& a, StripFunction function) {
    Strip strip;
    strip.rows = 1;
    a.walker.for_each_line(a.element, [&](const Coordinates& c, std::int64_t, const Line& line) {
        const Run values = a.walker.run(a.value, c);
        if (line.lo >= line.hi) return;
        std::byte* const to = a.walker.data() + (line.offset + line.lo * line.step) * a.element;
        strip.in[0] = {to, 0, 1};
        strip.in[1] = {values.bytes_at(line.lo, a.element), 0, values.stride};
        strip.out = to;
        // One element at a time where they are not contiguous.
        const bool together = line.step == 1 && (values.stride == 0 || values.stride == 1);
        strip.lanes = together ? line.hi - line.lo : 1;
        const std::int64_t strips = together ? 1 : line.hi - line.lo;
        for (std::int64_t i = 0; i < strips; ++i) {
            std::byte* const at = to + i * line.step * a.element;
            strip.in[0].data = strip.out = at;
            strip.in[1].data = values.bytes_at(line.lo + i, a.element);
            function(strip);
        }
    });
}

/// Adds to elements at arbitrary places. `alone`: no other thread accesses the array.
template <DType dtype>
void add_elements(const AtomicAccess& a, bool alone) {
    using E = Element<dtype>;
    using Storage = typename E::Storage;
    auto* const to = reinterpret_cast<Storage*>(a.walker.data());
    const auto none = [](std::int64_t) {};
    a.walker.for_each([&](const Coordinates& c, std::int64_t count) {
        const Run values = a.walker.run(a.value, c);
        const auto add = [to, alone](std::int64_t at, Storage value) {
            if (alone) {
                to[at] = apply<ir::Op::add>(to[at], value);
            } else {
                std::atomic_ref<Storage>(to[at]).fetch_add(value, std::memory_order_relaxed);
            }
        };
        if (values.stride == 0) {
            const Storage value = values.at<Storage>(0);
            return a.walker.each(
                c, count, [&](std::int64_t, std::int64_t at) { add(at, value); }, none);
        }
        a.walker.each(
            c, count, [&](std::int64_t i, std::int64_t at) { add(at, values.at<Storage>(i)); },
            none);
    });
}

/// The function above, for the dtypes that it is compiled for.
bool add_elements(const AtomicAccess& a, bool alone) {
    switch (a.dtype) {
        case DType::f32:
            return alone && (add_elements<DType::f32>(a, alone), true);
        case DType::f64:
            return alone && (add_elements<DType::f64>(a, alone), true);
        case DType::i32:
        case DType::u32:
            return add_elements<DType::u32>(a, alone), true;
        case DType::i64:
        case DType::u64:
            return add_elements<DType::u64>(a, alone), true;
        default:
            return false;
    }
}

void exchange_elements(const AtomicAccess& a) {
    const DType dtype = a.dtype;
    const ir::Op op = combining(a.atomic.op);
    a.walker.for_each([&](const Coordinates& c, std::int64_t count) {
        const Run values = a.walker.run(a.value, c), wanted = a.walker.run(a.desired, c),
                  allowed = a.walker.run(a.mask, c), results = a.walker.run(a.out, c);
        const auto bits = [&](const Run& run, std::int64_t i) {
            return ir::read_element(dtype, run.bytes_at(i, a.element));
        };
        const auto keep = [&](std::int64_t i, std::uint64_t old) {
            if (results.first) ir::write_element(dtype, results.bytes_at(i, a.element), old);
        };
        a.walker.each(
            c, count,
            [&](std::int64_t i, std::int64_t offset) {
                if (allowed.first && allowed.at<std::uint8_t>(i) == 0) return keep(i, 0);
                const std::uint64_t operand = bits(values, i);
                std::byte* memory = a.walker.data() + offset * a.element;
                keep(i, exchange(dtype, memory, [&](std::uint64_t before) {
                         if (a.atomic.op == ir::Op::atomic_xchg) return operand;
                         if (a.atomic.op == ir::Op::atomic_cas) {
                             return before == operand ? bits(wanted, i) : before;
                         }
                         const std::uint64_t operands[2] = {before, operand};
                         return ir::evaluate(op, dtype, dtype, operands);
                     }));
            },
            [&](std::int64_t i) { keep(i, 0); });
    });
}

}  // namespace

void gather(const Frame& frame, const Access& access, const Tile& other, const ResolvedTile& out) {
    static constexpr std::uint64_t kZero = 0;
    ResolvedTile rest;
    if (other.home == Home::none) {
        rest.data = reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(&kZero));
        rest.element = out.element;
    } else {
        rest = resolve(frame, other);
    }
    Walker walker(frame, access, best_axis(out, access));
    walker.with(out).with(rest);
    const int element = out.element;
    if (walker.is_line()) {
        return walker.for_each_line(element, [&](const Coordinates& c, std::int64_t count,
                                                 const Line& line) {
            const Run to = walker.run(out, c), missing = walker.run(rest, c);
            const auto copy = [&](std::int64_t lo, std::int64_t hi, const std::byte* from,
                                  std::int64_t step) {
                if (lo < hi)
                    copy_line(to.bytes_at(lo, element), to.stride, from, step, hi - lo, element);
            };
            copy(0, line.lo, missing.first, missing.stride);
            copy(line.lo, line.hi, walker.data() + (line.offset + line.lo * line.step) * element,
                 line.step);
            copy(line.hi, count, missing.bytes_at(line.hi, element), missing.stride);
        });
    }
    with_word(element, [&](auto word) {
        using Word = decltype(word);
        const auto* from = reinterpret_cast<const Word*>(walker.data());
        walker.for_each([&](const Coordinates& c, std::int64_t count) {
            const Run to = walker.run(out, c), missing = walker.run(rest, c);
            const auto copy = [&](auto&& place) {
                walker.each(
                    c, count, [&](std::int64_t i, std::int64_t offset) { place(i) = from[offset]; },
                    [&](std::int64_t i) { place(i) = missing.at<Word>(i); });
            };
            if (to.stride == 1) {
                auto* const p = reinterpret_cast<Word*>(to.first);
                copy([p](std::int64_t i) -> Word& { return p[i]; });
            } else {
                copy([&](std::int64_t i) -> Word& { return to.at<Word>(i); });
            }
        });
    });
}

void scatter(const Frame& frame, const Store& store) {
    const ResolvedTile value = resolve(frame, store.value), mask = resolve(frame, store.mask);
    const int axis =
        store.access.gathers ? last_axis(store.access) : best_axis(value, store.access);
    Walker walker(frame, store.access, axis);
    walker.with(value).with(mask);
    const int element = value.element;
    if (walker.is_line() && !mask.data) {
        return walker.for_each_line(
            element, [&](const Coordinates& c, std::int64_t, const Line& line) {
                const Run from = walker.run(value, c);
                if (line.lo >= line.hi) return;
                copy_line(walker.data() + (line.offset + line.lo * line.step) * element, line.step,
                          from.bytes_at(line.lo, element), from.stride, line.hi - line.lo, element);
            });
    }
    with_word(element, [&](auto word) {
        using Word = decltype(word);
        auto* to = reinterpret_cast<Word*>(walker.data());
        walker.for_each([&](const Coordinates& c, std::int64_t count) {
            const Run from = walker.run(value, c), allowed = walker.run(mask, c);
            walker.each(
                c, count,
                [&](std::int64_t i, std::int64_t offset) {
                    if (allowed.first && allowed.at<std::uint8_t>(i) == 0) return;
                    to[offset] = from.at<Word>(i);
                },
                [](std::int64_t) {});
        });
    });
}

// ---- Atomics.

void execute(Frame& frame, const Atomic& atomic) {
    const AtomicAccess a(frame, atomic);
    if (a.is_plain()) {
        const StripFunction function =
            frame.program->kernels->elementwise(combining(atomic.op), a.dtype, a.dtype, false);
        const bool rows = frame.alone && a.walker.is_line() && function != nullptr;
        if (rows) return combine_rows(a, function);
        if (atomic.op == ir::Op::atomic_add && add_elements(a, frame.alone)) return;
    }
    exchange_elements(a);
}

}  // namespace tilewright::cpu
