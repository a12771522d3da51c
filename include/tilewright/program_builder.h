// Builds kernels of the tile IR instruction by instruction, for front ends whose graphs are typed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/dtype.h"

namespace TW_API tilewright {

/// Smallest and largest value of an integer or bool.
struct IntegerRange {
    std::int64_t low = 0, high = 0;
};

/// A kernel of the tile IR (docs/reference/ir.md) under construction. Operations have the names and
/// take exactly the operands of docs/reference/ops.md: promotion of dtypes and broadcasting of
/// shapes belong to the kernel language, `tilewright/lang.h`, which builds the same IR.
///
/// Every instruction is checked when it is added: a bad one throws UserError "[op] expected X but
/// got Y", with the source line if one is set. A builder belongs to one thread.
class ProgramBuilder {
  public:
    /// A tile, a scalar or a Ref of this program. Values of a loop body or a branch end with it.
    using Value = std::uint32_t;
    using Values = std::vector<Value>;

    /// How one dimension of a Ref is indexed.
    struct Index {
        enum class Kind : std::uint8_t { scalar, slice, tile };
        Kind kind = Kind::scalar;
        Value start = 0;          ///< an integer scalar; for Kind::tile, the indices
        std::int64_t size = 1;    ///< slice: elements start, start + stride, ...
        std::int64_t stride = 1;  ///< slice
    };

    /// What an operation takes besides operands; each one reads the members that it uses.
    struct Attributes {
        int axis = 0;
        bool approx = false;
        bool reverse = false;                              ///< scan
        std::vector<int> permutation;                      ///< transpose
        std::vector<std::int64_t> starts, sizes, strides;  ///< slice
        std::string kind;                                  ///< reduce, scan: "sum", "max", ...
        bool transpose_a = false, transpose_b = false;     ///< dot
        std::string precision = "ieee";                    ///< dot
        std::int64_t count = 0;                            ///< sort, argsort: the first of them
        bool descending = false;                           ///< sort, argsort
    };

    /// An i32 or i64 tile as offset + sum of factor * scalar + sum of step * index along an axis.
    struct IndexForm {
        struct Term {
            Value scalar = 0;
            DType dtype = DType::i64;
            std::int64_t factor = 1;
        };
        std::int64_t offset = 0;
        std::vector<Term> terms;          ///< each scalar once
        std::vector<std::int64_t> steps;  ///< one for each axis; none for a scalar
    };

    explicit ProgramBuilder(std::string name);
    ~ProgramBuilder();
    ProgramBuilder(const ProgramBuilder&) = delete;
    ProgramBuilder& operator=(const ProgramBuilder&) = delete;

    /// An array of the caller, as the next parameter; extents of -1 are taken from the call. Refs
    /// with the same non-negative `alias_group` may share memory.
    Value ref(std::string name, DType dtype, std::vector<std::int64_t> extents,
              int alias_group = -1);
    /// Memory private to a program.
    Value scratch(std::string name, DType dtype, std::vector<std::int64_t> extents);
    /// Appends an axis to the grid; an extent of -1 is taken from the call.
    void add_grid_axis(std::int64_t extent);
    /// 0: the compiler chooses.
    void set_hints(int num_warps, int num_stages);
    /// The source line of the instructions that follow.
    void set_location(std::string_view file, int line);

    /// One value in every element. Equal constants are stored once, at the start of the program.
    Value constant(DType dtype, std::span<const std::int64_t> shape, double value);
    Value constant_int(DType dtype, std::span<const std::int64_t> shape, std::int64_t value);
    /// Any operation with one result other than constants, memory and control flow.
    Value apply(std::string_view op, std::span<const Value> operands, DType dtype,
                std::span<const std::int64_t> shape, const Attributes& attributes);

    Value load(Value ref, std::span<const Index> indices, std::optional<Value> mask = {},
               std::optional<Value> other = {});
    void store(Value ref, std::span<const Index> indices, Value value,
               std::optional<Value> mask = {});
    /// "atomic_add", "atomic_max", "atomic_min" and "atomic_xchg" take one value, "atomic_cas" the
    /// expected and the desired one. Returns the old elements.
    Value atomic(std::string_view op, Value ref, std::span<const Index> indices,
                 std::span<const Value> values, std::optional<Value> mask = {});

    void debug_print(std::string format, std::span<const Value> operands);
    void debug_check(Value condition, std::string message);

    /// `body(i, carries)` returns the next carries; i goes from low up to but not including high by
    /// step, all i64 scalars.
    Values for_loop(Value low, Value high, Value step, std::span<const Value> init,
                    const std::function<Values(Value i, const Values& carries)>& body);
    Values while_loop(std::span<const Value> init,
                      const std::function<Value(const Values& carries)>& condition,
                      const std::function<Values(const Values& carries)>& body);
    Values if_else(Value condition, const std::function<Values()>& then_branch,
                   const std::function<Values()>& else_branch);

    /// The linear form of an integer if no operation wraps; nullopt for other dtypes and for tiles
    /// that are not linear. A scalar that is not linear in others is a term by itself.
    std::optional<IndexForm> index_form(Value value) const;
    /// Bounds of every element; nullopt for floats and if it may be any value of its dtype.
    std::optional<IntegerRange> range(Value value) const;

    /// The program as text with source lines, as `Program` takes it.
    std::string text() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// The range of an elementwise operation's result, given those of its operands: `in` is the dtype
/// of the operands (for select, of the values to choose from), `out` that of the result. Nothing
/// where the result may be any value, as after an overflow.
std::optional<IntegerRange> integer_range(std::string_view op, DType in, DType out,
                                          std::span<const IntegerRange> operands);

}  // namespace tilewright
