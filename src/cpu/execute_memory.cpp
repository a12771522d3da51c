// Runs loads, stores, gathers, scatters and atomics: every access is clipped to its array.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "cpu/execute.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

/// A rectangle of an array: where it starts, its strides, and which of its indices are inside.
struct Rectangle {
    ResolvedTile memory;
    Coordinates lo, hi;  ///< as far as the access has axes
    bool inside = true;  ///< all of it
    bool empty = false;  ///< none of it
};

Rectangle rectangle(const Frame& frame, const Access& access) {
    const ir::RefArgument& ref = frame.refs[access.ref];
    Rectangle result;
    result.memory.dtype = access.dtype;
    result.memory.element = size_of(access.dtype);
    for (int axis = 0; axis < access.shape.rank(); ++axis) {
        result.lo[static_cast<std::size_t>(axis)] = 0;
        result.hi[static_cast<std::size_t>(axis)] = access.shape[axis];
    }
    std::int64_t start = 0;
    for (std::size_t dim = 0; dim < access.indices.size(); ++dim) {
        const AccessIndex& index = access.indices[dim];
        const std::int64_t first = frame.integer(index.slot);
        const std::int64_t extent = ref.extents[dim];
        if (index.kind == ir::Index::Kind::scalar) {
            if (first < 0 || first >= extent) result.empty = true;
        } else {
            const auto axis = static_cast<std::size_t>(index.axis);
            result.memory.stride[axis] = ref.strides[dim] * index.stride;
            // lo: the first i with first + i * stride >= 0; hi: the first with >= extent.
            const std::int64_t size = access.shape[index.axis];
            if (first < 0) {
                const std::int64_t skip =
                    first < -(size * index.stride) ? size : ceil_div(-first, index.stride);
                result.lo[axis] = std::min(skip, size);
            }
            const std::int64_t room =
                first >= extent
                    ? 0
                    : ceil_div(extent - std::max<std::int64_t>(first, -(size * index.stride)),
                               index.stride);
            result.hi[axis] = std::clamp<std::int64_t>(room, 0, size);
            if (result.lo[axis] > 0 || result.hi[axis] < size) result.inside = false;
            if (result.lo[axis] >= result.hi[axis]) result.empty = true;
        }
        if (!result.empty) start += first * ref.strides[dim];
    }
    result.inside = result.inside && !result.empty;
    result.memory.data = static_cast<std::byte*>(ref.data);
    if (!result.empty) result.memory.data += start * result.memory.element;
    return result;
}

/// Where a rectangle starts; nullptr unless all of it is inside its array.
std::byte* start_inside(const Frame& frame, const Access& access) {
    const ir::RefArgument& ref = frame.refs[access.ref];
    std::int64_t start = 0;
    for (std::size_t dim = 0; dim < access.indices.size(); ++dim) {
        const AccessIndex& index = access.indices[dim];
        const std::int64_t first = frame.integer(index.slot);
        const bool slice = index.kind != ir::Index::Kind::scalar;
        const std::int64_t length = slice ? (access.shape[index.axis] - 1) * index.stride : 0;
        if (first < 0 || length < 0 || length >= ref.extents[dim] - first) return nullptr;
        start += first * ref.strides[dim];
    }
    return static_cast<std::byte*>(ref.data) + start * size_of(access.dtype);
}

/// The part of a rectangle inside its array, as shape and start.
ir::Shape inner_box(const Rectangle& rectangle, int rank) {
    Coordinates dims{};
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
        dims[axis] = rectangle.hi[axis] - rectangle.lo[axis];
    }
    return ir::Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

/// Elements of a tile along a run: the first one, and elements from one to the next.
struct Run {
    std::byte* first = nullptr;
    std::int64_t stride = 0;

    template <typename T>
    T& at(std::int64_t i) const {
        return reinterpret_cast<T*>(first)[i * stride];
    }
};

/// Walks the elements of an access in runs along one axis: gathers, scatters and masks. Within a
/// run every tile has one stride.
class Walker {
  public:
    static constexpr std::int64_t kLongest = 64;

    /// Where the elements of a run lie in the array.
    struct Offsets {
        std::array<std::int64_t, kLongest> at;  ///< elements
        std::array<bool, kLongest> outside;     ///< of the array
    };

