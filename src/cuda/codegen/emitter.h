// The state of one generation: the text so far, and where every value is. Each of the files
// emit_*.cpp has one family of operations.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cuda/codegen/element_text.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/layout.h"
#include "cuda/codegen/plan.h"
#include "cuda/codegen/positions.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda {

/// A tile in registers: the text of each register's element.
struct Held {
    Layout layout;
    Names names;
    schedule::Value value = {};  ///< of the program; none where only statements as text name it
};

/// The place of a tile's elements in shared memory: in rows with a pitch, or row-major in a tile of
/// `extents`, from `starts` on in steps of `steps`.
struct TilePlace {
    std::int64_t pitch = 0;
    std::vector<std::int64_t> extents, starts = {}, steps = {};
    int vector = 1;        ///< contiguous registers
    bool guarded = false;  ///< phantoms have no element
};

/// A tile in shared memory, in rows along the last axis, swizzled in groups of `group` bytes.
struct SharedTile {
    std::string offset;  ///< text of the byte offset in shared memory
    int buffer = -1;
    ir::Shape shape;
    DType dtype = DType::f32;
    std::int64_t row_bytes = 0;
    std::int64_t group = 16;

    std::int64_t rows() const;
};

/// A kernel as the scheduled form's program of text, and what stands around it.
struct Emitted {
    schedule::Program program;
    Generated generated;  ///< without source and shared memory
    std::string launch_bounds, parameters;
};

class Emitter {
  public:
    /// `workspace`: scratch is in global memory.
    Emitter(const KernelFacts& facts, const Plan& plan, const Target& target, bool workspace);
    /// At level `split`: without places of buffers and without barriers.
    Emitted run();

  private:
    using Value = ir::Value;
    using Instruction = ir::Instruction;

