// The state of one generation: the text so far, and where every value lies. The files emit_*.cpp
// hold one family of operations each.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cuda/codegen/analysis.h"
#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/element_text.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/layout.h"
#include "cuda/codegen/mma_steps.h"

namespace tilewright::cuda {

using Names = std::vector<std::string>;

/// A tile in registers: the text of every register's element.
struct Held {
    Layout layout;
    Names names;
};

/// A tile in shared memory, rows of the last axis, swizzled in groups of `group` bytes.
struct SharedTile {
    std::string offset;  ///< text of the byte offset in shared memory
    int buffer = -1;
    ir::Shape shape;
    DType dtype = DType::f32;
    std::int64_t row_bytes = 0;
    std::int64_t group = 16;

    std::int64_t rows() const;
};

/// Reserves shared memory: buffers with life spans over the steps of the text.
class SharedArena {
  public:
    /// `what` it is for goes into messages.
    int add(std::int64_t bytes, int step, std::string what);
    /// A buffer is used at a step; the span grows to cover it.
    void touch(int buffer, int step);
    int born(int buffer) const { return buffers_[static_cast<std::size_t>(buffer)].first; }
    /// First fit by decreasing size; returns the total.
    std::int64_t place();
    std::int64_t offset(int buffer) const {
        return buffers_[static_cast<std::size_t>(buffer)].offset;
    }
    /// The largest buffer as text: what it is for and its bytes.
    std::string largest() const;
    std::size_t size() const { return buffers_.size(); }
    std::int64_t bytes(int buffer) const {
        return buffers_[static_cast<std::size_t>(buffer)].bytes;
    }

  private:
    struct Buffer {
        std::int64_t bytes = 0, offset = -1;
        int first = 0, last = 0;
        std::string what;
    };
    std::vector<Buffer> buffers_;
};

class Emitter {
  public:
    /// `workspace`: scratch lies in global memory. `placed`: the arena of a run before with the
    /// same arguments, which saves barriers between buffers that turn out to lie apart.
    Emitter(const ir::Function& function, const Target& target, int warps, int stages,
            bool workspace, const SharedArena* placed = nullptr);
    Generated run();
    const SharedArena& arena() const { return arena_; }

  private:
    using Value = ir::Value;
    using Instruction = ir::Instruction;

    // ---- Text.
    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_.append(static_cast<std::size_t>(4 * depth_), ' ');
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
        text_ += '\n';
    }
    void open(const std::string& head);  ///< "head {" and a scope of names
    void close();
    std::string fresh(const char* prefix) { return fmt::format("{}{}", prefix, counter_++); }

    // ---- Values (emitter.cpp).
    struct Scope {
        std::map<Value, std::vector<Held>> held;
        std::map<Value, SharedTile> shared;
        std::map<std::string, Names> fragments;  ///< operand words by key
    };
    const ir::Type& type(Value value) const { return f_.type(value); }
    /// The text of a scalar.
    std::string scalar(Value value);
    /// An integer scalar as i64 text.
    std::string index(Value value);
    /// The elements of a value in a layout, emitted or converted where need be.
    Names get(Value value, const Layout& layout);
    /// Elements held in some layout, or none.
    const Held* find(Value value) const;
    const Held* find(Value value, const Layout& layout) const;
    void hold(Value value, Layout layout, Names names);
    Layout home(Value value) const;
    Layout scalar_layout() const { return Layout(ir::Shape(), warps_); }
    /// Names v_0, v_1, ... for a value's registers.
    static Names numbered(const std::string& base, int count);
    std::optional<Names> get_view(const Instruction& made, const Layout& layout);
    Names convert(const Held& from, const Layout& to, DType dtype);
    /// Coordinate of a thread along an axis: a variable of the prologue, or "0".
    std::string thread_coordinate(const Layout& layout, int axis);
    std::string coordinate(const Layout& layout, int axis, std::int64_t register_part);
    static std::string plus(const std::string& text, std::int64_t constant);
    /// The conditions under which a thread's register is the owner of a real element; "" if always.
    std::string owner(const Layout& layout);
    std::string real(const Layout& layout, int reg);
    bool is_lazy(const Instruction& instruction) const;

