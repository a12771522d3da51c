// Lowers tile IR to bytecode: places values, chooses instructions, flattens control flow.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "cpu/bytecode.h"
#include "cpu/layout.h"
#include "ir/function.h"
#include "ir/passes/definitions.h"

namespace tilewright::cpu {

struct Node;
using Region = std::vector<Node>;

/// Bytecode before flattening: an instruction, or control flow with its regions.
struct Node {
    enum class Kind : std::uint8_t { instruction, for_loop, while_loop, if_else };
    Kind kind = Kind::instruction;
    Instruction instruction;
    std::uint32_t line = 0;                  ///< in Program::locations
    std::uint32_t iv = 0, hi = 0, step = 0;  ///< for_loop
    std::uint32_t condition = 0;             ///< while_loop, if_else
    std::vector<Region> regions;             ///< body; condition and body; then and else
};

/// The iteration space of a chain: the panels x rows x lanes of a tile.
struct Space {
    ir::Shape shape;
    int lane_axis = 0;
    std::int64_t width = kPanelLanes;

    std::int64_t lanes() const { return shape.rank() == 0 ? 1 : shape[lane_axis]; }
    std::int64_t rows() const {
        std::int64_t result = 1;
        for (int axis = 0; axis < shape.rank(); ++axis)
            result *= axis == lane_axis ? 1 : shape[axis];
        return result;
    }
    std::int64_t panels() const { return ceil_div(lanes(), width); }
};

/// A tile as an operand over a space; nullopt when its strides do not fit.
std::optional<StripSource> as_source(const Tile& tile, const Space& space);

/// `tile` with other axes: axis i of the result is axis from[i], or a broadcast one where that is
/// -1.
Tile with_axes(const Tile& tile, const ir::Shape& shape, std::span<const int> from);

/// Stores `tile` (a buffer) as `shape` in row-major order.
void set_dense(Tile& tile, const ir::Shape& shape);

class Lowering {
  public:
    Lowering(const ir::Function& function, Program& program);

    /// Lowers the whole function into `program`, except for arena offsets.
    void run();

  private:
    struct Place {
        Tile tile;
        int depth = 0;  ///< the index in regions_ where the value is defined
    };
    /// A view that was copied for a dot: groups of `group` elements, in panels of `width` lanes.
    struct Packed {
        Tile view;
        int group = 1;
        std::int64_t width = 0;
        int depth = 0;  ///< of the region that makes the copy
        Tile copy;
    };

    // lower.cpp: control flow, scalars and bookkeeping.
    void lower_block(const ir::Block& block);
    void lower(const ir::Instruction& instruction);
    void lower_for(const ir::Instruction& instruction);
    void lower_while(const ir::Instruction& instruction);
    void lower_if(const ir::Instruction& instruction);
    void lower_scalar(const ir::Instruction& instruction);
    void lower_query(const ir::Instruction& instruction);
    std::vector<Tile> begin_carries(const std::vector<ir::Value>& init,
                                    const std::vector<ir::Value>& arguments);
    void end_carries(const std::vector<ir::Value>& yielded, const std::vector<Tile>& carries);
    void copy(const Tile& from, const Tile& to);
    void emit(Instruction instruction);
    void emit_at(int depth, Instruction instruction);
    void close_region();
    int depth() const { return static_cast<int>(regions_.size()) - 1; }
    std::uint32_t new_slot(std::uint64_t bits = 0);
    std::uint32_t constant_slot(DType dtype, std::uint64_t element);
    std::uint32_t integer_slot(ir::Value value);  ///< a scalar as i64
    Tile new_tile(DType dtype, const ir::Shape& shape, LaneChoice choice);
    Tile scalar_tile(std::uint32_t slot, DType dtype, const ir::Shape& shape = {}) const;
    Tile new_result(ir::Value value);  ///< a buffer or slot, recorded as the value's place
    void set_place(ir::Value value, const Tile& tile);
    const Place& place(ir::Value value) const { return places_[value.id]; }
    const Tile& tile(ir::Value value) const;
    void flatten(Region& region, const Node* loop = nullptr);
    void append(Instruction instruction, std::uint32_t line);
    std::uint32_t line_of(const ir::Location& location);