    Walker(const Frame& frame, const Access& access, int axis)
        : frame_(frame), access_(access), ref_(frame.refs[access.ref]), axis_(axis) {
        for (int a = 0; a < access.shape.rank(); ++a) {
            dims_[static_cast<std::size_t>(a)] = access.shape[a];
        }
        for (const AccessIndex& index : access.indices) {
            const bool is_tile = index.kind == ir::Index::Kind::tile;
            tiles_.push_back(is_tile ? resolve(frame, index.tile) : ResolvedTile{});
            if (is_tile) keep_panels(tiles_.back(), index.tile_axis);
        }
    }

    /// Ends runs where panels of a tile of the access's shape end.
    Walker& with(const ResolvedTile& tile) {
        if (tile.data) keep_panels(tile, 0);
        return *this;
    }

    /// Calls visit(c, count, offsets) for every run, the last axis of the access fastest.
    template <typename Visitor>
    void for_each(Visitor&& visit) const {
        const auto axis = static_cast<std::size_t>(axis_);
        Coordinates outer = dims_;
        outer[axis] = 1;
        Offsets offsets;
        for_each_place(outer, access_.shape.rank(), [&](Coordinates& c) {
            for (c[axis] = 0; c[axis] < dims_[axis];) {
                std::int64_t count = std::min(kLongest, dims_[axis] - c[axis]);
                for (const std::int64_t width : widths_) {
                    count = std::min(count, width - c[axis] % width);
                }
                find(c, count, offsets);
                visit(c, count, offsets);
                c[axis] += count;
            }
            c[axis] = 0;
        });
    }

    /// A tile of the access's shape along the run from `c` on.
    Run run(const ResolvedTile& tile, const Coordinates& c) const {
        return run(tile, 0, access_.shape, c);
    }

    std::byte* data() const { return static_cast<std::byte*>(ref_.data); }

  private:
    void keep_panels(const ResolvedTile& tile, int first_axis) {
        if (tile.lane_axis >= 0 && tile.lane_axis + first_axis == axis_) {
            widths_.push_back(tile.width);
        }
    }

    Run run(const ResolvedTile& tile, int first_axis, const ir::Shape& shape,
            const Coordinates& c) const {
        if (!tile.data) return {};
        std::int64_t offset = 0;
        for (int axis = 0; axis < shape.rank(); ++axis) {
            if (shape[axis] == 1) continue;
            offset += tile.offset(axis, c[static_cast<std::size_t>(first_axis + axis)]);
        }
        const int own = axis_ - first_axis;
        Run result{tile.at(offset), 0};
        if (own >= 0 && own < shape.rank() && shape[own] > 1) {
            result.stride = own == tile.lane_axis ? 1 : tile.stride[static_cast<std::size_t>(own)];
        }
        return result;
    }

    void find(const Coordinates& c, std::int64_t count, Offsets& offsets) const {
        std::fill_n(offsets.at.begin(), count, 0);
        std::fill_n(offsets.outside.begin(), count, false);
        for (std::size_t dim = 0; dim < access_.indices.size(); ++dim) {
            const auto add = [&](auto&& index) {
                const std::int64_t extent = ref_.extents[dim], stride = ref_.strides[dim];
                for (std::int64_t i = 0; i < count; ++i) {
                    const auto l = static_cast<std::size_t>(i);
                    const std::int64_t at = index(i);
                    // An index outside may be anything: it must not be multiplied.
                    const bool outside = at < 0 || at >= extent;
                    offsets.outside[l] |= outside;
                    offsets.at[l] += (outside ? 0 : at) * stride;
                }
            };
            const AccessIndex& index = access_.indices[dim];
            if (index.kind == ir::Index::Kind::tile) {
                const Run run = this->run(tiles_[dim], index.tile_axis, index.tile.shape, c);
                if (index.tile.dtype == DType::i32) {
                    add([&](std::int64_t i) { return run.at<std::int32_t>(i); });
                } else if (index.tile.dtype == DType::i64) {
                    add([&](std::int64_t i) { return run.at<std::int64_t>(i); });
                } else {
                    add([&](std::int64_t i) {
                        const std::int64_t at = i * run.stride * tiles_[dim].element;
                        return static_cast<std::int64_t>(
                            ir::read_element(index.tile.dtype, run.first + at));
                    });
                }
                continue;
            }
            const std::int64_t start = frame_.integer(index.slot);
            const bool slice = index.kind == ir::Index::Kind::slice;
            const std::int64_t first =
                slice ? start + c[static_cast<std::size_t>(index.axis)] * index.stride : start;
            const std::int64_t step = slice && index.axis == axis_ ? index.stride : 0;
            add([&](std::int64_t i) { return first + i * step; });
        }
    }

