// Runs loads and stores of rectangles, clipped to their arrays, and prints.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "cpu/execute.h"
#include "cpu/execute_indices.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

/// A rectangle of an array: its start, its strides, and which of its indices are inside.
struct Rectangle {
    ResolvedTile memory;
    Coordinates lo, hi;  ///< one per axis of the access
    bool inside = true;  ///< all of it
    bool empty = false;  ///< none of it
};

Rectangle rectangle(const Frame& frame, const Access& access) {
    const ir::RefArgument& ref = frame.refs[access.ref];
    Rectangle result;
    result.memory.dtype = access.dtype;
    result.memory.element = size_of(access.dtype);
    for (int axis = 0; axis < access.shape.rank(); ++axis) {
        result.lo[axis] = 0;
        result.hi[axis] = access.shape[axis];
    }
    std::int64_t start = 0;
    for (std::size_t dim = 0; dim < access.indices.size(); ++dim) {
        const AccessIndex& index = access.indices[dim];
        const std::int64_t first = frame.integer(index.slot);
        const std::int64_t extent = ref.extents[dim];
        if (index.kind == ir::Index::Kind::scalar) {
            if (first < 0 || first >= extent) result.empty = true;
        } else {
            const std::size_t axis = index.axis;
            result.memory.stride[axis] = ref.strides[dim] * index.stride;
            // lo: the first i with first + i * stride >= 0; hi: the first i with >= extent.
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

/// The start of a rectangle; nullptr unless all of it is inside its array.
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

/// Loads the part of a rectangle inside its array; the rest takes `other`.
void load_rectangle(const Frame& frame, const Rectangle& from, const Tile& other,
                    const ResolvedTile& out, const ir::Shape& shape, StripFunction transpose) {
    if (!from.inside) fill(frame, other, out, shape);
    if (from.empty) return;
    copy_box(from.memory, from.lo, kUnitSteps, out, from.lo, inner_box(from, shape.rank()),
             transpose);
}

/// True when every row starts on a word of 32 bits.
bool has_whole_words(const LoadView& load, const ResolvedTile& memory) {
    if (reinterpret_cast<std::uintptr_t>(memory.data) % 4 != 0) return false;
    for (int axis = 0; axis < load.access.shape.rank(); ++axis) {
        if (axis == load.unit_axis || load.access.shape[axis] == 1) continue;
        if (memory.stride[axis] % load.group != 0) return false;
    }
    return true;
}

/// True when the rectangle can be read in place.
bool is_direct(const LoadView& load, const ResolvedTile& memory) {
    if (load.unit_axis < 0) return true;
    if (memory.stride[load.unit_axis] != 1) return false;
    if (load.group > 1 && !has_whole_words(load, memory)) return false;
    if (!load.packs_far_rows) return true;
    for (int axis = 0; axis < load.access.shape.rank(); ++axis) {
        const std::int64_t stride = memory.stride[axis];
        if (axis != load.unit_axis && load.access.shape[axis] > 1 &&
            stride * memory.element > LoadView::kFarRows) {
            return false;
        }
    }
    return true;
}

/// In memory any non-zero byte is true; in tiles only 1 is.
void normalise_booleans(const Frame& frame, const Tile& tile) {
    if (tile.dtype != DType::boolean) return;
    std::byte* data = frame.address(tile.home, tile.index);
    const std::int64_t count =
        tile.home == Home::buffer ? frame.program->buffers[tile.index].bytes : 1;
    for (std::int64_t i = 0; i < count; ++i) data[i] = std::byte{data[i] != std::byte{0}};
}

/// Assumes that the next iteration of the loop advances as far as this one did from the last, which
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

/// The size in bytes from which arrays get non-temporal stores: a quarter of the last-level cache,
/// but 4 MiB at least and 32 MiB at most. What the program reads, and other cores, use the cache,
/// too, so that little of a larger array would still be there when it is read.
std::int64_t streamed_bytes() {
    static const std::int64_t bytes = [] {
        constexpr std::int64_t kLeast = std::int64_t{4} << 20;
        // Not sysconf, which gives the sum over a processor's last-level caches on some.
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
        std::int64_t kilobytes = 0;
        char unit = 0;
        if (!(file >> kilobytes >> unit) || unit != 'K' || kilobytes <= 0)
            return StoreView::kStreamedBytes;
        return std::clamp(kilobytes << 8, kLeast, StoreView::kStreamedBytes);
    }();
    return bytes;
}

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

void execute(Frame& frame, const Load& load) {
    if (!load.access.gathers && load.access.shape.rank() == 0) {
        if (const std::byte* const from = start_inside(frame, load.access)) {
            const std::size_t element = size_of(load.access.dtype);
            std::memcpy(frame.address(load.out.home, load.out.index) + load.out.offset * element,
                        from, element);
            return normalise_booleans(frame, load.out);
        }
    }
    if (load.factor.home != Home::none) return sum_gathered(frame, load);
    const ResolvedTile out = resolve(frame, load.out);
    if (load.access.gathers) {
        const bool streams = load.out.home == Home::view && frame.views[load.out.index].streams;
        frame.streamed |= streams;
        gather(frame, load.access, load.other, out, streams);
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

void execute(Frame& frame, const SubView& part) {
    const View& from = frame.views[part.from];
    View& view = frame.views[part.view];
    if (!view.placed || !from.in_array) {
        // Copies of views that have parts are dense: none of their axes is in panels.
        view = {};
        for (std::size_t axis = 0; axis < part.start.size(); ++axis) {
            view.stride[axis] = from.stride[axis] * part.step[axis];
            view.part += from.stride[axis] * part.start[axis] * part.element;
        }
        view.in_array = view.placed = from.in_array;
    }
    view.data = from.data + view.part;
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
    if (to.inside && to.memory.stride[store.unit_axis] == 1) {
        view = {to.memory.data, to.memory.stride};
        view.in_array = view.placed = true;
        const ir::RefArgument& ref = frame.refs[store.access.ref];
        std::int64_t bytes = to.memory.element;
        for (std::size_t dim = 0; dim < store.access.indices.size(); ++dim)
            bytes *= ref.extents[dim];
        view.streams = bytes >= streamed_bytes() && !frame.program->refs[store.access.ref].is_read;
    } else if (store.copy.home == Home::none) {
        view = {};
    } else {
        const ResolvedTile copy = resolve(frame, store.copy);
        view = {copy.data, copy.stride, copy.lane_axis, copy.width, copy.panel_stride};
        if (store.loads) {
            load_rectangle(frame, to, {}, copy, store.access.shape,
                           kernels().transpose(copy.dtype, copy.dtype));
        }
    }
}

void execute(Frame& frame, const Store& store) {
    if (store.view >= 0 && frame.views[store.view].in_array) return;
    const bool plain = !store.access.gathers && store.mask.home == Home::none;
    if (plain && store.access.shape.rank() == 0) {
        const std::size_t element = size_of(store.access.dtype);
        const std::byte* const from = frame.address(store.value.home, store.value.index) +
                                      store.value.offset * size_of(store.access.dtype);
        if (std::byte* const to = start_inside(frame, store.access)) std::memcpy(to, from, element);
        return;
    }
    if (!plain) return scatter(frame, store);
    const Rectangle to = rectangle(frame, store.access);
    if (to.empty) return;
    copy_box(resolve(frame, store.value), to.lo, kUnitSteps, to.memory, to.lo,
             inner_box(to, store.access.shape.rank()), store.transpose);
}

// ---- Printing.

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