    // lower_tiles.cpp: elementwise ops, shapes and reductions.
    void lower_constant(const ir::Instruction& instruction);
    void lower_iota(const ir::Instruction& instruction);
    void lower_elementwise(const ir::Instruction& instruction);
    void lower_shape(const ir::Instruction& instruction);
    bool reads_strips(ir::Value value) const;
    void lower_part(const ir::Instruction& instruction);
    void lower_reshape(const ir::Instruction& instruction);
    void lower_concatenate(const ir::Instruction& instruction);
    void lower_reduce(const ir::Instruction& instruction);
    bool lower_pick(const ir::Instruction& instruction);
    Space space_of(ir::Value value) const;
    StripSource source(ir::Value value, const Space& space);
    StripSource source(const Tile& tile, int at_depth, const Space& space);
    Tile in_layout(const Tile& tile, int at_depth, LaneChoice choice);
    Tile converted(const Tile& tile, int at_depth, DType dtype);
    void emit_chain(const Space& space, StripOp op, int at_depth);

    // lower_dots.cpp: dots.
    void lower_dot(const ir::Instruction& instruction);
    bool multiplies_rows(const ir::Instruction& dot) const;
    bool rounds_for_dots(const ir::Instruction& instruction) const;
    bool scales_accumulator(const ir::Instruction& instruction);
    bool is_blocked(const ir::Instruction& dot) const;
    const ir::Instruction* maker_of(ir::Value value) const;
    const ir::Instruction* store_of(const ir::Instruction& dot) const;
    bool is_added_in_place(const ir::Instruction& load) const;
    Tile lower_target(const ir::Instruction& store);
    Tile lower_scan_target(const ir::Instruction& store, const ir::Shape& shape, int lane);
    Tile vector_operand(const Tile& tile, int at_depth, std::int64_t width);
    Tile broadcast_words(const Tile& tile, int at_depth, const DotForm& form);
    Tile vector_words(const Tile& tile, int at_depth, std::int64_t width, const DotForm& form);
    Tile interleaved(const Tile& tile, int at_depth, std::int64_t width, int group);
    Tile interleave(const Tile& tile, int at_depth, std::int64_t width, int group);
    Tile packed_once(const Tile& tile, int at_depth, int group, std::int64_t width,
                     const std::function<Tile()>& pack);

    // lower_scans.cpp.
    void lower_scan(const ir::Instruction& instruction);
    void lower_associative_scan(const ir::Instruction& instruction);
    void lower_combine(const ir::Function& mod, std::span<const Tile> captured, CombineScan& scan);
    const ir::Instruction* scan_store(const ir::Instruction& scan, ir::Value result,
                                      const Space& space) const;

    // lower_sort.cpp.
    void lower_sort(const ir::Instruction& instruction);
    Tile new_lines(DType dtype, const ir::Shape& shape, int axis);

    // lower_memory.cpp: loads, stores, atomics.
    void lower_load(const ir::Instruction& instruction);
    bool lower_view(const ir::Instruction& instruction);
    void lower_store(const ir::Instruction& instruction);
    bool lower_store_view(const ir::Instruction& instruction, const Store& store);
    void lower_atomic(const ir::Instruction& instruction);
    Access lower_access(const ir::Instruction& instruction, const ir::Shape& shape);
    Tile mask_tile(ir::Value mask, const ir::Shape& shape);

    const ir::Function& function_;
    Program& program_;
    ir::Definitions definitions_;
    std::vector<LaneChoice> lanes_;
    std::vector<Place> places_;
    std::vector<std::vector<const ir::Instruction*>> users_;
    std::vector<bool> varies_;               ///< scalars that depend on the program of the grid
    std::set<ir::Value> written_;            ///< Refs that some instruction stores to
    std::map<ir::Value, ir::Value> scales_;  ///< products applied by dots, and their factors
    std::map<const ir::Instruction*, Tile> targets_;  ///< stores that dots do, and copies at edges
    std::vector<Packed> packed_;
    std::map<std::uint32_t, std::uint32_t> refs_;  ///< value id -> Program::refs
    std::map<std::pair<int, std::uint64_t>, std::uint32_t> constant_slots_;
    std::vector<Region*> regions_;
    const ir::Block* block_ = nullptr;  ///< being lowered
    std::uint32_t line_ = 0;            ///< of the instruction that is being lowered
    std::map<std::pair<std::string_view, int>, std::uint32_t> known_lines_;
};

/// Bits of an element in memory, from the widened form of ConstantAttributes.
std::uint64_t element_bits(DType dtype, std::uint64_t widened);

}  // namespace tilewright::cpu
