// Runs the bytecode of one program of the grid.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/bytecode.h"
#include "cpu/kept_blocks.h"
#include "cpu/profile.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// A rectangle of memory: pointer and strides (in elements) of its axes, or panels of a copy.
struct View {
    std::byte* data = nullptr;
    Coordinates stride{};
    int lane_axis = -1;
    std::int64_t width = kPanelLanes;
    std::int64_t panel_stride = 0;
    bool in_array = false;  ///< the array itself, not a copy
    bool placed = false;    ///< set in this call: the next one inside differs only in `data`
    bool streams = false;   ///< of a StoreView: gets non-temporal stores
    std::int64_t part = 0;  ///< of a SubView: bytes from the start of the view that it is a part of
    // Of a LoadView in a loop, to predict the rectangle of the next iteration.
    std::int64_t ahead = 0;       ///< bytes from this rectangle to the next one; 0: unknown
    std::uint64_t iteration = 0;  ///< the induction variable of this iteration
};

/// The elements that a thread does of an array that all threads accumulate into, by their first
/// index: 32 sets of indices in turn, of 2^shift neighbours each.
struct Ownership {
    static constexpr int kSets = 32;
    std::uint32_t sets = ~std::uint32_t{0};  ///< a bit for each set
    int shift = 0;

    bool all() const { return sets == ~std::uint32_t{0}; }
    bool has(std::int64_t index) const {
        return (sets >> (static_cast<std::uint64_t>(index) >> shift) % kSets & 1) != 0;
    }
};

/// Everything that a running program of the grid can access.
struct Frame {
    const Program* program = nullptr;
    std::byte* arena = nullptr;
    std::uint64_t* slots = nullptr;
    View* views = nullptr;
    const ir::RefArgument* refs = nullptr;  ///< one per Program::refs, scratch included
    const std::int64_t* grid = nullptr;
    std::array<std::int64_t, 16> id;  ///< index along each axis that the grid has
    bool streamed = false;            ///< non-temporal stores are pending
    /// No other program of any call runs at the same time, or none that changes an element that
    /// this one does.
    bool alone = false;
    Ownership owned;             ///< atomics leave other elements as they are
    KeptBlocks* kept = nullptr;  ///< one per Program::kept; nullptr: no other program needs them

    std::byte* address(Home home, std::uint32_t index) const {
        switch (home) {
            case Home::buffer:
                return arena + program->buffers[index].offset;
            case Home::constant:
                return const_cast<std::byte*>(program->constants.data()) + index;
            case Home::slot:
                return reinterpret_cast<std::byte*>(slots + index);
            case Home::view:
                return views[index].data;
            case Home::strip:
                return arena + program->strip_offset + index * program->strip_bytes;
            case Home::none:
                break;
        }
        return nullptr;
    }
    std::int64_t integer(std::uint32_t slot) const {
        return static_cast<std::int64_t>(slots[slot]);
    }
};

/// A Tile with its address and strides filled in.
struct ResolvedTile {
    std::byte* data = nullptr;
    DType dtype = DType::f32;
    int element = 4;  ///< bytes
    Coordinates stride{};
    int lane_axis = -1;
    std::int64_t width = kPanelLanes;
    std::int64_t panel_stride = 0;

    /// Elements from the start to index `i` of `axis`.
    std::int64_t offset(int axis, std::int64_t i) const {
        if (axis == lane_axis) return i < width ? i : i / width * panel_stride + i % width;
        return i * stride[static_cast<std::size_t>(axis)];
    }
    std::byte* at(std::int64_t offset_in_elements) const {
        return data + offset_in_elements * element;
    }
};

ResolvedTile resolve(const Frame& frame, const Tile& tile);

inline constexpr Coordinates kOrigin{};
inline constexpr Coordinates kUnitSteps = every_axis<std::int64_t>(1);

/// Calls visit(c) for every position in a box of `rank` axes, the last axis fastest.
template <typename Visitor>
void for_each_place(const Coordinates& dims, int rank, Visitor&& visit) {
    for (int axis = 0; axis < rank; ++axis) {
        if (dims[static_cast<std::size_t>(axis)] == 0) return;
    }
    Coordinates c{};
    int axis = 0;
    while (axis >= 0) {
        visit(c);
        for (axis = rank - 1; axis >= 0; --axis) {
            const auto a = static_cast<std::size_t>(axis);
            if (++c[a] < dims[a]) break;
            c[a] = 0;
        }
    }
}

/// out[out_start + c] = in[in_start + c * in_step] for every c in `box`; element sizes are equal.
/// `transpose` may be nullptr.
void copy_box(const ResolvedTile& in, const Coordinates& in_start, const Coordinates& in_step,
              const ResolvedTile& out, const Coordinates& out_start, const ir::Shape& box,
              StripFunction transpose);

/// Runs all instructions.
void execute(Frame& frame);

/// The same, timing each instruction on tiles.
void execute(Frame& frame, Stopwatch& stopwatch);

/// Runs the instructions before the one at `end`, among which no jump is.
void execute_before(Frame& frame, std::size_t end);

/// Other threads may read the arrays as soon as a program is known to be done.
void finish_stores(const Frame& frame);

/// Runs only scalars and control flow: the sum over loops of their trip counts, a measure of how
/// long the program will take. Inner loops are not entered.
std::int64_t estimate_cost(Frame& frame);

// One function per instruction that touches tiles.
void execute(Frame& frame, const Chain& chain);
void execute(Frame& frame, const ReduceRows& reduce);
void execute(Frame& frame, const ArgReduce& reduce);
void execute(Frame& frame, const ScanRows& scan);
void execute(Frame& frame, const CombineScan& scan);
void execute(Frame& frame, const SortLines& sort);
void execute(Frame& frame, const Move& move);
void execute(Frame& frame, const Pick& pick);
void execute(Frame& frame, const Interleave& interleave);
void execute(Frame& frame, const Dot& dot);
void execute(Frame& frame, const Load& load);
void execute(Frame& frame, const LoadView& load);
void execute(Frame& frame, const SubView& part);
void execute(Frame& frame, const StoreView& store);
void execute(Frame& frame, const Store& store);
void execute(Frame& frame, const Atomic& atomic);
void execute(Frame& frame, const Print& print);

}  // namespace tilewright::cpu