    const Frame& frame_;
    const Access& access_;
    const ir::RefArgument& ref_;
    int axis_;
    Coordinates dims_ = kUnitSteps;
    std::vector<ResolvedTile> tiles_;
    std::vector<std::int64_t> widths_;
};

/// The last axis: elements come in the order of the definition.
int last_axis(const Access& access) {
    return std::max(access.shape.rank() - 1, 0);
}

/// The axis along which the elements of `tile` lie side by side.
int best_axis(const ResolvedTile& tile, const Access& access) {
    return tile.lane_axis >= 0 ? tile.lane_axis : last_axis(access);
}

/// Calls f with an unsigned integer of so many bytes.
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

/// Fills a tile with `other`, or zeros.
void fill(const Frame& frame, const Tile& other, const ResolvedTile& out, const ir::Shape& shape) {
    static constexpr std::uint64_t kZero = 0;
    ResolvedTile value;
    if (other.home == Home::none) {
        value.data = reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(&kZero));
        value.element = out.element;
    } else {
        value = resolve(frame, other);
    }
    copy_box(value, kOrigin, kUnitSteps, out, kOrigin, shape, nullptr);
}

void gather(const Frame& frame, const Access& access, const ResolvedTile& out) {
    Walker walker(frame, access, best_axis(out, access));
    with_word(out.element, [&](auto word) {
        using Word = decltype(word);
        const auto* from = reinterpret_cast<const Word*>(walker.data());
        walker.with(out).for_each(
            [&](const Coordinates& c, std::int64_t count, const Walker::Offsets& offsets) {
                const Run to = walker.run(out, c);
                for (std::int64_t i = 0; i < count; ++i) {
                    const auto l = static_cast<std::size_t>(i);
                    if (!offsets.outside[l]) to.at<Word>(i) = from[offsets.at[l]];
                }
            });
    });
}

/// Loads the part of a rectangle inside its array; the rest takes `other`.
void load_rectangle(const Frame& frame, const Rectangle& from, const Tile& other,
                    const ResolvedTile& out, const ir::Shape& shape, StripFunction transpose) {
    if (!from.inside) fill(frame, other, out, shape);
    if (from.empty) return;
    copy_box(from.memory, from.lo, kUnitSteps, out, from.lo, inner_box(from, shape.rank()),
             transpose);
}

/// True when every row begins with a whole word of 32 bits.
bool has_whole_words(const LoadView& load, const ResolvedTile& memory) {
    if (reinterpret_cast<std::uintptr_t>(memory.data) % 4 != 0) return false;
    for (int axis = 0; axis < load.access.shape.rank(); ++axis) {
        if (axis == load.unit_axis || load.access.shape[axis] == 1) continue;
        if (memory.stride[static_cast<std::size_t>(axis)] % load.group != 0) return false;
    }
    return true;
}

/// True when the rectangle can be read where it is.
bool is_direct(const LoadView& load, const ResolvedTile& memory) {
    if (load.unit_axis < 0) return true;
    if (memory.stride[static_cast<std::size_t>(load.unit_axis)] != 1) return false;
    if (load.group > 1 && !has_whole_words(load, memory)) return false;
    if (!load.packs_far_rows) return true;
    for (int axis = 0; axis < load.access.shape.rank(); ++axis) {
        const std::int64_t stride = memory.stride[static_cast<std::size_t>(axis)];
        if (axis != load.unit_axis && load.access.shape[axis] > 1 &&
            stride * memory.element > LoadView::kFarRows) {
            return false;
        }
    }
    return true;
}

/// In memory any byte but 0 is true; in tiles only 1 is.
void normalise_booleans(const Frame& frame, const Tile& tile) {
    if (tile.dtype != DType::boolean) return;
    std::byte* data = frame.address(tile.home, tile.index);
    const std::int64_t count =
        tile.home == Home::buffer ? frame.program->buffers[tile.index].bytes : 1;
    for (std::int64_t i = 0; i < count; ++i) data[i] = std::byte{data[i] != std::byte{0}};
}

