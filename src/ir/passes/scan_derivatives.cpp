// The derivative of a scan with a function: a scan of affine maps in the other direction.
#include "ir/passes/scan_derivatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "ir/passes/reverse_sweep.h"
#include "ir/passes/straighten.h"

namespace tilewright::ir {
namespace {

/// A partial derivative of a mod: a known constant, or a result of the mod that computes it.
struct Partial {
    enum class Kind { zero, one, value };
    Kind kind = Kind::zero;
    std::size_t place = 0;
    bool is_zero() const { return kind == Kind::zero; }
};

/// The partial derivatives of a mod's results by its parameters.
struct Jacobian {
    Function mod;  ///< takes the parameters, yields the partials that are no constants
    std::vector<std::vector<Partial>> partials;  ///< [result][parameter]
    std::string refusal;
};

std::optional<double> constant_of(const Function& function, Value value) {
    for (const Instruction& made : function.body.body) {
        if (made.op != Op::constant || made.result() != value) continue;
        return std::bit_cast<double>(made.get<ConstantAttributes>().bits);
    }
    return std::nullopt;
}

void simplify_partials(Function& function) {
    for (bool changed = true; changed;) {
        changed = fold(function).changed();
        changed |= cse(function).changed();
        changed |= dce(function).changed();
    }
}

Jacobian jacobian_of(const Function& mod) {
    Jacobian made{mod, {}, {}};
    Function& function = made.mod;
    made.refusal = try_straighten(function).refusal;
    if (!made.refusal.empty()) return made;
    const std::vector<Value> outputs = function.body.terminator().operands;
    const std::vector<Value> parameters = function.parameters();
    function.body.body.pop_back();
    const std::vector<Instruction> forward = function.body.body;
    Builder builder(function);

    std::vector<Value> yielded;
    for (const Value output : outputs) {
        std::vector<Partial>& row = made.partials.emplace_back(parameters.size());
        const DType dtype = function.type(output).dtype;
        if (!is_float(dtype)) continue;
        ReverseSweep sweep(builder);
        for (const Value parameter : parameters) {
            if (is_float(function.type(parameter).dtype)) sweep.activate(parameter);
        }
        for (const Instruction& instruction : forward) sweep.mark(instruction);
        sweep.accumulate(output, {builder.constant({gradient_dtype(dtype), {}}, 1), {}});
        for (std::size_t i = forward.size(); i-- > 0;) sweep.backward(forward[i]);
        if (!sweep.refusal().empty()) {
            made.refusal = sweep.refusal();
            return made;
        }
        for (std::size_t p = 0; p < parameters.size(); ++p) {
            const Cotangent d = sweep.cotangent(parameters[p]);
            if (!d) continue;
            row[p] = {Partial::Kind::value, yielded.size()};
            yielded.push_back(sweep.derivatives().materialise(d));
        }
    }
    builder.yield(yielded);
    simplify_partials(function);

    // Those that turned out to be constants are no results.
    std::vector<Value>& results = function.body.body.back().operands;
    std::vector<Value> kept;
    for (std::vector<Partial>& row : made.partials) {
        for (Partial& partial : row) {
            if (partial.is_zero()) continue;
            const Value value = results[partial.place];
            const auto constant = constant_of(function, value);
            if (constant && (*constant == 0 || *constant == 1)) {
                partial = {*constant == 0 ? Partial::Kind::zero : Partial::Kind::one, 0};
                continue;
            }
            partial.place = kept.size();
            kept.push_back(value);
        }
    }
    results = kept;
    dce(function);
    return made;
}

/// The composition of affine maps of `count` values, as a mod: v -> M v + c, of which `count`
/// squared elements of M come first, row by row. What comes before is applied first.
std::shared_ptr<const Function> composed_maps(DType dtype, std::size_t count) {
    auto made = std::make_shared<Function>();
    made->name = "affine";
    const std::size_t size = count * count + count;
    std::array<std::vector<Value>, 2> maps;
    for (std::size_t which = 0; which < 2; ++which) {
        for (std::size_t i = 0; i < size; ++i) {
            maps[which].push_back(made->add_parameter(
                Type{dtype, {}}, fmt::format("{}{}", which == 0 ? "first" : "next", i)));
        }
    }
    Builder builder(*made);
    const auto& [first, next] = maps;
    std::vector<Value> results;
    // Column `count` of a map is its constant, which the next map's constant is added to.
    for (std::size_t column = 0; column <= count; ++column) {
        for (std::size_t row = 0; row < count; ++row) {
            const auto at = [&](const std::vector<Value>& map, std::size_t r, std::size_t c) {
                return map[c == count ? count * count + r : r * count + c];
            };
            Value sum = column == count ? at(next, row, count) : Value{};
            for (std::size_t k = 0; k < count; ++k) {
                const Value product =
                    builder.binary(Op::mul, at(next, row, k), at(first, k, column));
                sum = sum ? builder.binary(Op::add, product, sum) : product;
            }
            results.push_back(sum);
        }
    }
    // Column by column above, row by row in the result.
    std::vector<Value> ordered(size);
    for (std::size_t column = 0; column <= count; ++column) {
        for (std::size_t row = 0; row < count; ++row) {
            ordered[column == count ? count * count + row : row * count + column] =
                results[column * count + row];
        }
    }
    builder.yield(ordered);
    return made;
}

class ScanDerivative {
  public:
    ScanDerivative(Builder& builder, const FunctionScan& scan, std::span<const Cotangent> results)
        : b_(builder),
          scan_(scan),
          count_(scan.elements.size()),
          shape_(builder.type(scan.elements[0]).shape),
          cotangents_(results.begin(), results.end()),
          jacobian_(jacobian_of(*scan.combine)) {}

