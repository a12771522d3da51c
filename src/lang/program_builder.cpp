// Builds kernels instruction by instruction, for front ends whose graphs are typed.
#include "tilewright/program_builder.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/passes/intervals.h"
#include "ir/passes/range_ops.h"
#include "ir/passes/tile_form.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright {

namespace {

using Value = ProgramBuilder::Value;
using Values = ProgramBuilder::Values;

std::vector<ir::Value> ir_values(std::span<const Value> values) {
    std::vector<ir::Value> result;
    for (const Value value : values) result.push_back({value});
    return result;
}

Values handles(std::span<const ir::Value> values) {
    Values result;
    for (const ir::Value value : values) result.push_back(value.id);
    return result;
}

ir::Value or_none(std::optional<Value> value) {
    return value ? ir::Value{*value} : ir::Value{};
}

ir::Op expect_op(std::string_view name) {
    const std::optional<ir::Op> op = ir::parse_op(name);
    if (!op) user_error("program", "expected an operation of the tile IR but got `{}`", name);
    return *op;
}

ir::Reduction expect_reduction(std::string_view op, std::string_view kind) {
    const auto reduction = ir::parse_reduction(kind);
    if (!reduction) user_error(op, "expected a kind of reduction but got `{}`", kind);
    return *reduction;
}

ir::Attributes attributes_of(ir::Op op, const ProgramBuilder::Attributes& given) {
    switch (op) {
        case ir::Op::iota:
        case ir::Op::program_id:
        case ir::Op::num_programs:
        case ir::Op::extent:
        case ir::Op::expand_dims:
        case ir::Op::concatenate:
            return ir::AxisAttributes{given.axis};
        case ir::Op::transpose:
            return ir::PermutationAttributes{given.permutation};
        case ir::Op::slice:
            return ir::SliceAttributes{given.starts, given.sizes, given.strides};
        case ir::Op::reduce:
        case ir::Op::scan:
            return ir::ReduceAttributes{expect_reduction(ir::name(op), given.kind), given.axis,
                                        given.reverse, false};
        case ir::Op::sort:
        case ir::Op::argsort:
            return ir::SortAttributes{given.axis, given.count, given.descending};
        case ir::Op::dot: {
            const auto precision = ir::parse_precision(given.precision);
            if (!precision) {
                user_error("dot", "expected a precision of ieee, tf32 or tf32x3 but got `{}`",
                           given.precision);
            }
            return ir::DotAttributes{given.transpose_a, given.transpose_b, *precision};
        }
        default:
            break;
    }
    if (ir::info(op).op_class != ir::OpClass::unary) return ir::NoAttributes{};
    if (given.approx && !ir::info(op).approx) {
        user_error(ir::name(op), "expected an op with an approximate form for approx = true");
    }
    return ir::MathAttributes{given.approx};
}

std::optional<IntegerRange> public_range(DType dtype, const ir::Interval& range) {
    if (range.any || (dtype != boolean && range.is_all(dtype))) return {};
    return IntegerRange{range.low, range.high};
}

}  // namespace

struct ProgramBuilder::State {
    ir::Function function;
    ir::Builder builder{function};
    ir::Block constants;
    std::map<std::tuple<DType, std::vector<std::int64_t>, std::uint64_t>, Value> constant_of;
    std::set<std::string, std::less<>> files;  ///< to which locations refer
    ir::Location location;
    ir::TileForms forms{function};
    std::map<ir::Value, ir::Interval> ranges;  ///< those of integers

    /// The value; UserError unless it is one of this program.
    ir::Value expect(Value value) const {
        if (value >= function.num_values()) {
            user_error("program", "expected a value of `{}` but got number {}", function.name,
                       value);
        }
        return {value};
    }

    std::vector<ir::Value> expect(std::span<const Value> values) const {
        for (const Value value : values) expect(value);
        return ir_values(values);
    }

    Value constant(DType dtype, std::span<const std::int64_t> extents, std::uint64_t bits) {
        const auto [place, is_new] =
            constant_of.try_emplace({dtype, {extents.begin(), extents.end()}, bits});
        if (!is_new) return place->second;
        const ir::Type type{dtype, ir::Shape(extents)};
        ir::Instruction instruction;
        instruction.op = ir::Op::constant;
        instruction.attributes = ir::ConstantAttributes{bits};
        instruction.results = {function.add_value(type)};
        note(instruction);
        place->second = instruction.result().id;
        constants.body.push_back(std::move(instruction));
        return place->second;
    }

