// Functions of the tile IR: values, instructions, blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/op.h"
#include "ir/type.h"

namespace tilewright::ir {

class Function;

/// Handle of an SSA value (or of a Ref) within one Function.
struct Value {
    std::uint32_t id = UINT32_MAX;

    explicit operator bool() const { return id != UINT32_MAX; }
    auto operator<=>(const Value&) const = default;
};

/// The user's source line that made an instruction; `file` is empty when unknown.
struct Location {
    std::string_view file;  ///< a string with static storage (std::source_location)
    int line = 0;
};

// ---- Attributes: what an instruction has besides operands, listed in docs/reference/ops.md.

struct NoAttributes {
    bool operator==(const NoAttributes&) const = default;
};

/// constant: the element in 64 bits (integers sign- or zero-extended; f64 bits for all floats).
struct ConstantAttributes {
    std::uint64_t bits = 0;
    bool operator==(const ConstantAttributes&) const = default;
};

/// iota, program_id, num_programs, extent, expand_dims, concatenate: an axis. Unary ops: `approx`.
struct AxisAttributes {
    int axis = 0;
    bool operator==(const AxisAttributes&) const = default;
};

struct MathAttributes {
    bool approx = false;  ///< use the hardware's approximation if there is one
    bool operator==(const MathAttributes&) const = default;
};

/// How one dimension of a Ref is indexed. Each form takes one operand, in dimension order.
struct Index {
    enum class Kind : std::uint8_t {
        scalar,  ///< an integer scalar; the dimension is dropped
        slice,   ///< start (integer scalar) and static `size`, `stride`: start + i * stride
        tile,    ///< an integer tile: gather or scatter
    };
    Kind kind = Kind::scalar;
    std::int64_t size = 1;
    std::int64_t stride = 1;
    bool operator==(const Index&) const = default;
};

/// load, store, atomics: operands are the Ref, one operand per index, then values, mask, other.
/// Several index tiles broadcast together; their joint dimensions replace the first one's.
struct AccessAttributes {
    std::vector<Index> indices;  ///< one per dimension of the Ref
    bool has_mask = false;       ///< bool, shape of the access (or scalar)
    bool has_other = false;      ///< loads only; masked lanes and lanes outside the array read it
    bool in_bounds = false;      ///< the bounds pass has proved that no lane leaves the array
    bool operator==(const AccessAttributes&) const = default;
};

/// transpose: permutation (result axis i is operand axis ints[i]).
struct PermutationAttributes {
    std::vector<int> permutation;
    bool operator==(const PermutationAttributes&) const = default;
};

struct SliceAttributes {
    std::vector<std::int64_t> starts, sizes, strides;
    bool operator==(const SliceAttributes&) const = default;
};

struct ReduceAttributes {
    Reduction kind = Reduction::sum;
    int axis = 0;
    bool reverse = false;    ///< scan only
    bool exclusive = false;  ///< scan only
    bool operator==(const ReduceAttributes&) const = default;
};

/// associative_scan: `combine` is a mod that takes an element of each operand of the scan, as many
/// that come after them, and the values captured; it yields what both make.
struct CombineAttributes {
    std::shared_ptr<const Function> combine;
    int axis = 0;
    bool reverse = false;
    bool operator==(const CombineAttributes&) const = default;
};

/// sort, argsort: the first `count` along the axis, in ascending order or from the largest down.
struct SortAttributes {
    int axis = 0;
    std::int64_t count = 0;
    bool descending = false;
    bool operator==(const SortAttributes&) const = default;
};

/// dot: result[.., m, n] = acc + sum_k a[.., m, k] * b[.., k, n], with a or b stored transposed.
struct DotAttributes {
    bool transpose_a = false;  ///< a is [.., k, m]
    bool transpose_b = false;  ///< b is [.., n, k]
    Precision precision = Precision::ieee;
    bool operator==(const DotAttributes&) const = default;
};

struct TextAttributes {
    std::string text;
    bool operator==(const TextAttributes&) const = default;
};

struct CallAttributes {
    std::shared_ptr<const Function> callee;
    bool operator==(const CallAttributes&) const = default;
};

using Attributes =
    std::variant<NoAttributes, ConstantAttributes, AxisAttributes, MathAttributes, AccessAttributes,
                 PermutationAttributes, SliceAttributes, ReduceAttributes, CombineAttributes,
                 SortAttributes, DotAttributes, TextAttributes, CallAttributes>;

struct Block;

struct Instruction {
    Op op = Op::yield;
    std::vector<Value> operands;
    std::vector<Value> results;
    Attributes attributes;
    std::vector<Block> blocks;  ///< bodies of for_loop (1), while_loop (2), if_else (2)
    Location location;

    Value result() const { return results.at(0); }
    template <typename T>
    const T& get() const {
        return std::get<T>(attributes);
    }
    template <typename T>
    T& get() {
        return std::get<T>(attributes);
    }
};

/// The mod that a call or an associative_scan applies; nullptr for other instructions.
const Function* callee_of(const Instruction& instruction);

/// A list of instructions that ends with `yield`. Values of the enclosing blocks are visible in it.
struct Block {
    std::vector<Value> arguments;
    std::vector<Instruction> body;

    const Instruction& terminator() const { return body.back(); }
};

/// The caller's hints to the code generators; none changes results.
struct CompileHints {
    static constexpr int kMax = 1024;
    int num_warps = 0;   ///< 0: the compiler chooses
    int num_stages = 0;  ///< 0: the compiler chooses
    bool operator==(const CompileHints&) const = default;
};

/// A kernel (parameters are Refs and scalars, body yields nothing) or a mod (rank-0 parameters,
/// body yields its result). Value semantics: a copy is deep.
class Function {
  public:
    std::string name;
    Block body;                      ///< body.arguments are the parameters
    std::vector<std::int64_t> grid;  ///< extents of the grid axes, last fastest; kDynamic allowed
    CompileHints hints;

    Value add_value(Type type);
    Value add_ref(RefType type);
    Value add_parameter(Type type, std::string parameter_name);
    Value add_parameter(RefType type, std::string parameter_name);

    bool is_ref(Value value) const;
    const Type& type(Value value) const;         ///< InternalError for a Ref
    const RefType& ref_type(Value value) const;  ///< InternalError for a tile
    void set_type(Value value, Type type);
    const std::string& value_name(Value value) const;  ///< a hint for printing; may be empty
    void set_value_name(Value value, std::string hint);
    std::size_t num_values() const { return values_.size(); }
    const std::vector<Value>& parameters() const { return body.arguments; }

  private:
    struct ValueInfo {
        std::variant<Type, RefType> type;
        std::string name;
    };
    std::deque<ValueInfo> values_;  // references from type() stay valid when values are added
};

/// Calls `visit(instruction)` for every instruction in program order, outer before inner.
template <typename BlockType, typename Visitor>
void walk(BlockType& block, Visitor&& visit) {
    for (auto& instruction : block.body) {
        visit(instruction);
        for (auto& inner : instruction.blocks) walk(inner, visit);
    }
}

}  // namespace tilewright::ir
