// The derivative of each op.
#include "ir/passes/derivatives.h"

#include <array>
#include <numbers>

#include "ir/passes/scan_derivatives.h"
#include "support/check.h"

namespace tilewright::ir {

DType gradient_dtype(DType dtype) {
    return dtype == DType::f64 ? DType::f64 : DType::f32;
}

Value Derivatives::broadcast_condition(Value condition, const Shape& shape) {
    return b_.type(condition).is_scalar() && shape.rank() > 0 ? b_.broadcast(condition, shape)
                                                              : condition;
}

Cotangent Derivatives::where(Value condition, Cotangent d) {
    const Shape shape = b_.type(d.value).shape;
    condition = broadcast_condition(condition, shape);
    if (!d.condition) return {d.value, condition};
    return {d.value,
            b_.binary(Op::bitwise_and, broadcast_condition(d.condition, shape), condition)};
}

Value Derivatives::materialise(Cotangent d) {
    return d.condition ? b_.select(d.condition, d.value, like(d.value, 0)) : d.value;
}

Cotangent Derivatives::add(Cotangent a, Cotangent b) {
    if (!a) return b;
    if (!b) return a;
    if (a.condition == b.condition) return {b_.binary(Op::add, a.value, b.value), a.condition};
    const Value sum = b_.binary(Op::add, materialise(a), materialise(b));
    if (!a.condition || !b.condition) return {sum, {}};
    const Shape shape = b_.type(sum).shape;
    return {sum, b_.binary(Op::bitwise_or, broadcast_condition(a.condition, shape),
                           broadcast_condition(b.condition, shape))};
}

std::vector<Cotangent> Derivatives::refuse(const Instruction& instruction, std::string_view what) {
    if (refusal_.empty()) refusal_ = fmt::format("expected ops with a derivative but got {}", what);
    return std::vector<Cotangent>(instruction.operands.size());
}

std::vector<Cotangent> Derivatives::operands(const Instruction& instruction,
                                             std::span<const Cotangent> results) {
    if (instruction.op == Op::associative_scan) return associative_scan(instruction, results);
    if (results.size() != 1) return refuse(instruction, name(instruction.op));
    return one_result(instruction, results[0]);
}

std::vector<Cotangent> Derivatives::one_result(const Instruction& instruction, Cotangent d) {
    const auto& in = instruction.operands;
    switch (instruction.op) {
        case Op::select:
            return select(instruction, d);
        case Op::clamp:
            return clamp(instruction, d);
        case Op::min:
        case Op::max:
            return extreme(instruction, d);
        case Op::fma:
            return {times(d, wide(in[1])), times(d, wide(in[0])), d};
        case Op::cast:
            return {{b_.cast(d.value, gradient_dtype(b_.type(in[0]).dtype)), d.condition}};
        case Op::reduce:
            return reduce(instruction, d);
        case Op::dot:
            return dot(instruction, d);
        case Op::slice:
            return slice(instruction, d);
        case Op::concatenate:
            return concatenate(instruction, d);
        case Op::scan:
            return scan(instruction, d);
        case Op::broadcast: {
            // Sums over the axes that were repeated.
            Value sum = materialise(d);
            const Shape from = b_.type(in[0]).shape;
            const Shape to = b_.type(sum).shape;
            for (int axis = to.rank() - 1; axis >= 0; --axis) {
                if (from.rank() > 0 && from[axis] == to[axis]) continue;
                sum = b_.reduce(Reduction::sum, sum, axis);
                if (from.rank() > 0) sum = b_.expand_dims(sum, axis);
            }
            return {{sum, {}}};
        }
        case Op::reshape:
        case Op::expand_dims:
            return {{b_.reshape(materialise(d), b_.type(in[0]).shape), {}}};
        case Op::transpose: {
            const auto& forward = instruction.get<PermutationAttributes>().permutation;
            std::vector<int> back(forward.size());
            for (std::size_t i = 0; i < forward.size(); ++i) {
                back[forward[i]] = static_cast<int>(i);
            }
            return {{b_.transpose(materialise(d), back), {}}};
        }
        default:
            break;
    }
    if (in.size() == 1) return unary(instruction, d);
    if (in.size() == 2 && is_elementwise(instruction.op)) return binary(instruction, d);
    return refuse(instruction, name(instruction.op));
}

std::vector<Cotangent> Derivatives::unary(const Instruction& instruction, Cotangent d) {
    const Value x = wide(instruction.operands[0]), y = wide(instruction.result());
    const auto divided = [&](Value by) -> Cotangent {
        return {b_.binary(Op::div, d.value, by), d.condition};
    };
    switch (instruction.op) {
        case Op::neg:
            return {negated(d)};
        case Op::abs: {
            const Value down = b_.binary(Op::lt, x, like(x, 0));
            const Value signed_value = b_.select(down, b_.unary(Op::neg, d.value), d.value);
            return {where(b_.binary(Op::ne, x, like(x, 0)), {signed_value, d.condition})};
        }
        case Op::exp:
            return {times(d, y)};
        case Op::exp2:
            return {times(d, mul(y, like(y, std::numbers::ln2)))};
        case Op::expm1:
            return {times(d, b_.binary(Op::add, y, like(y, 1)))};
        case Op::log:
            return {divided(x)};
        case Op::log2:
            return {divided(mul(x, like(x, std::numbers::ln2)))};
        case Op::log1p:
            return {divided(b_.binary(Op::add, x, like(x, 1)))};
        case Op::tanh:  // (1 - y)(1 + y), which is accurate near y = 1
            return {times(
                d, mul(b_.binary(Op::sub, like(y, 1), y), b_.binary(Op::add, like(y, 1), y)))};
        case Op::logistic:
            return {times(d, mul(y, b_.binary(Op::sub, like(y, 1), y)))};
        case Op::erf: {
            const Value slope = b_.unary(Op::exp, b_.unary(Op::neg, mul(x, x)));
            return {times(d, mul(slope, like(x, 2 * std::numbers::inv_sqrtpi)))};
        }
        case Op::erfc: {
            const Value slope = b_.unary(Op::exp, b_.unary(Op::neg, mul(x, x)));
            return {times(d, mul(slope, like(x, -2 * std::numbers::inv_sqrtpi)))};
        }
        case Op::cbrt:  // y / (3 x) would be NaN at 0, where the derivative is infinite
            return {divided(mul(mul(y, y), like(y, 3)))};
        case Op::sin:
            return {times(d, b_.unary(Op::cos, x))};
        case Op::cos:
            return {negated(times(d, b_.unary(Op::sin, x)))};
        case Op::sqrt:
            return {divided(mul(y, like(y, 2)))};
        case Op::rsqrt:
            return {times(d, mul(b_.binary(Op::div, y, x), like(y, -0.5)))};
        case Op::sign:
        case Op::floor:
        case Op::ceil:
        case Op::round:
        case Op::bitcast:
            return {{}};
        default:
            return refuse(instruction, name(instruction.op));
    }
}

std::vector<Cotangent> Derivatives::binary(const Instruction& instruction, Cotangent d) {
    const Value a = wide(instruction.operands[0]), b = wide(instruction.operands[1]);
    const Value y = wide(instruction.result());
    switch (instruction.op) {
        case Op::add:
            return {d, d};
        case Op::sub:
            return {d, negated(d)};
        case Op::mul:
            return {times(d, b), times(d, a)};
        case Op::div: {
            const Cotangent by_a{b_.binary(Op::div, d.value, b), d.condition};
            return {by_a, negated(times(by_a, y))};
        }
        case Op::floordiv:
            return {{}, {}};
        case Op::rem:
        case Op::floormod: {
            // y = a - b * n with an integer n = (a - y) / b that is locally constant.
            const Value n = b_.unary(Op::round, b_.binary(Op::div, b_.binary(Op::sub, a, y), b));
            return {d, negated(times(d, n))};
        }
        case Op::pow: {
            const Value lower = b_.binary(Op::pow, a, b_.binary(Op::sub, b, like(b, 1)));
            const Cotangent by_a = times(d, mul(b, lower));
            const Cotangent by_b = times(d, mul(y, b_.unary(Op::log, a)));
            return {where(b_.binary(Op::ne, b, like(b, 0)), by_a),
                    where(b_.binary(Op::gt, a, like(a, 0)), by_b)};
        }
        default:
            return refuse(instruction, name(instruction.op));
    }
}

std::vector<Cotangent> Derivatives::select(const Instruction& instruction, Cotangent d) {
    const Value condition = instruction.operands[0];
    return {{}, where(condition, d), where(b_.unary(Op::bitwise_not, condition), d)};
}

std::vector<Cotangent> Derivatives::clamp(const Instruction& instruction, Cotangent d) {
    const Value x = wide(instruction.operands[0]), low = wide(instruction.operands[1]),
                high = wide(instruction.operands[2]);
    // min(max(x, low), high): at a bound the gradient goes to x, and high wins over low.
    const Value below = b_.binary(Op::lt, x, low), above = b_.binary(Op::gt, x, high);
    const Value crossed = b_.binary(Op::gt, low, high);
    const auto either = [&](Value p, Value q) { return b_.binary(Op::bitwise_or, p, q); };
    const auto no = [&](Value p) { return b_.unary(Op::bitwise_not, p); };
    const Value to_high = either(above, crossed);
    return {where(no(either(below, to_high)), d),
            where(b_.binary(Op::bitwise_and, below, no(crossed)), d), where(to_high, d)};
}

std::vector<Cotangent> Derivatives::extreme(const Instruction& instruction, Cotangent d) {
    const Value a = wide(instruction.operands[0]), b = wide(instruction.operands[1]);
    const bool is_max = instruction.op == Op::max;
    // Equal operands share the cotangent.
    const Value half =
        b_.select(b_.binary(Op::eq, a, b), mul(d.value, like(d.value, 0.5)), d.value);
    const Cotangent shared{half, d.condition};
    return {where(b_.binary(is_max ? Op::ge : Op::le, a, b), shared),
            where(b_.binary(is_max ? Op::ge : Op::le, b, a), shared)};
}

std::vector<Cotangent> Derivatives::reduce(const Instruction& instruction, Cotangent d) {
    const auto& attributes = instruction.get<ReduceAttributes>();
    const Value x = instruction.operands[0];
    const Shape shape = b_.type(x).shape;
    const auto spread = [&](Value value) {
        return b_.broadcast(b_.expand_dims(value, attributes.axis), shape);
    };
    const Value all = spread(materialise(d));
    if (attributes.kind == Reduction::sum) return {{all, {}}};
    if (attributes.kind != Reduction::max && attributes.kind != Reduction::min) {
        return refuse(instruction, fmt::format("reduce {}", name(attributes.kind)));
    }
    // Equal extremes share the cotangent.
    const Value hit = b_.binary(Op::eq, wide(x), spread(wide(instruction.result())));
    const Value ones = b_.cast(hit, b_.type(all).dtype);
    const Value count = spread(b_.reduce(Reduction::sum, ones, attributes.axis));
    return {where(hit, {b_.binary(Op::div, all, count), {}})};
}

std::vector<Cotangent> Derivatives::dot(const Instruction& instruction, Cotangent d) {
    const DotAttributes& attributes = instruction.get<DotAttributes>();
    const Value a = wide(instruction.operands[0]), b = wide(instruction.operands[1]);
    const Value dc = materialise(d);
    const auto product = [&](Value x, Value y, bool transpose_x, bool transpose_y) {
        DotAttributes made = attributes;
        made.transpose_a = transpose_x;
        made.transpose_b = transpose_y;
        return Cotangent{b_.dot(x, y, {}, made), {}};
    };
    // dA = dC B', dB = A' dC, each stored as its operand is.
    std::vector<Cotangent> result{
        attributes.transpose_a ? product(b, dc, attributes.transpose_b, true)
                               : product(dc, b, false, !attributes.transpose_b),
        attributes.transpose_b ? product(dc, a, true, attributes.transpose_a)
                               : product(a, dc, !attributes.transpose_a, false)};
    if (instruction.operands.size() > 2) result.push_back(d);
    return result;
}

Value Derivatives::part(Value value, int axis, std::int64_t first, std::int64_t count) {
    const Shape shape = b_.type(value).shape;
    if (count == shape[axis]) return value;
    SliceAttributes slice;
    for (int a = 0; a < shape.rank(); ++a) {
        slice.starts.push_back(a == axis ? first : 0);
        slice.sizes.push_back(a == axis ? count : shape[a]);
        slice.strides.push_back(1);
    }
    return b_.slice(value, slice);
}

Value Derivatives::padded(Value value, int axis, std::int64_t before, std::int64_t after) {
    const Type type = b_.type(value);
    const auto zeros = [&](std::int64_t count) {
        std::vector<std::int64_t> extents(type.shape.dims().begin(), type.shape.dims().end());
        extents[static_cast<std::size_t>(axis)] = count;
        return b_.constant({type.dtype, Shape(extents)}, 0);
    };
    std::vector<Value> parts;
    if (before > 0) parts.push_back(zeros(before));
    parts.push_back(value);
    if (after > 0) parts.push_back(zeros(after));
    return parts.size() == 1 ? value : b_.concatenate(parts, axis);
}

std::vector<Cotangent> Derivatives::slice(const Instruction& instruction, Cotangent d) {
    const auto& [starts, sizes, strides] = instruction.get<SliceAttributes>();
    const Shape from = b_.type(instruction.operands[0]).shape;
    Value value = materialise(d);
    for (int axis = 0; axis < from.rank(); ++axis) {
        const auto at = static_cast<std::size_t>(axis);
        std::int64_t length = sizes[at];
        if (strides[at] > 1 && length > 0) {
            // Each element is followed by the zeros of those that the slice skips.
            value = padded(b_.expand_dims(value, axis + 1), axis + 1, 0, strides[at] - 1);
            std::vector<std::int64_t> extents;
            const Shape shape = b_.type(value).shape;
            for (int a = 0; a < shape.rank(); ++a) {
                if (a == axis + 1) continue;
                extents.push_back(a == axis ? length * strides[at] : shape[a]);
            }
            value = b_.reshape(value, Shape(extents));
            length = std::min(length * strides[at], from[axis] - starts[at]);
            value = part(value, axis, 0, length);
        }
        value = padded(value, axis, starts[at], from[axis] - starts[at] - length);
    }
    return {{value, {}}};
}

std::vector<Cotangent> Derivatives::concatenate(const Instruction& instruction, Cotangent d) {
    const int axis = instruction.get<AxisAttributes>().axis;
    const Value value = materialise(d);
    std::vector<Cotangent> parts;
    std::int64_t first = 0;
    for (const Value operand : instruction.operands) {
        const std::int64_t count = b_.type(operand).shape[axis];
        parts.push_back({part(value, axis, first, count), {}});
        first += count;
    }
    return parts;
}

std::vector<Cotangent> Derivatives::scan(const Instruction& instruction, Cotangent d) {
    const auto& how = instruction.get<ReduceAttributes>();
    if (how.kind == Reduction::sum)
        return {
            {b_.scan(Reduction::sum, materialise(d), how.axis, !how.reverse, how.exclusive), {}}};
    const auto op = how.kind == Reduction::prod  ? Op::mul
                    : how.kind == Reduction::max ? Op::max
                    : how.kind == Reduction::min ? Op::min
                                                 : Op::yield;
    if (op == Op::yield || how.exclusive)
        return refuse(instruction,
                      fmt::format("scan {}{}", name(how.kind), how.exclusive ? " exclusive" : ""));
    auto combine = std::make_shared<Function>();
    combine->name = "combine";
    const Type element{b_.type(instruction.operands[0]).dtype, {}};
    const Value before = combine->add_parameter(element, "a"),
                after = combine->add_parameter(element, "b");
    Builder body(*combine);
    const Value both = body.binary(op, before, after);
    body.yield(std::array{both});
    const FunctionScan whole{combine, how.axis,           how.reverse, instruction.operands,
                             {},      instruction.results};
    return scan_cotangents(b_, whole, std::array{d}).operands;
}

std::vector<Cotangent> Derivatives::associative_scan(const Instruction& instruction,
                                                     std::span<const Cotangent> results) {
    const auto& [combine, axis, reverse] = instruction.get<CombineAttributes>();
    const auto split = instruction.operands.begin() + std::ssize(instruction.results);
    const FunctionScan scan{combine,
                            axis,
                            reverse,
                            {instruction.operands.begin(), split},
                            {split, instruction.operands.end()},
                            instruction.results};
    ScanCotangents made = scan_cotangents(b_, scan, results);
    if (made.refusal.empty()) return made.operands;
    if (refusal_.empty()) refusal_ = fmt::format("associative_scan: {}", made.refusal);
    return std::vector<Cotangent>(instruction.operands.size());
}

}  // namespace tilewright::ir