    ir::Interval range(ir::Value value) const {
        const auto known = ranges.find(value);
        return known != ranges.end() ? known->second
                                     : ir::Interval::all(function.type(value).dtype);
    }

    /// Records what is known about the result of a new instruction.
    void note(const ir::Instruction& made) {
        forms.define(made);
        if (is_float(function.type(made.result()).dtype)) return;
        ranges.emplace(made.result(), ir::result_range(function, made, [&](ir::Value operand) {
                           return range(operand);
                       }));
    }

    std::vector<ir::IndexOperand> indices(std::span<const Index> given) const {
        std::vector<ir::IndexOperand> result;
        for (const Index& index : given) {
            const ir::Value start = expect(index.start);
            if (index.kind == Index::Kind::scalar) {
                result.push_back(ir::IndexOperand::scalar(start));
            } else if (index.kind == Index::Kind::tile) {
                result.push_back(ir::IndexOperand::tile(start));
            } else {
                result.push_back(ir::IndexOperand::slice(start, index.size, index.stride));
            }
        }
        return result;
    }
};

ProgramBuilder::ProgramBuilder(std::string name) : state_(std::make_unique<State>()) {
    state_->function.name = std::move(name);
}

ProgramBuilder::~ProgramBuilder() = default;

Value ProgramBuilder::ref(std::string name, DType dtype, std::vector<std::int64_t> extents,
                          int alias_group) {
    ir::RefType type{dtype, std::move(extents), ir::Space::global, alias_group};
    return state_->function.add_parameter(std::move(type), std::move(name)).id;
}

Value ProgramBuilder::scratch(std::string name, DType dtype, std::vector<std::int64_t> extents) {
    ir::RefType type{dtype, std::move(extents), ir::Space::scratch};
    return state_->function.add_parameter(std::move(type), std::move(name)).id;
}

void ProgramBuilder::add_grid_axis(std::int64_t extent) {
    state_->function.grid.push_back(extent);
}

void ProgramBuilder::set_hints(int num_warps, int num_stages) {
    state_->function.hints = {num_warps, num_stages};
}

void ProgramBuilder::set_location(std::string_view file, int line) {
    auto found = state_->files.find(file);
    if (found == state_->files.end()) found = state_->files.emplace(file).first;
    state_->location = {*found, line};
    state_->builder.set_location(state_->location);
}

Value ProgramBuilder::constant(DType dtype, std::span<const std::int64_t> shape, double value) {
    return state_->constant(dtype, shape, ir::encode(dtype, value));
}

Value ProgramBuilder::constant_int(DType dtype, std::span<const std::int64_t> shape,
                                   std::int64_t value) {
    return state_->constant(dtype, shape, ir::encode_int(dtype, value));
}

Value ProgramBuilder::apply(std::string_view op_name, std::span<const Value> operands, DType dtype,
                            std::span<const std::int64_t> shape, const Attributes& attributes) {
    const ir::Op op = expect_op(op_name);
    const ir::OpClass op_class = ir::info(op).op_class;
    if (op == ir::Op::constant || op_class == ir::OpClass::memory ||
        op_class == ir::OpClass::control || op == ir::Op::debug_print ||
        op == ir::Op::debug_check || op == ir::Op::associative_scan) {
        user_error("program",
                   "expected an operation of one result but got `{}`, which has a "
                   "function of its own",
                   op_name);
    }
    const ir::Type requested{dtype, ir::Shape(shape)};
    ir::Instruction instruction;
    instruction.op = op;
    instruction.operands = state_->expect(operands);
    instruction.attributes = attributes_of(op, attributes);
    const ir::Value result = state_->builder.append(instruction, &requested).at(0);
    const ir::Type& type = state_->function.type(result);
    if (!(type == requested)) {
        user_error(op_name, "expected a result of {} but got {}", ir::to_string(requested),
                   ir::to_string(type));
    }
    instruction.results = {result};
    state_->note(instruction);
    return result.id;
}

Value ProgramBuilder::load(Value ref, std::span<const Index> indices, std::optional<Value> mask,
                           std::optional<Value> other) {
    return state_->builder
        .load(state_->expect(ref), state_->indices(indices), or_none(mask), or_none(other))
        .id;
}

void ProgramBuilder::store(Value ref, std::span<const Index> indices, Value value,
                           std::optional<Value> mask) {
    state_->builder.store(state_->expect(ref), state_->indices(indices), state_->expect(value),
                          or_none(mask));
}