    // ---- Text.
    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        append(schedule::Op::raw)
            .with_text("text", fmt::format(format, std::forward<Args>(args)...));
    }
    schedule::Instruction& append(schedule::Op op);
    /// "head {" and a scope of names; loops and branches run it any number of times.
    void open(const std::string& head, schedule::Op op = schedule::Op::scope);
    void open_else();
    void close();
    void begin_operation(std::string_view name);
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
    /// The elements of a value in a layout, emitted or converted where necessary.
    Names get(Value value, const Layout& layout);
    /// Elements held in some layout, or none.
    const Held* find(Value value) const;
    const Held* find(Value value, const Layout& layout) const;
    void hold(Value value, Layout layout, Names names);
    void hold(Value value, Held held);
    /// A value that is held in some layout, or in its home layout.
    Held get_any(Value value);
    /// The program's value of a tile in registers.
    schedule::Value value_of(const Held& held, DType dtype);
    /// The result of the last operation.
    Held result_of(schedule::Instruction& made, std::string name, const Layout& layout,
                   DType dtype);
    Layout home(Value value) const;
    Layout scalar_layout() const { return Layout(ir::Shape(), warps_); }
    std::optional<Names> get_view(const Instruction& made, const Layout& layout);
    Held convert(const Held& from, const Layout& to, DType dtype);
    /// Coordinate of a thread along an axis: a variable of the prologue, or "0".
    std::string thread_coordinate(const Layout& layout, int axis) {
        return positions_.thread(layout, axis);
    }
    std::string coordinate(const Layout& layout, int axis, std::int64_t register_part) {
        return positions_.of(layout, axis, register_part);
    }

    // ---- Instructions.
    void comment(const Instruction& made);
    void block(const ir::Block& block);
    void instruction(const Instruction& instruction);
    Names elementwise(const Instruction& instruction, const Layout& layout, Value result);
    std::string elementwise_text(const Instruction& instruction, const Names& operands) const;
    void program_ids();
    /// At the beginning of the program.
    void declare_positions();
    /// Places the scratch Refs, in the buffers `scratch` or in the workspace; returns the bytes of
    /// the latter.
    std::int64_t place_scratch(std::vector<int>& scratch);

    // Memory (emit_memory.cpp).
    struct AccessText {
        std::string pointer;  ///< of the thread's first element
        Names offset;         ///< per register, in elements; "" is 0
        Names inside;         ///< per register: condition, "" is always
        int vector = 1;       ///< registers per access
        std::string window;   ///< bounds along the vector axis where they may cut a vector
        Names beside;         ///< per register: `inside` where `window` is `true`
        Names position;       ///< per register: coordinate along the vector axis
    };
    /// `indices` replace the instruction's index operands.
    AccessText access_text(const Instruction& instruction, const Layout& layout,
                           const Names* indices = nullptr);
    void load(const Instruction& instruction);
    void store(const Instruction& instruction);
    void atomic(const Instruction& instruction);
    bool distinct_targets(const Instruction& instruction) const;
    Names last_writers(const Layout& layout, const AccessText& text, const Names& conditions);
    /// The value to pack: the f32 operand of a cast to f16 or bf16, else the value itself.
    Value before_rounding(Value value) const;
    std::string ref_name(Value ref) const;
    std::string extent_text(Value ref, int dim) const;
    std::string stride_text(Value ref, int dim) const;

    // Shared memory (emit_shared.cpp).
    /// The text that follows accesses buffers, "reads", "writes" or "copies" (asynchronously).
    void access_shared(const char* how, std::initializer_list<int> ids);
    void access_global(Value ref, bool write);
    /// Copies under way are waited for here, up to the last `pending` groups.
    void settle_copies(int pending = 0);
    int buffer(std::int64_t bytes);
    static std::string buffer_name(int id);
    /// A buffer is in use, without another access.
    void touch(int id);
    /// The elements in another layout, or those of several tiles in one.
    Held through_shared(const std::vector<Held>& parts, const TilePlace& written, const Layout& to,
                        const TilePlace& read, std::int64_t elements, DType dtype);
    static int vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes);
    /// The form of a tile in shared memory, and such a tile with space reserved for `copies` of it.
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
    /// What each warp has reduced and written to shared memory.
    struct WarpParts {
        const Instruction* reduce;
        Layout layout;
        Names sums, offsets;        ///< per register: a variable, and its offset
        int values, indices;        ///< buffers; -1: none
        std::int64_t copies, size;  ///< of elements
    };
    /// Finishes the reductions whose parts have not been read yet.
    void read_warp_parts();
    void scan(const Instruction& instruction);
    void debug_print(const Instruction& instruction);
    void sort(const Instruction& instruction);  // emit_sort.cpp

    // Dots (emit_dot.cpp).
    void dot(const Instruction& instruction);
    /// Also copies the operands of the block's next dots, if available, for which one barrier is
    /// enough.
    void copy_operands_ahead(const Instruction& dot);
    /// Text of the packed words of a left operand whose registers the instruction can read.
    std::optional<Names> register_words(const DotPlan& plan, const DotOperand& operand);
    const SharedTile& operand_tile(const DotPlan& plan, const DotOperand& operand);
    static std::string left_key(const DotPlan& plan, const DotOperand& operand,
                                const Coordinates& at, std::int64_t k);
    /// The four words of one 16 x 16 piece of the left operand, from shared memory.
    Names left_words(const DotPlan& plan, const DotOperand& operand, const Coordinates& at,
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
    void copy_to_shared(const Instruction& load, const SharedTile& tile, const Names& indices);
    void stage(const Instruction& load);
    /// Issues the loads of the iteration at `at`.
    void prefetch(std::span<const Instruction* const> loads, const std::string& at);
    std::string recompute(Value value, const std::set<Value>& inside, Value induction,
                          const std::string& at);
    /// After a reduction: elements are unpacked again and cheap arithmetic on them is repeated, so
    /// that only packed words stay in registers across the reduction.
    void keep_packed();
    /// Is the value made of packed elements, scalars and index math by a few cheap operations?
    bool is_renewable(Value value, int depth = 0) const;

    // Loops and branches (emit_loop.cpp).
    void for_loop(const Instruction& instruction);
    void while_loop(const Instruction& instruction);
    void if_else(const Instruction& instruction);
    /// Variables for the carries of a loop, with their initial values.
    std::vector<Names> declare_carries(std::span<const Value> init,
                                       std::span<const Value> arguments);
    void assign_carries(std::span<const Value> targets, const std::vector<Names>& names,
                        std::span<const Value> values);
    bool is_deferred(const Instruction& sum) const;
    /// Combines the sums of the lanes that share an element, in all of them.
    void join_lanes(const Instruction& sum, const Names& names);

    const ir::Function& f_;
    const Target& target_;
    const KernelFacts& facts_;
    const Plan& plan_;
    int warps_ = 4;
    bool workspace_ = false;  ///< scratch is in global memory
    /// Loads that the loop being emitted issues an iteration ahead.
    struct Prefetched {
        const Instruction* loop = nullptr;
        bool packed = false;  ///< in words of 16 bytes; else element by element
        Names next, now;      ///< of the next iteration and of this one
    };
    std::map<Value, Prefetched> prefetched_;
    std::map<Value, Names> packed_;  ///< words of loads whose elements are unpacked at their use
    std::set<Value> forgotten_;      ///< computed again at their use
    std::vector<WarpParts> unread_;  ///< of the block being emitted
    std::set<const Instruction*> streamed_;  ///< loads that the loop being emitted copies

    schedule::Program program_;
    std::vector<schedule::Block*> open_;  ///< blocks that are being written, outermost first
    int counter_ = 0;
    std::vector<Scope> scopes_;
    const ir::Block* block_ = nullptr;  ///< being emitted
    Positions positions_;
    std::string buffers_for_ = "scratch";  ///< the use of buffers that are added now
};

}  // namespace tilewright::cuda
