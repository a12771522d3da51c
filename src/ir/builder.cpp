// Appends instructions.
#include "ir/builder.h"

#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

// An instruction as one expression, which keeps the call sites one line long.
Instruction with(Op op, std::vector<Value> operands, Attributes attributes = {}) {
    Instruction instruction;
    instruction.op = op;
    instruction.operands = std::move(operands);
    instruction.attributes = std::move(attributes);
    return instruction;
}

Instruction access_instruction(Op op, Value ref, std::span<const IndexOperand> indices,
                               std::initializer_list<Value> values, Value mask, Value other) {
    AccessAttributes attributes;
    std::vector<Value> operands = {ref};
    for (const IndexOperand& index : indices) {
        attributes.indices.push_back(index.index);
        operands.push_back(index.value);
    }
    operands.insert(operands.end(), values);
    if (mask) operands.push_back(mask);
    if (other) operands.push_back(other);
    attributes.has_mask = static_cast<bool>(mask);
    attributes.has_other = static_cast<bool>(other);
    return with(op, std::move(operands), std::move(attributes));
}

// Fills a block of a control-flow instruction: arguments of `types`, then what `body` appends.
template <typename Body>
void fill_block(Builder& builder, Block& block, std::span<const Type> types, Body&& body) {
    for (const Type& type : types) block.arguments.push_back(builder.function().add_value(type));
    builder.push_block(block);
    try {
        builder.yield(body(std::span<const Value>(block.arguments)));
    } catch (...) {
        builder.pop_block();
        throw;
    }
    builder.pop_block();
}

std::vector<Type> types_of(const Builder& builder, std::span<const Value> values) {
    std::vector<Type> types;
    for (Value value : values) types.push_back(builder.type(value));
    return types;
}

}  // namespace

Builder::Builder(Function& function) : function_(&function), blocks_{&function.body} {}

const std::vector<Value>& Builder::append(Instruction instruction, const Type* requested) {
    if (instruction.location.file.empty()) instruction.location = location_;
    std::vector<Type> types;
    try {
        types = infer_types(*function_, instruction, requested);
    } catch (const UserError& error) {
        if (instruction.location.file.empty()) throw;
        throw UserError(fmt::format("{} (at {}:{})", error.what(), instruction.location.file,
                                    instruction.location.line));
    }
    instruction.results.clear();
    for (const Type& type : types) instruction.results.push_back(function_->add_value(type));
    block().body.push_back(std::move(instruction));
    return block().body.back().results;
}

Value Builder::constant(Type type, double value) {
    const ConstantAttributes attributes{encode(type.dtype, value)};
    return append(with(Op::constant, {}, attributes), &type).at(0);
}

Value Builder::constant_int(Type type, std::int64_t value) {
    const ConstantAttributes attributes{encode_int(type.dtype, value)};
    return append(with(Op::constant, {}, attributes), &type).at(0);
}

Value Builder::iota(Type type, int axis) {
    return append(with(Op::iota, {}, AxisAttributes{axis}), &type).at(0);
}

Value Builder::program_id(int axis) {
    return append(with(Op::program_id, {}, AxisAttributes{axis})).at(0);
}

Value Builder::num_programs(int axis) {
    return append(with(Op::num_programs, {}, AxisAttributes{axis})).at(0);
}

Value Builder::extent(Value ref, int dim) {
    return append(with(Op::extent, {ref}, AxisAttributes{dim})).at(0);
}

Value Builder::load(Value ref, std::span<const IndexOperand> indices, Value mask, Value other) {
    return append(access_instruction(Op::load, ref, indices, {}, mask, other)).at(0);
}

void Builder::store(Value ref, std::span<const IndexOperand> indices, Value value, Value mask) {
    append(access_instruction(Op::store, ref, indices, {value}, mask, {}));
}

Value Builder::atomic(Op op, Value ref, std::span<const IndexOperand> indices, Value value,
                      Value mask) {
    const bool known = op == Op::atomic_add || op == Op::atomic_max || op == Op::atomic_min ||
                       op == Op::atomic_xchg;
    TW_ASSERT(known, "{} is no atomic of one value", name(op));
    return append(access_instruction(op, ref, indices, {value}, mask, {})).at(0);
}

Value Builder::atomic_cas(Value ref, std::span<const IndexOperand> indices, Value expected,
                          Value desired, Value mask) {
    return append(access_instruction(Op::atomic_cas, ref, indices, {expected, desired}, mask, {}))
        .at(0);
}

Value Builder::unary(Op op, Value a, bool approx) {
    TW_ASSERT(info(op).op_class == OpClass::unary, "{} is not unary", name(op));
    if (approx && !info(op).approx) {
        user_error(name(op), "expected an op with an approximate form for approx = true");
    }
    return append(with(op, {a}, MathAttributes{approx})).at(0);
}

Value Builder::binary(Op op, Value a, Value b) {
    const OpClass op_class = info(op).op_class;
    TW_ASSERT(op_class == OpClass::binary || op_class == OpClass::comparison, "{} is not binary",
              name(op));
    return append(with(op, {a, b})).at(0);
}

Value Builder::select(Value condition, Value if_true, Value if_false) {
    return append(with(Op::select, {condition, if_true, if_false})).at(0);
}

Value Builder::clamp(Value value, Value low, Value high) {
    return append(with(Op::clamp, {value, low, high})).at(0);
}

Value Builder::fma(Value a, Value b, Value c) {
    return append(with(Op::fma, {a, b, c})).at(0);
}