Value ProgramBuilder::atomic(std::string_view op_name, Value ref, std::span<const Index> indices,
                             std::span<const Value> values, std::optional<Value> mask) {
    const ir::Op op = expect_op(op_name);
    const std::vector<ir::Value> given = state_->expect(values);
    const std::size_t wanted = op == ir::Op::atomic_cas ? 2 : 1;
    if (given.size() != wanted || ir::info(op).op_class != ir::OpClass::memory ||
        op == ir::Op::load || op == ir::Op::store) {
        user_error(op_name, "expected an atomic of {} values but got {}", wanted, given.size());
    }
    const ir::Value at = state_->expect(ref);
    const std::vector<ir::IndexOperand> by = state_->indices(indices);
    ir::Builder& builder = state_->builder;
    if (op == ir::Op::atomic_cas) {
        return builder.atomic_cas(at, by, given[0], given[1], or_none(mask)).id;
    }
    return builder.atomic(op, at, by, given[0], or_none(mask)).id;
}

void ProgramBuilder::debug_print(std::string format, std::span<const Value> operands) {
    state_->builder.debug_print(std::move(format), state_->expect(operands));
}

void ProgramBuilder::debug_check(Value condition, std::string message) {
    state_->builder.debug_check(state_->expect(condition), std::move(message));
}

Values ProgramBuilder::for_loop(Value low, Value high, Value step, std::span<const Value> init,
                                const std::function<Values(Value, const Values&)>& body) {
    const auto run = [&](ir::Value i, std::span<const ir::Value> carries) {
        return state_->expect(body(i.id, handles(carries)));
    };
    return handles(state_->builder.for_loop(state_->expect(low), state_->expect(high),
                                            state_->expect(step), state_->expect(init), run));
}

Values ProgramBuilder::while_loop(std::span<const Value> init,
                                  const std::function<Value(const Values&)>& condition,
                                  const std::function<Values(const Values&)>& body) {
    const auto test = [&](std::span<const ir::Value> carries) {
        return state_->expect(condition(handles(carries)));
    };
    const auto run = [&](std::span<const ir::Value> carries) {
        return state_->expect(body(handles(carries)));
    };
    return handles(state_->builder.while_loop(state_->expect(init), test, run));
}

Values ProgramBuilder::if_else(Value condition, const std::function<Values()>& then_branch,
                               const std::function<Values()>& else_branch) {
    const auto run = [&](const std::function<Values()>& branch) {
        return [&] { return state_->expect(branch()); };
    };
    return handles(
        state_->builder.if_else(state_->expect(condition), run(then_branch), run(else_branch)));
}

std::optional<ProgramBuilder::IndexForm> ProgramBuilder::index_form(Value value) const {
    const std::optional<ir::TileForm> form = state_->forms.form(state_->expect(value));
    if (!form) return {};
    IndexForm result{form->offset, {}, form->steps};
    for (const auto& [scalar, factor] : form->terms) {
        result.terms.push_back({scalar.id, state_->function.type(scalar).dtype, factor});
    }
    return result;
}

std::optional<IntegerRange> ProgramBuilder::range(Value value) const {
    const ir::Value known = state_->expect(value);
    const DType dtype = state_->function.type(known).dtype;
    if (is_float(dtype)) return {};
    return public_range(dtype, state_->range(known));
}

std::string ProgramBuilder::text() const {
    ir::Function function = state_->function;
    std::vector<ir::Instruction>& body = function.body.body;
    body.insert(body.begin(), state_->constants.body.begin(), state_->constants.body.end());
    ir::Builder end(function);
    end.set_location(state_->location);
    end.yield({});
    return ir::print(function, true);
}

std::optional<IntegerRange> integer_range(std::string_view op_name, DType in, DType out,
                                          std::span<const IntegerRange> operands) {
    const ir::Op op = expect_op(op_name);
    const std::size_t wanted = op == ir::Op::select || op == ir::Op::clamp   ? 3
                               : ir::info(op).op_class == ir::OpClass::unary ? 1
                                                                             : 2;
    if (!ir::is_elementwise(op) || operands.size() != wanted || is_float(in) || is_float(out)) {
        user_error("integer_range",
                   "expected {} integers for an elementwise operation but got {} "
                   "for `{}`",
                   wanted, operands.size(), op_name);
    }
    const ir::Interval range = ir::elementwise_range(op, in, out, false, [&](std::size_t i) {
        return ir::Interval::integers(operands[i].low, operands[i].high);
    });
    return public_range(out, range);
}

}  // namespace tilewright
