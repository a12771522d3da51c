// Scores as linear forms: what is affine in the score or the position becomes one multiply-add.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/sm90/score_mod_text.h"

namespace tilewright::attn::sm90 {

Coefficient Emitter::product(const Coefficient& a, const Coefficient& b, Place place) {
    if (a.name.empty() || b.name.empty()) {
        return {a.number * b.number, a.name.empty() ? b.name : a.name};
    }
    return {a.number * b.number,
            local(place, "float", temporary(), fmt::format("{} * {}", a.name, b.name))};
}

Coefficient Emitter::sum(const Coefficient& a, const Coefficient& b, Place place) {
    if (a.zero()) return b;
    if (b.zero()) return a;
    if (a.name == b.name) return {a.number + b.number, a.name};
    return {1, local(place, "float", temporary(), fmt::format("{} + {}", a.text(), b.text()))};
}

LinearForm Emitter::scaled(LinearForm form, const Coefficient& factor, Place place) {
    form.constant = product(form.constant, factor, place);
    form.offset = product(form.offset, factor, place);
    for (auto& [atom, coefficient] : form.atoms) coefficient = product(coefficient, factor, place);
    return form;
}

LinearForm Emitter::sum(LinearForm a, const LinearForm& b, Place place) {
    a.constant = sum(a.constant, b.constant, place);
    a.offset = sum(a.offset, b.offset, place);
    for (const auto& [atom, coefficient] : b.atoms) {
        a.atoms[atom] = sum(a.atoms[atom], coefficient, place);
    }
    return a;
}

LinearForm Emitter::form(Value value, Place place) {
    const auto found = forms_.find({place, value});
    if (found != forms_.end()) return found->second;
    LinearForm result;
    if (op(value) == Op::constant) {
        result.constant.number =
            std::bit_cast<double>(info(value).instruction->get<ir::ConstantAttributes>().bits);
    } else if (info(value).parameter == "score") {
        result.atoms["score"] = {1, "scale"};
    } else if (!varies(value)) {
        result.constant = {1, use(value, place)};
    } else if (std::optional<LinearForm> parts = linear(value, place)) {
        result = *parts;
    } else {
        result.atoms[use(value, place)] = {1, ""};
    }
    return forms_[{place, value}] = result;
}

/// The linear form of an f32 op that keeps forms linear; none for other ops.
std::optional<LinearForm> Emitter::linear(Value value, Place place) {
    if (dtype(value) != DType::f32 || !varies(value) || info(value).instruction == nullptr)
        return {};
    const Coefficient minus_one{-1, ""};
    switch (op(value)) {
        case Op::neg:
            return scaled(form(operand(value, 0), place), minus_one, place);
        case Op::add:
            return sum(form(operand(value, 0), place), form(operand(value, 1), place), place);
        case Op::sub:
            return sum(form(operand(value, 0), place),
                       scaled(form(operand(value, 1), place), minus_one, place), place);
        case Op::mul:
        case Op::fma: {
            const bool left = !varies(operand(value, 0));
            if (!left && varies(operand(value, 1))) return {};
            LinearForm result = scaled(form(operand(value, left ? 1 : 0), place),
                                       form(operand(value, left ? 0 : 1), place).constant, place);
            if (op(value) == Op::fma) result = sum(result, form(operand(value, 2), place), place);
            return result;
        }
        case Op::div: {
            if (varies(operand(value, 1))) return {};
            const Coefficient divisor = form(operand(value, 1), place).constant;
            Coefficient inverse{1 / divisor.number, ""};
            if (!divisor.name.empty()) {
                inverse = {1, local(place, "float", temporary(),
                                    fmt::format("1.0f / {}", divisor.text()))};
            }
            return scaled(form(operand(value, 0), place), inverse, place);
        }
        case Op::cast: {
            const Value from = operand(value, 0);
            if (dtype(from) == DType::f16 || dtype(from) == DType::bf16) {
                LinearForm result;  // already held in a float
                result.atoms[use(from, place)] = {1, ""};
                return result;
            }
            if (!info(from).affine || !cuda::exact_in_f32(range(from))) return {};
            LinearForm result;
            result.constant = {1, fmt::format("f{}", value.id)};
            if (first_use(place, 'f', value)) {
                local(place, "float", result.constant.name,
                      fmt::format("static_cast<float>({})", base(from, place)));
            }
            result.offset.number = static_cast<double>(info(from).step);
            return result;
        }
        default:
            return {};
    }
}

/// start + form: first the terms that calls for other columns or rows share, the score last.
/// `start` belongs to a row in the forward pass, to a column in the backward pass.
std::string Emitter::evaluate(const LinearForm& form, const std::string& start) const {
    std::string result = start;
    const auto add = [&](const Coefficient& coefficient, const std::string& factor) {
        constexpr double kLargest = std::numeric_limits<float>::max();
        const double size = std::fabs(coefficient.number);
        if (factor.empty() && !result.empty() && std::isfinite(size) &&
            (coefficient.name.empty() ? size > kLargest : size != 1)) {
            // The product may be too large to be computed separately.
            const bool named = !coefficient.name.empty();
            result = fmt::format("fmaf({}, {}, {})",
                                 named ? coefficient.name : float_literal(coefficient.number / 2),
                                 float_literal(named ? coefficient.number : 2), result);
        } else if (factor.empty()) {
            result = result.empty() ? coefficient.text()
                                    : fmt::format("{} + {}", result, coefficient.text());
        } else if (result.empty()) {
            result =
                coefficient.one() ? factor : fmt::format("{} * {}", factor, coefficient.text());
        } else if (coefficient.one()) {
            result = fmt::format("{} + {}", result, factor);
        } else {
            result = fmt::format("fmaf({}, {}, {})", factor, coefficient.text(), result);
        }
    };
    if (facts_.columns_are_keys && !form.constant.zero()) add(form.constant, "");
    if (!form.offset.zero()) {
        if (form.offset.name.empty()) {
            add({1, fmt::format("TW_UNROLLED_PRODUCT({}, static_cast<float>(offset))",
                                float_literal(form.offset.number))},
                "");
        } else {
            add(form.offset, "static_cast<float>(offset)");
        }
    }
    if (!facts_.columns_are_keys && !form.constant.zero()) add(form.constant, "");
    for (const auto& [atom, coefficient] : form.atoms) {
        if (atom != "score") add(coefficient, atom);
    }
    const auto score = form.atoms.find("score");
    if (score != form.atoms.end()) add(score->second, "score");
    return result.empty() ? "0.0f" : result;
}

/// One form for a choice between two: if they differ in just one coefficient, that coefficient is
/// chosen instead. None if they differ further.
std::optional<LinearForm> Emitter::chosen(Value condition, const LinearForm& a,
                                          const LinearForm& b) {
    LinearForm result = a;
    Coefficient* differs = nullptr;
    const Coefficient* other = nullptr;
    int differences = 0;
    const auto compare = [&](Coefficient& mine, const Coefficient& theirs) {
        if (mine == theirs) return;
        ++differences;
        differs = &mine;
        other = &theirs;
    };
    if (a.atoms.size() != b.atoms.size()) return {};
    compare(result.constant, b.constant);
    compare(result.offset, b.offset);
    for (auto& [atom, coefficient] : result.atoms) {
        // NOTE: an atom may be infinite, and 0 times it is then not 0.
        const auto theirs = b.atoms.find(atom);
        if (theirs == b.atoms.end() || coefficient.zero() || theirs->second.zero()) return {};
        compare(coefficient, theirs->second);
    }
    if (differences > 1) return {};
    if (differences == 1) {
        *differs = {1, local(Place::element, "float", temporary(),
                             fmt::format("{} ? {} : {}", use(condition, Place::element),
                                         differs->text(), other->text()))};
    }
    return result;
}

/// log2(e) * value as one form, with choices moved into coefficients where possible. Its constant
/// is still to be multiplied: that happens where it is added, in one operation that rounds once, so
/// that a large number does not become infinite.
std::optional<LinearForm> Emitter::exponent_form(Value value) {
    if (op(value) != Op::select || !varies(value)) {
        LinearForm result = form(value, Place::element);
        const Coefficient constant = std::exchange(result.constant, {});
        result = scaled(result, {kLog2E, ""}, Place::element);
        result.constant = constant;
        return result;
    }
    const auto a = exponent_form(operand(value, 1));
    const auto b = exponent_form(operand(value, 2));
    return a && b ? chosen(operand(value, 0), *a, *b) : std::nullopt;
}

/// log2(e) * value + start, with one multiply-add for each affine term.
std::string Emitter::exponent(Value value) {
    if (auto whole = exponent_form(value)) {
        const auto& atoms = whole->atoms;
        affine_ = value == results_[0] && op(value) != Op::select &&
                  std::all_of(atoms.begin(), atoms.end(),
                              [](const auto& atom) { return atom.first == "score"; });
        whole->constant = product(whole->constant, {kLog2E, ""}, Place::element);
        return local(Place::element, "float", temporary(), evaluate(*whole, "start"));
    }
    const std::string condition = use(operand(value, 0), Place::element);
    const std::string if_true = exponent(operand(value, 1));
    const std::string if_false = exponent(operand(value, 2));
    return local(Place::element, "float", temporary(),
                 fmt::format("{} ? {} : {}", condition, if_true, if_false));
}

}  // namespace tilewright::attn::sm90