/// Supposes that the next iteration of the loop goes as far as this one went from the last, which
/// read at `last` (nullptr: not in the array).
void look_ahead(const Frame& frame, const LoadView& load, const std::byte* last, View& view) {
    view.ahead = 0;
    if (!load.in_loop) return;
    const std::uint64_t iteration = frame.slots[load.iv], step = frame.slots[load.step];
    const bool follows = last && iteration - view.iteration == step;
    if (follows && frame.slots[load.hi] - iteration > step) {
        view.ahead =
            reinterpret_cast<std::intptr_t>(view.data) - reinterpret_cast<std::intptr_t>(last);
    }
    view.iteration = iteration;
}

}  // namespace

void execute(Frame& frame, const Load& load) {
    const ResolvedTile out = resolve(frame, load.out);
    if (load.access.gathers) {
        fill(frame, load.other, out, load.access.shape);
        gather(frame, load.access, out);
    } else {
        load_rectangle(frame, rectangle(frame, load.access), load.other, out, load.access.shape,
                       load.transpose);
    }
    normalise_booleans(frame, load.out);
}

void execute(Frame& frame, const LoadView& load) {
    View& view = frame.views[load.view];
    const std::byte* const last = view.in_array ? view.data : nullptr;
    if (view.placed && load.group == 1) {
        if (std::byte* const data = start_inside(frame, load.access)) {
            view.data = data;
            return look_ahead(frame, load, last, view);
        }
    }
    const Rectangle from = rectangle(frame, load.access);
    if (from.inside && is_direct(load, from.memory)) {
        const std::uint64_t iteration = view.iteration;
        view = {from.memory.data, from.memory.stride};
        view.in_array = view.placed = true;
        view.iteration = iteration;
        return look_ahead(frame, load, last, view);
    }
    const ResolvedTile copy = resolve(frame, load.copy);
    view = {copy.data, copy.stride, copy.lane_axis, copy.width, copy.panel_stride};
    load_rectangle(frame, from, load.other, copy, load.access.shape,
                   kernels().transpose(copy.dtype, copy.dtype));
}

void execute(Frame& frame, const StoreView& store) {
    View& view = frame.views[store.view];
    if (view.placed) {
        if (std::byte* const data = start_inside(frame, store.access)) {
            view.data = data;
            return;
        }
    }
    const Rectangle to = rectangle(frame, store.access);
    if (to.inside && to.memory.stride[static_cast<std::size_t>(store.unit_axis)] == 1) {
        view = {to.memory.data, to.memory.stride};
        view.in_array = view.placed = true;
        const ir::RefArgument& ref = frame.refs[store.access.ref];
        std::int64_t bytes = to.memory.element;
        for (std::size_t dim = 0; dim < store.access.indices.size(); ++dim)
            bytes *= ref.extents[dim];
        view.streams =
            bytes >= StoreView::kStreamedBytes && !frame.program->refs[store.access.ref].is_read;
    } else if (store.copy.home == Home::none) {
        view = {};
    } else {
        const ResolvedTile copy = resolve(frame, store.copy);
        view = {copy.data, copy.stride, copy.lane_axis, copy.width, copy.panel_stride};
    }
}

void execute(Frame& frame, const Store& store) {
    if (store.view >= 0 && frame.views[store.view].in_array) return;
    const bool plain = !store.access.gathers && store.mask.home == Home::none;
    if (plain && store.access.shape.rank() == 0) {
        const auto element = static_cast<std::size_t>(size_of(store.access.dtype));
        const std::byte* const from = frame.address(store.value.home, store.value.index) +
                                      store.value.offset * size_of(store.access.dtype);
        if (std::byte* const to = start_inside(frame, store.access)) std::memcpy(to, from, element);
        return;
    }
    const ResolvedTile value = resolve(frame, store.value);
    if (plain) {
        const Rectangle to = rectangle(frame, store.access);
        if (to.empty) return;
        return copy_box(value, to.lo, kUnitSteps, to.memory, to.lo,
                        inner_box(to, store.access.shape.rank()), store.transpose);
    }
    const ResolvedTile mask = resolve(frame, store.mask);
    // Of several elements stored to one place the last one stays.
    const int axis =
        store.access.gathers ? last_axis(store.access) : best_axis(value, store.access);
    Walker walker(frame, store.access, axis);
    with_word(value.element, [&](auto word) {
        using Word = decltype(word);
        auto* to = reinterpret_cast<Word*>(walker.data());
        walker.with(value).with(mask).for_each(
            [&](const Coordinates& c, std::int64_t count, const Walker::Offsets& offsets) {
                const Run from = walker.run(value, c), allowed = walker.run(mask, c);
                for (std::int64_t i = 0; i < count; ++i) {
                    const auto l = static_cast<std::size_t>(i);
                    if (offsets.outside[l]) continue;
                    if (allowed.first && allowed.at<std::uint8_t>(i) == 0) continue;
                    to[offsets.at[l]] = from.at<Word>(i);
                }
            });
    });
}