    ScanCotangents run() {
        ScanCotangents made;
        made.refusal = jacobian_.refusal;
        if (!made.refusal.empty()) return made;
        if (shape_[scan_.axis] <= 1) {
            made.operands = cotangents_;
            made.operands.resize(count_ + scan_.captured.size());
            return made;
        }
        find_live();
        evaluate();
        for (const std::vector<std::size_t>& group : groups()) {
            if (group.size() > kMostCoupledResults) {
                made.refusal = fmt::format(
                    "expected a scan of which at most {} results depend on each other, since its "
                    "derivative scans m * m + m tiles for m of them, but got {}",
                    kMostCoupledResults, group.size());
                return made;
            }
            adjoint(group);
        }
        for (std::size_t c = 0; c < count_; ++c) made.operands.push_back(element(c));
        for (std::size_t c = 0; c < scan_.captured.size(); ++c) made.operands.push_back(scalar(c));
        return made;
    }

  private:
    // ---- Partial derivatives at (y_{i-1}, x_i); those of position 0 mean nothing.

    const Partial& left(std::size_t result, std::size_t by) const {
        return jacobian_.partials[result][by];
    }
    const Partial& right(std::size_t result, std::size_t by) const {
        return jacobian_.partials[result][count_ + by];
    }

    /// Results that have cotangents, themselves or through later ones.
    void find_live() {
        for (std::size_t r = 0; r < count_; ++r) live_.push_back(static_cast<bool>(cotangents_[r]));
        for (std::size_t round = 0; round < count_; ++round) {
            for (std::size_t r = 0; r < count_; ++r) {
                for (std::size_t c = 0; c < count_; ++c) {
                    if (live_[r] && !left(r, c).is_zero()) live_[c] = true;
                }
            }
        }
    }

    void evaluate() {
        std::set<Value> used;
        walk(jacobian_.mod.body, [&](const Instruction& made) {
            used.insert(made.operands.begin(), made.operands.end());
        });
        std::vector<Value> arguments;
        for (std::size_t i = 0; i < count_; ++i) {
            const Value y = scan_.results[i];
            const bool needed = used.contains(jacobian_.mod.parameters()[i]);
            arguments.push_back(needed ? moved(y, true, edge(y, true)) : y);
        }
        arguments.insert(arguments.end(), scan_.elements.begin(), scan_.elements.end());
        arguments.insert(arguments.end(), scan_.captured.begin(), scan_.captured.end());
        values_ = append_mod(b_, jacobian_.mod, arguments);
    }

    /// d * partial, in the shape of the scan.
    Value times(const Partial& partial, Value d) {
        return partial.kind == Partial::Kind::one
                   ? d
                   : b_.binary(Op::mul, whole(values_[partial.place]), matching(partial, d));
    }
    /// A cotangent in the dtype of a partial derivative: f64 and f32 may meet in one scan.
    Value matching(const Partial& partial, Value d) {
        return b_.cast(d, b_.type(values_[partial.place]).dtype);
    }
    Value whole(Value value) { return b_.broadcast(value, shape_); }

    // ---- Positions.

