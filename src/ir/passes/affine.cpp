// Affine forms of integer values and their bounds.
#include "ir/passes/affine.h"

#include <bit>

#include "ir/evaluate.h"

namespace tilewright::ir {
namespace {

// docs/reference/ir.md bounds extents by 2^40, so forms with coefficients up to this cannot
// overflow.
constexpr std::int64_t kMaxCoefficient = std::int64_t{1} << 22;
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 62;

bool small(std::int64_t value, std::int64_t limit) {
    return value <= limit && value >= -limit;
}

Affine constant_form(std::int64_t value) {
    return {{}, value};
}

bool is_constant(const Affine& form) {
    return form.terms.empty();
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

bool divisible(const Affine& form, std::int64_t by) {
    if (form.constant % by != 0) return false;
    for (const auto& [symbol, coefficient] : form.terms) {
        if (coefficient % by != 0) return false;
    }
    return true;
}

}  // namespace

std::optional<Affine> add(const Affine& a, const Affine& b, std::int64_t factor) {
    Affine result = a;
    std::int64_t scaled_constant = 0;
    if (__builtin_mul_overflow(b.constant, factor, &scaled_constant) ||
        __builtin_add_overflow(a.constant, scaled_constant, &result.constant) ||
        !small(result.constant, kMaxConstant)) {
        return std::nullopt;
    }
    for (const auto& [symbol, coefficient] : b.terms) {
        std::int64_t product = 0;
        std::int64_t& sum = result.terms[symbol];
        if (__builtin_mul_overflow(coefficient, factor, &product) ||
            __builtin_add_overflow(sum, product, &sum) || !small(sum, kMaxCoefficient)) {
            return std::nullopt;
        }
        if (sum == 0) result.terms.erase(symbol);
    }
    return result;
}

std::optional<Affine> scaled(const Affine& a, std::int64_t factor) {
    return add(constant_form(0), a, factor);
}

std::optional<LinearCombination> linear_combination(
    Op op, const std::function<std::optional<std::int64_t>(std::size_t)>& constant) {
    switch (op) {
        case Op::add:
            return LinearCombination{{1, 1}};
        case Op::sub:
            return LinearCombination{{1, -1}};
        case Op::neg:
            return LinearCombination{{-1, 0}};
        case Op::cast:
            return LinearCombination{{1, 0}};
        case Op::mul:
            if (const auto factor = constant(1)) return LinearCombination{{*factor, 0}};
            if (const auto factor = constant(0)) return LinearCombination{{0, *factor}};
            return {};
        default:
            return {};
    }
}

Affine AffineAnalysis::symbol(SymbolBounds lower, SymbolBounds upper, bool is_tile) {
    symbols_.push_back({std::move(lower), std::move(upper), is_tile});
    return {{{static_cast<int>(symbols_.size()) - 1, 1}}, 0};
}

// Nothing is known but the dtype.
Affine AffineAnalysis::opaque(const Type& type) {
    SymbolBounds lower, upper;
    if (size_of(type.dtype) < 8) {
        lower.alternatives.push_back(
            constant_form(static_cast<std::int64_t>(identity(Reduction::max, type.dtype))));
        upper.alternatives.push_back(
            constant_form(static_cast<std::int64_t>(identity(Reduction::min, type.dtype))));
    } else if (type.dtype == DType::u64) {
        lower.alternatives.push_back(constant_form(0));
    }
    return symbol(lower, upper, !type.is_scalar());
}

Affine AffineAnalysis::extent(Value ref, int dim) {
    const std::int64_t known = function_.ref_type(ref).extents[dim];
    if (known != kDynamic) return constant_form(known);
    const auto [found, is_new] = extents_.try_emplace({ref, dim});
    if (is_new) found->second = symbol({{constant_form(0)}, 1, false}, {}, false);
    return found->second;
}

Affine AffineAnalysis::program_axis(Op op, int axis) {
    const std::int64_t grid = function_.grid[axis];
    if (op == Op::num_programs && grid != kDynamic) return constant_form(grid);
    const auto found = program_axes_.find({op, axis});
    if (found != program_axes_.end()) return found->second;
    SymbolBounds upper;
    if (op == Op::program_id) {
        Affine last = program_axis(Op::num_programs, axis);
        last.constant -= 1;
        upper.alternatives.push_back(last);
    }
    const Affine result = symbol({{constant_form(0)}, 1, false}, upper, false);
    program_axes_[{op, axis}] = result;
    return result;
}

// A shape op moves elements, so symbols of their positions are replaced by new ones of equal range.
Affine AffineAnalysis::fresh_positions(const Affine& form) {
    Affine result = form;
    for (const auto& [id, coefficient] : form.terms) {
        const Symbol& old = symbols_[id];
        if (!old.is_tile) continue;
        result.terms.erase(id);
        const Affine renamed = symbol(old.lower, old.upper, true);
        result.terms[renamed.terms.begin()->first] = coefficient;
    }
    return result;
}

Affine AffineAnalysis::value(Value value) {
    const auto found = forms_.find(value);
    if (found != forms_.end()) return found->second;
    return forms_[value] = opaque(function_.type(value));
}

bool AffineAnalysis::in_range(const Affine& form, DType dtype) const {
    if (dtype == DType::i64) return true;
    const auto above =
        add(form, constant_form(static_cast<std::int64_t>(identity(Reduction::max, dtype))), -1);
    if (!above || !non_negative(*above)) return false;
    if (dtype == DType::u64) return true;
    const auto below =
        add(constant_form(static_cast<std::int64_t>(identity(Reduction::min, dtype))), form, -1);
    return below && non_negative(*below);
}

void AffineAnalysis::define(const Instruction& instruction) {
    if (instruction.results.size() != 1 || function_.is_ref(instruction.result())) return;
    const Value result = instruction.result();
    const Type& type = function_.type(result);
    if (!is_integer(type.dtype)) return;
    const bool is_tile = !type.is_scalar();
    switch (instruction.op) {
        case Op::constant: {
            const auto bits = static_cast<std::int64_t>(instruction.get<ConstantAttributes>().bits);
            const bool fits = small(bits, kMaxConstant) && (type.dtype != DType::u64 || bits >= 0);
            forms_[result] = fits ? constant_form(bits) : opaque(type);
            return;
        }
        case Op::iota: {
            const std::int64_t last = type.shape[instruction.get<AxisAttributes>().axis] - 1;
            const Affine form =
                symbol({{constant_form(0)}, 1, false}, {{constant_form(last)}, 1, false}, true);
            forms_[result] = in_range(form, type.dtype) ? form : opaque(type);
            return;
        }
        case Op::program_id:
        case Op::num_programs:
            forms_[result] = program_axis(instruction.op, instruction.get<AxisAttributes>().axis);
            return;
        case Op::extent:
            forms_[result] =
                extent(instruction.operands[0], instruction.get<AxisAttributes>().axis);
            return;
        case Op::cast: {
            const Type& from = function_.type(instruction.operands[0]);
            if (!is_integer(from.dtype)) break;
            const Affine form = value(instruction.operands[0]);
            forms_[result] = in_range(form, type.dtype) ? form : opaque(type);
            return;
        }
        case Op::broadcast:
        case Op::reshape:
        case Op::transpose:
        case Op::expand_dims:
        case Op::slice:
            forms_[result] = fresh_positions(value(instruction.operands[0]));
            return;
        case Op::add:
        case Op::sub:
        case Op::mul: {
            const Affine form = arithmetic(instruction, type);
            forms_[result] = in_range(form, type.dtype) ? form : opaque(type);
            return;
        }
        case Op::div:
        case Op::floordiv:
        case Op::rem:
        case Op::floormod:
            forms_[result] = quotient(instruction, type);
            return;
        case Op::shift_right:
        case Op::bitwise_and:
            forms_[result] = by_power_of_two(instruction, type);
            return;
        case Op::min:
        case Op::max:
            forms_[result] = extreme(instruction.op == Op::min, value(instruction.operands[0]),
                                     value(instruction.operands[1]), is_tile);
            return;
        case Op::clamp: {
            const Affine raised = extreme(false, value(instruction.operands[0]),
                                          value(instruction.operands[1]), is_tile);
            forms_[result] = extreme(true, raised, value(instruction.operands[2]), is_tile);
            return;
        }
        case Op::select: {
            const std::vector<Affine> both = {value(instruction.operands[1]),
                                              value(instruction.operands[2])};
            forms_[result] = symbol({both, 1, true}, {both, 1, true}, is_tile);
            return;
        }
        default:
            break;
    }
    forms_[result] = opaque(type);
}

Affine AffineAnalysis::arithmetic(const Instruction& instruction, const Type& type) {
    const auto parts = linear_combination(instruction.op, [&](std::size_t i) {
        const Affine form = value(instruction.operands[i]);
        return is_constant(form) ? std::optional(form.constant) : std::nullopt;
    });
    std::optional<Affine> result;
    if (parts) result = constant_form(0);
    for (std::size_t i = 0; i < 2 && result; ++i) {
        if (parts->factor[i] == 0) continue;
        result = add(*result, value(instruction.operands[i]), parts->factor[i]);
    }
    return result ? *result : opaque(type);
}

Affine AffineAnalysis::quotient(const Instruction& instruction, const Type& type) {
    const Affine a = value(instruction.operands[0]), b = value(instruction.operands[1]);
    const bool truncates = instruction.op == Op::div || instruction.op == Op::rem;
    if (!is_constant(b) || b.constant <= 0 || (truncates && !non_negative(a))) return opaque(type);
    const bool remains = instruction.op == Op::rem || instruction.op == Op::floormod;
    return divided(a, b.constant, remains, type);
}

// A shift is a floored quotient by 2^k, the low bits are its remainder.
Affine AffineAnalysis::by_power_of_two(const Instruction& instruction, const Type& type) {
    const Affine a = value(instruction.operands[0]), b = value(instruction.operands[1]);
    if (!is_constant(b) || b.constant < 0) return opaque(type);
    if (instruction.op == Op::bitwise_and) {
        const auto mask = static_cast<std::uint64_t>(b.constant);
        return b.constant < kMaxCoefficient && std::has_single_bit(mask + 1)
                   ? divided(a, b.constant + 1, true, type)
                   : opaque(type);
    }
    return b.constant < 31 ? divided(a, std::int64_t{1} << b.constant, false, type) : opaque(type);
}

// Division by a positive constant c: c * q <= a and c * q >= a - c + 1 for the floored quotient;
// the remainder is in [0, c). Truncating division is the same where a >= 0.
Affine AffineAnalysis::divided(const Affine& a, std::int64_t c, bool remains, const Type& type) {
    if (c > kMaxCoefficient) return opaque(type);
    const bool is_tile = !type.is_scalar();
    if (remains) {
        return symbol({{constant_form(0)}, 1, false}, {{constant_form(c - 1)}, 1, false}, is_tile);
    }
    if (is_constant(a)) return constant_form(floor_divide(a.constant, c));
    const auto low = add(a, constant_form(1 - c));
    if (!low) return opaque(type);
    return symbol({{*low}, c, false}, {{a}, c, false}, is_tile);
}

Affine AffineAnalysis::extreme(bool is_min, const Affine& a, const Affine& b, bool is_tile) {
    if (is_constant(a) && is_constant(b)) {
        return is_min ? (a.constant < b.constant ? a : b) : (a.constant < b.constant ? b : a);
    }
    const std::vector<Affine> both = {a, b};
    return symbol({both, 1, is_min}, {both, 1, !is_min}, is_tile);
}

// lo <= iv, and iv <= the last value reached: hi - 1, or exactly hi - step where step divides.
void AffineAnalysis::enter_loop(const Instruction& loop) {
    const Affine lo = value(loop.operands[0]), hi = value(loop.operands[1]),
                 step = value(loop.operands[2]);
    SymbolBounds lower, upper;
    lower.alternatives.push_back(lo);
    const std::int64_t stride = is_constant(step) && step.constant > 0 ? step.constant : 1;
    const auto span = add(hi, lo, -1);
    std::optional<Affine> last;
    if (span && is_constant(*span) && span->constant > 0) {
        last = add(lo, constant_form((span->constant - 1) / stride * stride));
    } else {
        last = add(hi, constant_form(span && divisible(*span, stride) ? -stride : -1));
    }
    if (last) upper.alternatives.push_back(*last);
    forms_[loop.blocks[0].arguments[0]] = symbol(lower, upper, false);
}

bool AffineAnalysis::non_negative(const Affine& form) const {
    int budget = 200;
    return prove(form, budget);
}

// Replaces the newest symbol by its bound on the side that matters, which has only older symbols.
bool AffineAnalysis::prove(const Affine& form, int& budget) const {
    if (is_constant(form)) return form.constant >= 0;
    if (--budget < 0) return false;
    const auto [id, coefficient] = *form.terms.rbegin();
    const Symbol& symbol = symbols_[id];
    const SymbolBounds& bounds = coefficient > 0 ? symbol.lower : symbol.upper;
    if (bounds.alternatives.empty() || coefficient % bounds.scale != 0) return false;
    Affine rest = form;
    rest.terms.erase(id);
    for (const Affine& bound : bounds.alternatives) {
        const auto next = add(rest, bound, coefficient / bounds.scale);
        const bool proved = next && prove(*next, budget);
        if (proved != bounds.weakest) return proved;
    }
    return bounds.weakest;
}

}  // namespace tilewright::ir
