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

constexpr Coordinates kZeros{};
constexpr Coordinates kOnes{1, 1, 1, 1};

/// A rectangle of an array: where it starts, its strides, and which of its indices are inside.
struct Rectangle {
    ResolvedTile memory;
    Coordinates lo{}, hi{};
    bool inside = true;  ///< all of it
    bool empty = false;  ///< none of it
};

Rectangle rectangle(const Frame& frame, const Access& access) {
    const ir::RefArgument& ref = frame.refs[access.ref];
    Rectangle result;
    result.memory.dtype = access.dtype;
    result.memory.element = size_of(access.dtype);
    for (int axis = 0; axis < access.shape.rank(); ++axis) {
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

/// The part of a rectangle inside its array, as shape and start.
ir::Shape inner_box(const Rectangle& rectangle, int rank) {
    std::array<std::int64_t, ir::kMaxTileRank> dims{};
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
        dims[axis] = rectangle.hi[axis] - rectangle.lo[axis];
    }
    return ir::Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

/// Element offsets of every coordinate of an access, computed one by one: gathers and masks.
class Walker {
  public:
    Walker(const Frame& frame, const Access& access)
        : frame_(frame), access_(access), ref_(frame.refs[access.ref]) {
        for (const AccessIndex& index : access.indices) {
            tiles_.push_back(index.kind == ir::Index::Kind::tile ? resolve(frame, index.tile)
                                                                 : ResolvedTile{});
        }
    }

    /// Address of the element at `c`, nullptr outside the array.
    std::byte* at(const Coordinates& c) const {
        std::int64_t offset = 0;
        for (std::size_t dim = 0; dim < access_.indices.size(); ++dim) {
            const std::int64_t i = index(dim, c);
            if (i < 0 || i >= ref_.extents[dim]) return nullptr;
            offset += i * ref_.strides[dim];
        }
        return static_cast<std::byte*>(ref_.data) + offset * size_of(access_.dtype);
    }

    template <typename Visitor>
    void for_each(Visitor&& visit) const {
        Coordinates dims{1, 1, 1, 1};
        for (int axis = 0; axis < access_.shape.rank(); ++axis) {
            dims[static_cast<std::size_t>(axis)] = access_.shape[axis];
        }
        Coordinates c{};
        for (c[0] = 0; c[0] < dims[0]; ++c[0]) {
            for (c[1] = 0; c[1] < dims[1]; ++c[1]) {
                for (c[2] = 0; c[2] < dims[2]; ++c[2]) {
                    for (c[3] = 0; c[3] < dims[3]; ++c[3]) visit(c);
                }
            }
        }
    }

  private:
    std::int64_t index(std::size_t dim, const Coordinates& c) const {
        const AccessIndex& index = access_.indices[dim];
        switch (index.kind) {
            case ir::Index::Kind::scalar:
                return frame_.integer(index.slot);
            case ir::Index::Kind::slice:
                return frame_.integer(index.slot) +
                       c[static_cast<std::size_t>(index.axis)] * index.stride;
            case ir::Index::Kind::tile:
                break;
        }
        const ResolvedTile& tile = tiles_[dim];
        std::int64_t offset = 0;
        for (int axis = 0; axis < index.tile.shape.rank(); ++axis) {
            if (index.tile.shape[axis] == 1) continue;
            offset += tile.offset(axis, c[static_cast<std::size_t>(index.tile_axis + axis)]);
        }
        return static_cast<std::int64_t>(ir::read_element(tile.dtype, tile.at(offset)));
    }

    const Frame& frame_;
    const Access& access_;
    const ir::RefArgument& ref_;
    std::vector<ResolvedTile> tiles_;
};

std::byte* element_at(const ResolvedTile& tile, const Coordinates& c) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < ir::kMaxTileRank; ++axis) {
        offset += tile.offset(axis, c[static_cast<std::size_t>(axis)]);
    }
    return tile.at(offset);
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
    copy_box(value, kZeros, kOnes, out, kZeros, shape, nullptr);
}

void gather(const Frame& frame, const Access& access, const ResolvedTile& out) {
    const Walker walker(frame, access);
    const auto bytes = static_cast<std::size_t>(out.element);
    walker.for_each([&](const Coordinates& c) {
        if (const std::byte* from = walker.at(c)) std::memcpy(element_at(out, c), from, bytes);
    });
}