    /// Element i becomes that of i - 1 (`later`) or i + 1 in the order of the scan, and the one
    /// without such a neighbour `edge`.
    Value moved(Value value, bool later, Value edge) {
        const std::int64_t length = shape_[scan_.axis];
        if (later != scan_.reverse)
            return b_.concatenate(std::array{edge, part(value, 0, length - 1)}, scan_.axis);
        return b_.concatenate(std::array{part(value, 1, length - 1), edge}, scan_.axis);
    }
    /// The first element in the order of the scan, or the last one.
    Value edge(Value value, bool first) {
        return part(value, first != scan_.reverse ? 0 : shape_[scan_.axis] - 1, 1);
    }
    Value part(Value value, std::int64_t from, std::int64_t count) {
        SliceAttributes slice;
        for (int axis = 0; axis < shape_.rank(); ++axis) {
            slice.starts.push_back(axis == scan_.axis ? from : 0);
            slice.sizes.push_back(axis == scan_.axis ? count : shape_[axis]);
            slice.strides.push_back(1);
        }
        return b_.slice(value, slice);
    }
    Value zero_edge(DType dtype) {
        std::vector<std::int64_t> extents(shape_.dims().begin(), shape_.dims().end());
        extents[static_cast<std::size_t>(scan_.axis)] = 1;
        return b_.constant({dtype, Shape(extents)}, 0);
    }
    /// What position i + 1 hands back to i.
    Value handed_back(Value value) { return moved(value, false, zero_edge(b_.type(value).dtype)); }

    // ---- Adjoints.

    /// Live results whose adjoints depend on each other, those that others depend on first.
    std::vector<std::vector<std::size_t>> groups() const {
        std::vector<std::vector<bool>> reaches(count_, std::vector<bool>(count_, false));
        for (std::size_t r = 0; r < count_; ++r) {
            for (std::size_t c = 0; c < count_; ++c) reaches[r][c] = !left(r, c).is_zero();
        }
        for (std::size_t k = 0; k < count_; ++k) {
            for (std::size_t r = 0; r < count_; ++r) {
                for (std::size_t c = 0; c < count_; ++c) {
                    if (reaches[r][k] && reaches[k][c]) reaches[r][c] = true;
                }
            }
        }
        std::vector<std::vector<std::size_t>> found;
        std::vector<bool> placed(count_, false);
        const auto together = [&](std::size_t a, std::size_t b) {
            return a == b || (reaches[a][b] && reaches[b][a]);
        };
        const auto ready = [&](std::size_t c) {
            for (std::size_t r = 0; r < count_; ++r) {
                if (live_[r] && !placed[r] && reaches[r][c] && !together(r, c)) return false;
            }
            return true;
        };
        for (std::size_t round = 0; round < count_; ++round) {
            for (std::size_t c = 0; c < count_; ++c) {
                if (placed[c] || !live_[c] || !ready(c)) continue;
                std::vector<std::size_t>& group = found.emplace_back();
                for (std::size_t other = 0; other < count_; ++other) {
                    if (live_[other] && together(c, other)) group.push_back(other);
                }
                for (const std::size_t member : group) placed[member] = true;
            }
        }
        return found;
    }

    DType adjoint_dtype(std::size_t result) const {
        return gradient_dtype(b_.type(scan_.results[result]).dtype);
    }

    void adjoint(const std::vector<std::size_t>& group) {
        if (adjoints_.empty()) adjoints_.resize(count_);
        std::vector<Value> constants;
        for (const std::size_t c : group) {
            const DType dtype = adjoint_dtype(c);
            Value sum;
            if (cotangents_[c]) sum = b_.cast(whole(materialised(cotangents_[c])), dtype);
            Value later;
            for (std::size_t r = 0; r < count_; ++r) {
                if (std::find(group.begin(), group.end(), r) != group.end()) continue;
                if (!adjoints_[r] || left(r, c).is_zero()) continue;
                const Value part = b_.cast(times(left(r, c), adjoints_[r]), dtype);
                later = later ? b_.binary(Op::add, later, part) : part;
            }
            if (later) {
                later = handed_back(later);
                sum = sum ? b_.binary(Op::add, sum, later) : later;
            }
            constants.push_back(sum ? sum : b_.constant({dtype, shape_}, 0));
        }
        const Partial& own = left(group[0], group[0]);
        if (group.size() == 1 && own.is_zero()) {
            adjoints_[group[0]] = constants[0];
        } else if (group.size() == 1 && own.kind == Partial::Kind::one) {
            adjoints_[group[0]] = b_.scan(Reduction::sum, constants[0], scan_.axis, !scan_.reverse);
        } else {
            solve(group, std::move(constants));
        }
    }