    // ---- Layout assignment (assign_layouts.cpp).
    void assign_layouts();
    void plan_dots();
    /// Does a reduction (along `axis`; -1: any) read the value, perhaps through elementwise
    /// operations?
    bool is_reduced(Value value, int axis = -1) const;

    // ---- Instructions.
    void comment(const Instruction& made);
    void block(const ir::Block& block);
    void instruction(const Instruction& instruction);
    Names elementwise(const Instruction& instruction, const Layout& layout, Value result);
    std::string elementwise_text(const Instruction& instruction, const Names& operands) const;
    void program_ids();
    /// Places the scratch Refs; returns the bytes of them that lie in the workspace.
    std::int64_t place_scratch();
    /// Few elements are loaded by a thread, none carried by loops: registers may be limited so that
    /// two blocks of the largest size share a multiprocessor.
    bool is_light() const;

    // Memory (emit_memory.cpp).
    struct AccessText {
        std::string pointer;  ///< of the thread's first element
        Names offset;         ///< per register, in elements; "" is 0
        Names inside;         ///< per register: condition, "" is always
        int vector = 1;       ///< registers per access
        std::string window;   ///< bounds along the vector axis where they may cut a vector
        Names position;       ///< per register: coordinate along the vector axis
    };
    /// `indices`: in place of the instruction's operands.
    AccessText access_text(const Instruction& instruction, const Layout& layout,
                           const Names* indices = nullptr);
    /// Does the index of an access along a dimension stay inside, whatever the program?
    bool stays_inside(const Instruction& access, std::size_t dim) const;
    /// True when lanes along the last axis are neighbours in memory; gives how many are aligned.
    int contiguous_vector(const Instruction& instruction, int* axis) const;
    /// Elements of one access of a thread, without a mask, in this layout.
    int access_vector(const Instruction& instruction, const Layout& layout) const;
    void load(const Instruction& instruction);
    void store(const Instruction& instruction);
    void atomic(const Instruction& instruction);
    bool distinct_targets(const Instruction& instruction) const;
    Names last_writers(const Layout& layout, const AccessText& text, const Names& conditions);
    /// What packing rounds anyway: the f32 operand of a cast to f16 or bf16, else the value.
    Value before_rounding(Value value) const;
    std::string ref_name(Value ref) const;
    std::string extent_text(Value ref, int dim) const;
    std::string stride_text(Value ref, int dim) const;
    bool has_vectors(Value ref) const;

