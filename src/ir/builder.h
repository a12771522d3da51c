// Builds functions instruction by instruction; infers and checks every result type.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// Result types of an instruction, from its op, operands and attributes (and, for control flow, its
/// filled blocks). The only definition of typing: the builder, the parser and the verifier call it.
/// `cast`, `bitcast`, `broadcast`, `reshape`, `constant` and `iota` need the result type in
/// `requested`. UserError "[op] expected X but got Y" when the operands do not match.
std::vector<Type> infer_types(const Function& function, const Instruction& instruction,
                              const Type* requested = nullptr);

/// Element type of a dot of such operands: f16, bf16, f8 -> f32; i8, u8 -> i32; others unchanged.
DType dot_result(DType operand);

/// One dimension of a Ref access.
struct IndexOperand {
    Index index;
    Value value;

    static IndexOperand scalar(Value v) { return {{Index::Kind::scalar, 1, 1}, v}; }
    static IndexOperand slice(Value start, std::int64_t size, std::int64_t stride = 1) {
        return {{Index::Kind::slice, size, stride}, start};
    }
    static IndexOperand tile(Value v) { return {{Index::Kind::tile, 1, 1}, v}; }
};

/// Appends instructions to a block of a function. Elementwise operands must have exactly the same
/// type; promotion and implicit broadcasting belong to the kernel language.
class Builder {
  public:
    explicit Builder(Function& function);

    Function& function() { return *function_; }
    const Type& type(Value value) const { return function_->type(value); }

    /// Sets the location of the instructions that follow.
    void set_location(Location location) { location_ = location; }
    /// The block under construction; ScopedBlock pushes and pops nested ones.
    Block& block() { return *blocks_.back(); }
    void push_block(Block& block) { blocks_.push_back(&block); }
    void pop_block() { blocks_.pop_back(); }

    Value constant(Type type, double value);  ///< float or integer-valued
    Value constant_int(Type type, std::int64_t value);
    Value iota(Type type, int axis);
    Value program_id(int axis);
    Value num_programs(int axis);
    Value extent(Value ref, int dim);

    Value load(Value ref, std::span<const IndexOperand> indices, Value mask = {}, Value other = {});
    void store(Value ref, std::span<const IndexOperand> indices, Value value, Value mask = {});
    /// op: atomic_add, atomic_max, atomic_min or atomic_xchg. Returns the old values.
    Value atomic(Op op, Value ref, std::span<const IndexOperand> indices, Value value,
                 Value mask = {});
    Value atomic_cas(Value ref, std::span<const IndexOperand> indices, Value expected,
                     Value desired, Value mask = {});

    Value unary(Op op, Value a, bool approx = false);
    Value binary(Op op, Value a, Value b);  ///< arithmetic, bitwise and comparisons
    Value select(Value condition, Value if_true, Value if_false);
    Value clamp(Value value, Value low, Value high);
    Value fma(Value a, Value b, Value c);
    Value cast(Value a, DType dtype);  ///< returns `a` itself when the dtype is the same
    Value bitcast(Value a, DType dtype);

    Value broadcast(Value a, Shape shape);  ///< returns `a` itself when the shape is the same
    Value reshape(Value a, Shape shape);
    Value transpose(Value a, std::span<const int> permutation);
    Value expand_dims(Value a, int axis);
    Value slice(Value a, SliceAttributes attributes);
    Value concatenate(std::span<const Value> parts, int axis);

    Value reduce(Reduction kind, Value a, int axis);  ///< argmax and argmin return i32
    Value scan(Reduction kind, Value a, int axis, bool reverse = false, bool exclusive = false);
    /// `operands`: those to be scanned, and then scalars that `combine` takes after its elements.
    std::vector<Value> associative_scan(std::shared_ptr<const Function> combine,
                                        std::span<const Value> operands, int axis,
                                        bool reverse = false);
    Value sort(Value a, SortAttributes attributes);
    Value argsort(Value a, SortAttributes attributes);  ///< i32
    /// f16, bf16 and f8 operands accumulate in and give f32; others give their own dtype. acc may
    /// be none.
    Value dot(Value a, Value b, Value acc = {}, DotAttributes attributes = {});

    Value random_bits(Value key, Value counter);
    void debug_print(std::string format, std::span<const Value> operands);
    void debug_check(Value condition, std::string message);

    using LoopBody = std::function<std::vector<Value>(Value iv, std::span<const Value> carries)>;
    using CarryBody = std::function<std::vector<Value>(std::span<const Value> carries)>;
    using Condition = std::function<Value(std::span<const Value> carries)>;
    using Branch = std::function<std::vector<Value>()>;

    /// iv runs over lo, lo + step, ... < hi (i64 scalars; step > 0).
    std::vector<Value> for_loop(Value lo, Value hi, Value step, std::span<const Value> init,
                                const LoopBody& body);
    std::vector<Value> while_loop(std::span<const Value> init, const Condition& condition,
                                  const CarryBody& body);
    std::vector<Value> if_else(Value condition, const Branch& then_branch,
                               const Branch& else_branch);
    std::vector<Value> call(std::shared_ptr<const Function> callee,
                            std::span<const Value> arguments);
    void yield(std::span<const Value> values);

    /// Appends an instruction and infers its results; every method above ends here. The results are
    /// valid until the next append. A UserError also names the location, if one is set.
    const std::vector<Value>& append(Instruction instruction, const Type* requested = nullptr);

  private:
    Function* function_;
    std::vector<Block*> blocks_;
    Location location_;
};

}  // namespace tilewright::ir
