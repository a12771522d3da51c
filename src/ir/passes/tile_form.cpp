// Linear forms of integer tiles.
#include "ir/passes/tile_form.h"

#include <algorithm>

#include "ir/passes/affine.h"

namespace tilewright::ir {
namespace {

bool is_index(DType dtype) {
    return dtype == DType::i32 || dtype == DType::i64;
}

/// sum += factor * addend; false if that overflows.
bool add_product(std::int64_t& sum, std::int64_t addend, std::int64_t factor) {
    std::int64_t product = 0;
    return !__builtin_mul_overflow(addend, factor, &product) &&
           !__builtin_add_overflow(sum, product, &sum);
}

/// form += factor * addend, which have equal ranks.
bool add_product(TileForm& form, const TileForm& addend, std::int64_t factor) {
    bool fits = add_product(form.offset, addend.offset, factor);
    for (std::size_t axis = 0; axis < form.steps.size(); ++axis) {
        fits = fits && add_product(form.steps[axis], addend.steps[axis], factor);
    }
    for (const auto& [scalar, by] : addend.terms) {
        const auto same = [&](const auto& term) { return term.first == scalar; };
        auto found = std::find_if(form.terms.begin(), form.terms.end(), same);
        if (found == form.terms.end()) found = form.terms.insert(found, {scalar, 0});
        fits = fits && add_product(found->second, by, factor);
    }
    std::erase_if(form.terms, [](const auto& term) { return term.second == 0; });
    return fits;
}

}  // namespace

bool TileForm::is_constant() const {
    return terms.empty() &&
           std::all_of(steps.begin(), steps.end(), [](std::int64_t step) { return step == 0; });
}

void TileForms::define(const Instruction& instruction) {
    if (instruction.results.size() != 1 || !is_index(function_.type(instruction.result()).dtype)) {
        return;
    }
    if (auto form = made_by(instruction)) forms_[instruction.result()] = std::move(*form);
}

std::optional<TileForm> TileForms::form(Value value) const {
    if (const auto found = forms_.find(value); found != forms_.end()) return found->second;
    const Type& type = function_.type(value);
    if (!type.is_scalar() || !is_index(type.dtype)) return {};
    return TileForm{0, {{value, 1}}, {}};
}

std::optional<TileForm> TileForms::made_by(const Instruction& instruction) const {
    const Shape& shape = function_.type(instruction.result()).shape;
    TileForm form;
    form.steps.resize(shape.rank());
    switch (instruction.op) {
        case Op::constant:
            form.offset = static_cast<std::int64_t>(instruction.get<ConstantAttributes>().bits);
            return form;
        case Op::iota:
            form.steps.at(instruction.get<AxisAttributes>().axis) = 1;
            return form;
        case Op::broadcast:
            return broadcast(instruction);
        case Op::expand_dims:
        case Op::reshape:
            return regrouped(instruction);
        case Op::transpose: {
            const std::optional<TileForm> from = this->form(instruction.operands[0]);
            if (!from) return {};
            form.offset = from->offset;
            form.terms = from->terms;
            const auto& permutation = instruction.get<PermutationAttributes>().permutation;
            std::transform(permutation.begin(), permutation.end(), form.steps.begin(),
                           [&](int axis) { return from->steps.at(axis); });
            return form;
        }
        default:
            return combined(instruction);
    }
}

std::optional<TileForm> TileForms::broadcast(const Instruction& instruction) const {
    std::optional<TileForm> form = this->form(instruction.operands[0]);
    if (!form) return {};
    const Shape& from = function_.type(instruction.operands[0]).shape;
    const Shape& to = function_.type(instruction.result()).shape;
    form->steps.resize(to.rank());
    for (int axis = 0; axis < from.rank(); ++axis) {
        if (from[axis] != to[axis]) form->steps[axis] = 0;
    }
    return form;
}

// Only axes of extent 1 may be added or removed.
std::optional<TileForm> TileForms::regrouped(const Instruction& instruction) const {
    const std::optional<TileForm> from = form(instruction.operands[0]);
    if (!from) return {};
    const Shape& old = function_.type(instruction.operands[0]).shape;
    const Shape& shape = function_.type(instruction.result()).shape;
    TileForm result{from->offset, from->terms, {}};
    int place = 0;
    const auto skip_ones = [&] {
        while (place < old.rank() && old[place] == 1) ++place;
    };
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] == 1) {
            result.steps.push_back(0);
            continue;
        }
        skip_ones();
        if (place == old.rank() || old[place] != shape[axis]) return {};
        result.steps.push_back(from->steps[place++]);
    }
    skip_ones();
    if (place != old.rank()) return {};
    return result;
}

std::optional<TileForm> TileForms::combined(const Instruction& instruction) const {
    const auto constant = [&](std::size_t i) -> std::optional<std::int64_t> {
        const std::optional<TileForm> operand = form(instruction.operands[i]);
        if (!operand || !operand->is_constant()) return {};
        return operand->offset;
    };
    const std::optional<LinearCombination> by = linear_combination(instruction.op, constant);
    if (!by) return {};
    TileForm sum;
    sum.steps.resize(function_.type(instruction.result()).shape.rank());
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
        if (by->factor[i] == 0) continue;
        const std::optional<TileForm> operand = form(instruction.operands[i]);
        if (!operand || !add_product(sum, *operand, by->factor[i])) return {};
    }
    return sum;
}

}  // namespace tilewright::ir