    void solve(const std::vector<std::size_t>& group, std::vector<Value> constants) {
        // f64 for all of a group that has it.
        const bool wide = std::any_of(group.begin(), group.end(), [&](std::size_t c) {
            return adjoint_dtype(c) == DType::f64;
        });
        const DType dtype = wide ? DType::f64 : DType::f32;
        std::vector<Value> operands;
        for (const std::size_t c : group) {
            for (const std::size_t r : group) operands.push_back(handed_factor(left(r, c), dtype));
        }
        for (const Value constant : constants) operands.push_back(b_.cast(constant, dtype));
        const std::vector<Value> made = b_.associative_scan(composed_maps(dtype, group.size()),
                                                            operands, scan_.axis, !scan_.reverse);
        for (std::size_t i = 0; i < group.size(); ++i) {
            adjoints_[group[i]] =
                b_.cast(made[group.size() * group.size() + i], adjoint_dtype(group[i]));
        }
    }

    /// The factor by which the adjoint of position i + 1 reaches i.
    Value handed_factor(const Partial& partial, DType dtype) {
        if (partial.kind != Partial::Kind::value)
            return b_.constant({dtype, shape_}, partial.is_zero() ? 0 : 1);
        const Value value = b_.cast(values_[partial.place], dtype);
        const Shape& has = b_.type(value).shape;
        // One factor for all positions does not move.
        if (has.rank() == 0 || has[scan_.axis] == 1) return whole(value);
        return handed_back(whole(value));
    }

    // ---- Cotangents of the operands.

    Value materialised(const Cotangent& d) {
        return d.condition ? b_.select(d.condition, d.value, b_.constant(b_.type(d.value), 0))
                           : d.value;
    }

    /// Bool: the position is the first in the order of the scan, whose x is y itself.
    Value is_first() {
        if (!is_first_) {
            const Type type{DType::i32, shape_};
            const std::int64_t at = scan_.reverse ? shape_[scan_.axis] - 1 : 0;
            is_first_ = b_.binary(Op::eq, b_.iota(type, scan_.axis), b_.constant_int(type, at));
        }
        return is_first_;
    }

    /// The sum over the results of their adjoints times a column of partial derivatives.
    Value handed_to(std::size_t parameter, DType dtype) {
        Value sum;
        for (std::size_t r = 0; r < count_; ++r) {
            const Partial& partial = jacobian_.partials[r][parameter];
            if (partial.is_zero() || adjoints_.empty() || !adjoints_[r]) continue;
            const Value part = b_.cast(times(partial, adjoints_[r]), dtype);
            sum = sum ? b_.binary(Op::add, sum, part) : part;
        }
        return sum;
    }

    Cotangent element(std::size_t c) {
        const Type& type = b_.type(scan_.elements[c]);
        if (!is_float(type.dtype)) return {};
        const Value own = adjoints_.empty() ? Value{} : adjoints_[c];
        const Value handed = handed_to(count_ + c, gradient_dtype(type.dtype));
        if (!handed && !own) return {};
        if (handed == own) return {own, {}};
        if (!own) return {handed, b_.unary(Op::bitwise_not, is_first())};
        if (!handed) return {own, is_first()};
        return {b_.select(is_first(), own, handed), {}};
    }

    Cotangent scalar(std::size_t c) {
        const Type& type = b_.type(scan_.captured[c]);
        if (!is_float(type.dtype)) return {};
        Value sum = handed_to(2 * count_ + c, gradient_dtype(type.dtype));
        if (!sum) return {};
        sum = b_.select(is_first(), b_.constant(b_.type(sum), 0), sum);
        while (b_.type(sum).shape.rank() > 0)
            sum = b_.reduce(Reduction::sum, sum, b_.type(sum).shape.rank() - 1);
        return {sum, {}};
    }

    Builder& b_;
    const FunctionScan& scan_;
    std::size_t count_;
    Shape shape_;
    std::vector<Cotangent> cotangents_;
    Jacobian jacobian_;
    std::vector<bool> live_;
    std::vector<Value> values_;    ///< of the partial derivatives, in the smallest shapes
    std::vector<Value> adjoints_;  ///< s, by result; none where it is 0
    Value is_first_;
};

}  // namespace

ScanCotangents scan_cotangents(Builder& builder, const FunctionScan& scan,
                               std::span<const Cotangent> results) {
    return ScanDerivative(builder, scan, results).run();
}

}  // namespace tilewright::ir