Value Builder::cast(Value a, DType dtype) {
    if (type(a).dtype == dtype) return a;
    const Type requested{dtype, type(a).shape};
    return append(with(Op::cast, {a}), &requested).at(0);
}

Value Builder::bitcast(Value a, DType dtype) {
    if (type(a).dtype == dtype) return a;
    const Type requested{dtype, type(a).shape};
    return append(with(Op::bitcast, {a}), &requested).at(0);
}

Value Builder::broadcast(Value a, Shape shape) {
    if (type(a).shape == shape) return a;
    const Type requested{type(a).dtype, shape};
    return append(with(Op::broadcast, {a}), &requested).at(0);
}

Value Builder::reshape(Value a, Shape shape) {
    if (type(a).shape == shape) return a;
    const Type requested{type(a).dtype, shape};
    return append(with(Op::reshape, {a}), &requested).at(0);
}

Value Builder::transpose(Value a, std::span<const int> permutation) {
    const PermutationAttributes attributes{{permutation.begin(), permutation.end()}};
    return append(with(Op::transpose, {a}, attributes)).at(0);
}

Value Builder::expand_dims(Value a, int axis) {
    return append(with(Op::expand_dims, {a}, AxisAttributes{axis})).at(0);
}

Value Builder::slice(Value a, SliceAttributes attributes) {
    return append(with(Op::slice, {a}, std::move(attributes))).at(0);
}

Value Builder::concatenate(std::span<const Value> parts, int axis) {
    return append(with(Op::concatenate, {parts.begin(), parts.end()}, AxisAttributes{axis})).at(0);
}

Value Builder::reduce(Reduction kind, Value a, int axis) {
    return append(with(Op::reduce, {a}, ReduceAttributes{kind, axis, false, false})).at(0);
}

Value Builder::scan(Reduction kind, Value a, int axis, bool reverse, bool exclusive) {
    return append(with(Op::scan, {a}, ReduceAttributes{kind, axis, reverse, exclusive})).at(0);
}

std::vector<Value> Builder::associative_scan(std::shared_ptr<const Function> combine,
                                             std::span<const Value> operands, int axis,
                                             bool reverse) {
    return append(with(Op::associative_scan, {operands.begin(), operands.end()},
                       CombineAttributes{std::move(combine), axis, reverse}));
}

Value Builder::sort(Value a, SortAttributes attributes) {
    return append(with(Op::sort, {a}, attributes)).at(0);
}

Value Builder::argsort(Value a, SortAttributes attributes) {
    return append(with(Op::argsort, {a}, attributes)).at(0);
}

Value Builder::dot(Value a, Value b, Value acc, DotAttributes attributes) {
    std::vector<Value> operands = {a, b};
    if (acc) operands.push_back(acc);
    return append(with(Op::dot, std::move(operands), attributes)).at(0);
}

Value Builder::random_bits(Value key, Value counter) {
    return append(with(Op::random_bits, {key, counter})).at(0);
}

void Builder::debug_print(std::string format, std::span<const Value> operands) {
    append(with(Op::debug_print, {operands.begin(), operands.end()},
                TextAttributes{std::move(format)}));
}

void Builder::debug_check(Value condition, std::string message) {
    append(with(Op::debug_check, {condition}, TextAttributes{std::move(message)}));
}

std::vector<Value> Builder::for_loop(Value lo, Value hi, Value step, std::span<const Value> init,
                                     const LoopBody& body) {
    Instruction loop = with(Op::for_loop, {lo, hi, step});
    loop.location = location_;
    loop.operands.insert(loop.operands.end(), init.begin(), init.end());
    loop.blocks.resize(1);
    std::vector<Type> types = types_of(*this, init);
    types.insert(types.begin(), Type{DType::i64, {}});
    fill_block(*this, loop.blocks[0], types, [&](std::span<const Value> arguments) {
        return body(arguments[0], arguments.subspan(1));
    });
    return append(std::move(loop));
}

std::vector<Value> Builder::while_loop(std::span<const Value> init, const Condition& condition,
                                       const CarryBody& body) {
    Instruction loop = with(Op::while_loop, {init.begin(), init.end()});
    loop.location = location_;
    loop.blocks.resize(2);
    const std::vector<Type> types = types_of(*this, init);
    fill_block(*this, loop.blocks[0], types, [&](std::span<const Value> carries) {
        return std::vector<Value>{condition(carries)};
    });
    fill_block(*this, loop.blocks[1], types, body);
    return append(std::move(loop));
}

std::vector<Value> Builder::if_else(Value condition, const Branch& then_branch,
                                    const Branch& else_branch) {
    Instruction branch = with(Op::if_else, {condition});
    branch.location = location_;
    branch.blocks.resize(2);
    fill_block(*this, branch.blocks[0], {}, [&](std::span<const Value>) { return then_branch(); });
    fill_block(*this, branch.blocks[1], {}, [&](std::span<const Value>) {
        return else_branch ? else_branch() : std::vector<Value>{};
    });
    return append(std::move(branch));
}

std::vector<Value> Builder::call(std::shared_ptr<const Function> callee,
                                 std::span<const Value> arguments) {
    return append(
        with(Op::call, {arguments.begin(), arguments.end()}, CallAttributes{std::move(callee)}));
}

void Builder::yield(std::span<const Value> values) {
    append(with(Op::yield, {values.begin(), values.end()}));
}

}  // namespace tilewright::ir
