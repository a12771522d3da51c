// The trace in progress: turns calls of the kernel language into IR instructions.
#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/function.h"
#include "ir/passes/intervals.h"
#include "support/check.h"
#include "tilewright/lang/kernel.h"

namespace tilewright::lang {

/// How one dimension of an array is indexed by a view.
struct ArrayIndex {
    ir::Index::Kind kind = ir::Index::Kind::slice;
    ir::Value start;               ///< i64 scalar, or the index tile; none: 0
    std::int64_t size = kDynamic;  ///< slice: extent of the view's dimension
    std::int64_t stride = 1;       ///< slice: in elements of the array's dimension
    bool is_block = false;         ///< part of the array: neighbours belong to other programs
};

/// What a Ref of the language stands for: an IR Ref, with an index for each dimension of its array.
struct View {
    ir::Value ref;  ///< none: the argument is absent
    std::string name;
    bool writable = true;
    std::vector<ArrayIndex> indices;
};

/// A trace. Handles (Tile, Ref) name their trace, so that using a value elsewhere is an error.
class Tracer {
  public:
    explicit Tracer(std::string name);
    ~Tracer();
    Tracer(const Tracer&) = delete;
    Tracer& operator=(const Tracer&) = delete;

    /// The innermost trace of this thread. UserError when nothing is being traced.
    static Tracer& current(const char* op, const std::source_location& location = {});
    /// The trace that a handle belongs to, which must be the current one.
    static Tracer& of(const Tile& tile, const char* op, const std::source_location& location);
    static Tracer& of(const Ref& ref, const char* op, const std::source_location& location);

    ir::Function& function() { return function_; }
    ir::Builder& builder() { return builder_; }

    Tile wrap(ir::Value value);
    /// UserError if the value belongs to another trace or to a loop body that has ended.
    ir::Value use(const Tile& tile);
    const ir::Type& type(ir::Value value) const { return function_.type(value); }

    Ref add_view(View view);
    const View& view(const Ref& ref) const { return views_.at(ref.id()); }

    /// Runs emit() with the user's line and appends it to UserErrors. Where the location is empty,
    /// as for C++'s logical operators, that is the line of a LineScope or else the last known one.
    template <typename Emit>
    auto at(const std::source_location& location, Emit&& emit) {
        const ir::Location line = line_of(location);
        if (line.line != 0) location_ = line;
        const ir::Location here = location_;  // emit() may change it
        builder_.set_location(here);
        return with_line(here, emit);
    }

    /// Runs emit() and appends the line to UserErrors that do not name one.
    template <typename Emit>
    static auto with_line(const ir::Location& location, Emit&& emit) {
        try {
            return emit();
        } catch (const UserError& error) {
            rethrow_with_line(error, location);
        }
    }
    template <typename Emit>
    static auto with_line(const std::source_location& location, Emit&& emit) {
        return with_line(line_of(location), emit);
    }

    /// The user's line for what is emitted now.
    const ir::Location& location() const { return location_; }
    /// The line of exchange_source_line if one is set, else the location, or if that is empty, what
    /// the thread's LineScope says.
    static ir::Location line_of(const std::source_location& location);

    /// Values made during its lifetime, in a loop body or a branch, cannot be used afterwards.
    class Scope {
      public:
        explicit Scope(Tracer& tracer);
        ~Scope();

      private:
        Tracer& tracer_;
        std::uint32_t outer_;
        std::uint32_t own_;
    };

    // ---- Operands as IR values.

    /// Whether `dtype` can hold the literal's value; floats round.
    static bool fits(const Operand& literal, DType dtype);
    /// A literal as text, as in C++.
    static std::string text(const Operand& literal);
    /// A literal as a scalar of `dtype`. UserError if it does not fit.
    ir::Value literal(const Operand& operand, DType dtype, const char* op = "literal");
    /// The dtype of an operand by itself.
    DType dtype(const Operand& operand);
    ir::Shape shape(const Operand& operand);
    /// The operand as a value; a literal in its own dtype.
    ir::Value value(const Operand& operand);
    /// The operand as a value of this dtype; traced values are cast.
    ir::Value value(const Operand& operand, DType dtype, const char* op = "literal");
    /// NumPy broadcasting; UserError "[op] ..." if the value does not broadcast to the shape.
    ir::Value broadcast(ir::Value value, const ir::Shape& shape, const char* op);
    /// An integer scalar as i64; `what` names it in the UserError.
    ir::Value index(const Operand& operand, const char* op, std::string_view what);
    ir::Value index_constant(std::int64_t value);
    /// index * factor, saturated if an index in this range could make the product exceed 64 bits:
    /// such an element is outside every array and must not wrap into one.
    ir::Value scaled_index(ir::Value index, std::int64_t factor, const ir::Interval& range);
    /// The common dtype of operands.
    DType common_dtype(std::span<const Operand> operands);

    // ---- The grid as the kernel sees it.

    struct GridAxis {
        ir::Value index;  ///< the loop index of a sequential axis; none: parallel
        int axis = 0;     ///< axis of the IR grid, when parallel
        std::int64_t extent = kDynamic;
    };
    std::vector<GridAxis> grid;
    int hidden_axes = 0;  ///< leading axes added by vmap, which the kernel does not see
    bool checked = false;

    ir::Value program_index(const GridAxis& axis);

  private:
    [[noreturn]] static void rethrow_with_line(const UserError& error,
                                               const ir::Location& location);

    ir::Function function_;
    ir::Builder builder_;
    std::uint32_t id_;
    ir::Location location_;
    Tracer* outer_;
    std::vector<View> views_;
    std::vector<std::uint32_t> scope_of_;  ///< by value id
    std::vector<bool> scope_open_{true};
    std::uint32_t scope_ = 0;
};

}  // namespace tilewright::lang