/// Loads the part of a rectangle inside its array; the rest takes `other`.
void load_rectangle(const Frame& frame, const Rectangle& from, const Tile& other,
                    const ResolvedTile& out, const ir::Shape& shape, StripFunction transpose) {
    if (!from.inside) fill(frame, other, out, shape);
    if (from.empty) return;
    copy_box(from.memory, from.lo, kOnes, out, from.lo, inner_box(from, shape.rank()), transpose);
}

/// True when every row begins with a whole 32-bit pair of bf16.
bool has_even_rows(const LoadView& load, const ResolvedTile& memory) {
    if (reinterpret_cast<std::uintptr_t>(memory.data) % 4 != 0) return false;
    for (int axis = 0; axis < load.access.shape.rank(); ++axis) {
        if (axis == load.unit_axis || load.access.shape[axis] == 1) continue;
        if (memory.stride[static_cast<std::size_t>(axis)] % 2 != 0) return false;
    }
    return true;
}

/// True when the rectangle can be read where it is.
bool is_direct(const LoadView& load, const ResolvedTile& memory) {
    if (load.unit_axis < 0) return true;
    if (memory.stride[static_cast<std::size_t>(load.unit_axis)] != 1) return false;
    if (load.pairs && !has_even_rows(load, memory)) return false;
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
    const Rectangle from = rectangle(frame, load.access);
    if (from.inside && is_direct(load, from.memory)) {
        view = {from.memory.data, from.memory.stride};
        view.in_array = true;
        return;
    }
    const ResolvedTile copy = resolve(frame, load.copy);
    view = {copy.data, copy.stride, copy.lane_axis, copy.width, copy.panel_stride};
    load_rectangle(frame, from, load.other, copy, load.access.shape,
                   kernels().transpose(copy.dtype, copy.dtype));
}

void execute(Frame& frame, const StoreView& store) {
    View& view = frame.views[store.view];
    const Rectangle to = rectangle(frame, store.access);
    if (to.inside && to.memory.stride[static_cast<std::size_t>(store.unit_axis)] == 1) {
        view = {to.memory.data, to.memory.stride};
        view.in_array = true;
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
    const ResolvedTile value = resolve(frame, store.value);
    if (!store.access.gathers && store.mask.home == Home::none) {
        const Rectangle to = rectangle(frame, store.access);
        if (to.empty) return;
        return copy_box(value, to.lo, kOnes, to.memory, to.lo,
                        inner_box(to, store.access.shape.rank()), store.transpose);
    }
    const Walker walker(frame, store.access);
    const ResolvedTile mask = resolve(frame, store.mask);
    const auto bytes = static_cast<std::size_t>(value.element);
    walker.for_each([&](const Coordinates& c) {
        if (mask.data && *element_at(mask, c) == std::byte{0}) return;
        if (std::byte* to = walker.at(c)) std::memcpy(to, element_at(value, c), bytes);
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
    const Walker walker(frame, atomic.access);
    const ResolvedTile value = resolve(frame, atomic.value);
    const ResolvedTile desired = resolve(frame, atomic.desired);
    const ResolvedTile mask = resolve(frame, atomic.mask);
    const ResolvedTile out = resolve(frame, atomic.out);
    const DType dtype = atomic.access.dtype;
    const ir::Op op = atomic.op == ir::Op::atomic_max   ? ir::Op::max
                      : atomic.op == ir::Op::atomic_min ? ir::Op::min
                                                        : ir::Op::add;
    walker.for_each([&](const Coordinates& c) {
        std::byte* memory = walker.at(c);
        const bool active = memory && !(mask.data && *element_at(mask, c) == std::byte{0});
        std::uint64_t old = 0;
        if (active) {
            const std::uint64_t operand = ir::read_element(dtype, element_at(value, c));
            old = exchange(dtype, memory, [&](std::uint64_t before) {
                if (atomic.op == ir::Op::atomic_xchg) return operand;
                if (atomic.op == ir::Op::atomic_cas) {
                    return before == operand ? ir::read_element(dtype, element_at(desired, c))
                                             : before;
                }
                const std::uint64_t operands[2] = {before, operand};
                return ir::evaluate(op, dtype, dtype, operands);
            });
        }
        if (out.data) ir::write_element(dtype, element_at(out, c), old);
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