// ---- Atomics.

namespace {

/// Replaces the element at `memory` by combine(old) in one step; returns the old bits.
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

}  // namespace

void execute(Frame& frame, const Atomic& atomic) {
    const ResolvedTile value = resolve(frame, atomic.value);
    const ResolvedTile desired = resolve(frame, atomic.desired);
    const ResolvedTile mask = resolve(frame, atomic.mask);
    const ResolvedTile out = resolve(frame, atomic.out);
    const DType dtype = atomic.access.dtype;
    const int element = size_of(dtype);
    const ir::Op op = atomic.op == ir::Op::atomic_max   ? ir::Op::max
                      : atomic.op == ir::Op::atomic_min ? ir::Op::min
                                                        : ir::Op::add;
    Walker walker(frame, atomic.access, last_axis(atomic.access));
    walker.with(value).with(desired).with(mask).with(out).for_each(
        [&](const Coordinates& c, std::int64_t count, const Walker::Offsets& offsets) {
            const Run values = walker.run(value, c), wanted = walker.run(desired, c),
                      allowed = walker.run(mask, c), results = walker.run(out, c);
            const auto bits = [&](const Run& run, std::int64_t i) {
                return ir::read_element(dtype, run.first + i * run.stride * element);
            };
            for (std::int64_t i = 0; i < count; ++i) {
                const auto l = static_cast<std::size_t>(i);
                const bool active =
                    !offsets.outside[l] && !(allowed.first && allowed.at<std::uint8_t>(i) == 0);
                std::uint64_t old = 0;
                if (active) {
                    const std::uint64_t operand = bits(values, i);
                    std::byte* memory = walker.data() + offsets.at[l] * element;
                    old = exchange(dtype, memory, [&](std::uint64_t before) {
                        if (atomic.op == ir::Op::atomic_xchg) return operand;
                        if (atomic.op == ir::Op::atomic_cas) {
                            return before == operand ? bits(wanted, i) : before;
                        }
                        const std::uint64_t operands[2] = {before, operand};
                        return ir::evaluate(op, dtype, dtype, operands);
                    });
                }
                if (results.first) {
                    ir::write_element(dtype, results.first + i * results.stride * element, old);
                }
            }
        });
}

// ---- Printing.

namespace {

std::string element_text(const ResolvedTile& tile, std::int64_t offset) {
    const std::uint64_t bits = ir::read_element(tile.dtype, tile.at(offset));
    if (tile.dtype == DType::boolean) return bits ? "true" : "false";
    if (tile.dtype == DType::f64) return fmt::format("{}", std::bit_cast<double>(bits));
    if (is_float(tile.dtype)) {
        return fmt::format("{}", static_cast<float>(std::bit_cast<double>(bits)));
    }
    if (is_signed(tile.dtype)) return fmt::format("{}", static_cast<std::int64_t>(bits));
    return fmt::format("{}", bits);
}

void append_text(const ResolvedTile& tile, const ir::Shape& shape, int axis, std::int64_t offset,
                 std::string& text) {
    if (axis == shape.rank()) {
        text += element_text(tile, offset);
        return;
    }
    text += '[';
    for (std::int64_t i = 0; i < shape[axis]; ++i) {
        if (i > 0) text += ", ";
        append_text(tile, shape, axis + 1, offset + tile.offset(axis, i), text);
    }
    text += ']';
}

}  // namespace

void execute(Frame& frame, const Print& print) {
    std::string text;
    std::size_t next = 0;
    for (std::size_t i = 0; i < print.text.size(); ++i) {
        if (print.text.compare(i, 2, "{}") == 0 && next < print.operands.size()) {
            const Tile& operand = print.operands[next++];
            append_text(resolve(frame, operand), operand.shape, 0, 0, text);
            ++i;
        } else {
            text += print.text[i];
        }
    }
    fmt::print(stderr, "{}\n", text);
}

}  // namespace tilewright::cpu