    // Shared memory and order (emit_shared.cpp).
    /// Barriers, where other threads' accesses to the memory of these buffers are pending.
    void before_shared_write(int id);
    void before_shared_read(std::initializer_list<int> ids);
    /// May two buffers share memory? Certain only once an earlier run has placed them.
    bool may_overlap(int a, int b) const;
    bool may_overlap_any(int a, const std::set<int>& others) const;
    void barrier();
    void before_global(Value ref, bool write);
    /// Pending effects are unknown where loops and branches begin or end.
    void forget_order(const Instruction& instruction);
    void settle_copies();
    int buffer(std::int64_t bytes);
    std::string buffer_offset(int id);
    void touch(int id);
    /// Names read back from a row-major copy; `source_index` maps a target's coordinates.
    using IndexText = std::function<std::string(const Layout&, int)>;
    struct Part {
        Held held;
        IndexText index;     ///< element offset of a register
        int vector = 1;      ///< registers that lie side by side
        bool guard = false;  ///< phantoms have no place
    };
    Names through_shared(const std::vector<Part>& parts, const Layout& to, const Part& read,
                         std::int64_t elements, DType dtype);
    static int vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes);
    /// The form of a tile in shared memory, and such a tile with `copies` of its space reserved.
    static SharedTile tile_form(const ir::Shape& shape, DType dtype, bool swizzle);
    SharedTile shared_tile(const ir::Shape& shape, DType dtype, bool swizzle, int copies = 1);
    SharedTile shared_copy(Value value, DType dtype, bool swizzle);

    // Shapes (emit_shape.cpp).
    void reshape(const Instruction& instruction);
    void slice(const Instruction& instruction);
    void concatenate(const Instruction& instruction);

    // Across lanes (emit_lanes.cpp).
    void reduce(const Instruction& instruction);
    /// Combines b into a; both are variables "x" and, for indices, "xi".
    void fold_into(const Instruction& reduce, const std::string& a, const std::string& b);
    void hold_reduced(const Instruction& reduce, const Layout& layout, const Names& sums);
    /// What each warp has reduced and written, in shared memory.
    struct WarpParts {
        const Instruction* reduce;
        Layout layout;
        Names sums, offsets;        ///< per register: a variable, and its place
        int values, indices;        ///< buffers; -1: none
        std::int64_t copies, size;  ///< of elements
    };
    /// Finishes the reductions whose parts nobody has read.
    void read_warp_parts();
    void scan(const Instruction& instruction);
    Layout scan_layout(const Instruction& instruction) const;
    void debug_print(const Instruction& instruction);
    void sort(const Instruction& instruction);  // emit_sort.cpp

    // Dots (emit_dot.cpp).
    struct Operand {
        Value value;
        bool transposed = false;  ///< stored [.., k, m] or [.., n, k]
    };
    Operand operand_of(const Instruction& dot, int side) const;
    void dot(const Instruction& instruction);
    /// Copies the operands of the block's next dots that are there, too: one barrier serves all.
    void copy_operands_ahead(const Instruction& dot);
    /// Text of the packed words of a left operand that lies in registers as the instruction wants
    /// it.
    std::optional<Names> register_words(const DotPlan& plan, const Operand& operand);
    const SharedTile& operand_tile(const DotPlan& plan, const Operand& operand);
    static std::string left_key(const DotPlan& plan, const Operand& operand, const Coordinates& at,
                                std::int64_t k);
    /// The four words of one 16 x 16 piece of the left operand, from shared memory.
    Names left_words(const DotPlan& plan, const Operand& operand, const Coordinates& at,
                     std::int64_t k);
    std::string fragment_address(const SharedTile& tile, const std::string& row,
                                 const std::string& byte, std::int64_t row_part,
                                 std::int64_t byte_part);
    void mma16(const Instruction& instruction, const DotPlan& plan, Names& c);
    void mma8(const Instruction& instruction, const DotPlan& plan, Names& c);
    void mma_by_element(const Instruction& instruction, const DotPlan& plan, Names& c);
    void multiply_add(const Instruction& instruction, const DotPlan& plan, Names& c);
    static std::string element_text(const SharedTile& tile, const std::string& row,
                                    const std::string& column);
    void hoist_fragments(const Instruction& loop);

    // Loads issued ahead (emit_stage.cpp).
    bool is_staged(const Instruction& load) const { return why_not_staged(load).empty(); }
    /// What keeps a load from being copied to shared memory ahead of the dots that read it.
    std::string why_not_staged(const Instruction& load) const;
    /// What is not done by the fastest means (emit_notes.cpp).
    std::vector<Note> notes() const;
    void copy_to_shared(const Instruction& load, const SharedTile& tile, const Names& indices);
    void stage(const Instruction& load);
    std::vector<const Instruction*> streamed_loads(const Instruction& loop) const;
    /// Loads into registers of a loop without dots that may be issued an iteration ahead.
    std::vector<const Instruction*> prefetched_loads(const Instruction& loop);
    /// Loads what such instructions of a loop want in the iteration at `at`.
    void prefetch(std::span<const Instruction* const> loads, const std::string& at);
    bool computable(Value value, const std::set<Value>& inside, Value induction) const;
    std::string recompute(Value value, const std::set<Value>& inside, Value induction,
                          const std::string& at);
    /// Does a thread hold so many elements of a loop's loads that registers are short? Then they
    /// stay packed, and nothing is loaded ahead.
    bool is_wide() const;
    bool is_tile_load(const Instruction& made) const;
    /// After a reduction: elements are unpacked anew, and what little arithmetic made of them is
    /// done again, so that packed words alone wait for the reduction in registers.
    void keep_packed();
    /// Loads in front of the loop of a wide kernel, which are done again in every iteration.
    void find_repeated_loads();
    /// Scratch that every thread uses for elements of its own, so that there is nothing to order.
    bool is_private(Value ref) const;
    /// Made of packed elements, scalars and index math by a few cheap operations?
    bool is_renewable(Value value, int depth = 0) const;

    // Loops and branches (emit_loop.cpp).
    void for_loop(const Instruction& instruction);
    void while_loop(const Instruction& instruction);
    void if_else(const Instruction& instruction);
    /// Variables for the carries of a loop, with their first values.
    std::vector<Names> declare_carries(std::span<const Value> init,
                                       std::span<const Value> arguments);
    void assign_carries(std::span<const Value> targets, const std::vector<Names>& names,
                        std::span<const Value> values);
    /// The sum in a carry l = l * exp(..) + sum(tile), or l + sum(tile), that lanes may keep
    /// to themselves until the loop ends; nullptr where there is none.
    const Instruction* deferred_sum(const Instruction& loop, std::size_t carry) const;
    /// What the lanes that share an element have summed, as what each of them holds.
    void join_lanes(const Instruction& sum, const Names& names);

    const ir::Function& f_;
    const Target& target_;
    Analysis analysis_;
    int warps_ = 4, stages_ = 0;
    bool workspace_ = false;  ///< scratch lies in global memory
    std::map<Value, Layout> home_;
    std::map<const Instruction*, DotPlan> plans_;
    /// Loads that the loop being emitted issues an iteration ahead.
    struct Prefetched {
        const Instruction* loop = nullptr;
        bool packed = false;  ///< in words of 16 bytes; else element by element
        Names next, now;      ///< of the next iteration and of this one
    };
    std::map<Value, Prefetched> prefetched_;
    std::map<Value, Names> packed_;  ///< words of loads whose elements are unpacked where wanted
    std::set<Value> forgotten_;      ///< computed again where they are wanted
    std::set<Value> repeated_;       ///< loads that are done where they are wanted
    std::vector<WarpParts> unread_;  ///< of the block being emitted
    std::set<const Instruction*> deferred_;  ///< sums that stay in their lanes
    std::map<Value, SharedTile> streamed_;   ///< of the loop being emitted, by load

    std::string text_;
    int depth_ = 1;
    int counter_ = 0;
    int step_ = 0;  ///< counts emitted instructions: life spans of buffers
    std::vector<Scope> scopes_;
    const ir::Block* block_ = nullptr;                ///< being emitted
    std::map<std::string, std::string> coordinates_;  ///< expression -> variable
    std::string coordinate_text_;
    bool sorts_ = false;           ///< the text calls cuda/device/tile/sort.cuh
    std::set<MmaStep> mma_steps_;  // that the text calls
    SharedArena arena_;
    std::string buffers_for_ = "scratch";               ///< what buffers that are added now are for
    std::vector<std::pair<int, std::set<int>>> loops_;  ///< first step, outer buffers used inside
    std::map<Value, int> ref_order_;                    ///< global Refs by parameter order

    // Order of effects between threads since the last barrier.
    const SharedArena* placed_ = nullptr;          ///< of an earlier run
    bool any_written_ = false, any_read_ = false;  ///< any buffer may have been
    std::set<int> shared_written_, shared_read_;
    std::set<int> copies_;  ///< asynchronous copies under way
    std::set<Value> global_written_, global_read_;
};

}  // namespace tilewright::cuda
