// Finds integer operands of strips that are affine in the row and the lane.
#include "cpu/affine.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ir/evaluate.h"
#include "ir/passes/affine.h"

namespace tilewright::cpu {
namespace {

using ir::Op;

constexpr int kMaxDepth = 16;

// Bounds that keep forms far from overflow at any position.
bool is_factor(std::int64_t x) {
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    return -kMost <= x && x <= kMost;
}
bool is_small(const Affine& form) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    return -kMost <= form.constant && form.constant <= kMost && is_factor(form.row) &&
           is_factor(form.lane) &&
           std::all_of(form.terms.begin(), form.terms.end(),
                       [](const Affine::Term& term) { return is_factor(term.coefficient); });
}

/// True if a value of 32 bits may differ from its form.
bool may_wrap(const Affine& form, DType dtype) {
    constexpr std::int64_t kMost = std::int64_t{1} << 29;
    if (dtype != DType::i32) return false;
    const bool position = form.terms.empty() && -kMost <= form.constant && form.constant <= kMost &&
                          std::abs(form.row) <= 1 && std::abs(form.lane) <= 1;
    const bool scalar = form.terms.size() == 1 && form.terms[0].coefficient == 1 &&
                        form.terms[0].dtype == DType::i32 && form.constant == 0 && form.row == 0 &&
                        form.lane == 0;
    return !position && !scalar;
}

/// a + factor * b.
Affine combined(Affine a, const Affine& b, std::int64_t factor) {
    for (const Affine::Term& term : b.terms) {
        a.terms.push_back({term.slot, term.dtype, term.coefficient * factor});
    }
    a.constant += b.constant * factor;
    a.row += b.row * factor;
    a.lane += b.lane * factor;
    return a;
}

std::optional<std::int64_t> constant_of(const StripSource& source, const Program& program) {
    if (source.home != Home::slot || !program.constant_slots.contains(source.index)) return {};
    const std::uint64_t bits = ir::read_element(source.dtype, &program.initial_slots[source.index]);
    return static_cast<std::int64_t>(bits);
}

std::optional<Affine> find(const StripSource& source, const Makers& makers, const Program& program,
                           int depth);

std::optional<Affine> of_op(const StripOp& op, const Makers& makers, const Program& program,
                            int depth) {
    const auto parts = ir::linear_combination(
        op.op, [&](std::size_t i) { return constant_of(op.in[i], program); });
    if (!parts) return {};
    Affine result;
    for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t factor = parts->factor[i];
        if (factor == 0) continue;
        const auto operand = find(op.in[i], makers, program, depth);
        if (!operand || !is_factor(factor)) return {};
        // What wraps around in 32 bits does not do so again in 64.
        if (op.out.dtype != DType::i32 && may_wrap(*operand, op.in[i].dtype)) return {};
        result = combined(std::move(result), *operand, factor);
    }
    return result;
}

std::optional<Affine> find_any(const StripSource& source, const Makers& makers,
                               const Program& program, int depth) {
    // Narrow types wrap around too early.
    if (depth == 0 || (source.dtype != DType::i32 && source.dtype != DType::i64)) return {};
    Affine result;
    if (const auto constant = constant_of(source, program)) {
        result.constant = *constant;
        return result;
    }
    if (source.home == Home::slot) {
        result.terms.push_back({source.index, source.dtype, 1});
        return result;
    }
    if (source.home == Home::constant && program.iotas.contains(source.index)) {
        result.constant = source.offset;
        result.row = source.row_stride;
        result.lane = source.lane_stride;
        return result;
    }
    const auto found = makers.find(source.index);
    if (source.home != Home::buffer || found == makers.end()) return {};
    const StripOp& op = found->second;
    if (op.kind != StripOp::Kind::map || op.super != Super::none) return {};
    if (op.out == source && op.out.row_stride != 0) return of_op(op, makers, program, depth - 1);
    // The maker sees a vector as lanes; here its elements may be along rows or lanes.
    if (op.out.row_stride != 0 || op.out.lane_stride != 1) return {};
    const auto vector = of_op(op, makers, program, depth - 1);
    if (!vector) return {};
    result = *vector;
    const std::int64_t start = source.offset - op.out.offset;
    result.constant += vector->lane * start;
    result.row = vector->lane * source.row_stride;
    result.lane = vector->lane * source.lane_stride;
    return result;
}

std::optional<Affine> find(const StripSource& source, const Makers& makers, const Program& program,
                           int depth) {
    const auto form = find_any(source, makers, program, depth);
    return form && is_small(*form) ? form : std::nullopt;
}

}  // namespace

Affine along(Affine form, std::int64_t row_stride, std::int64_t lane_stride) {
    const auto turn = [&](Affine& turned) {
        turned.row = turned.lane * row_stride;
        turned.lane *= lane_stride;
    };
    turn(form);
    for (Affine& word : form.words) turn(word);
    return form;
}

std::optional<Affine> affine_difference(const StripSource& a, const StripSource& b,
                                        const Makers& makers, const Program& program) {
    const auto first = find(a, makers, program, kMaxDepth),
               second = find(b, makers, program, kMaxDepth);
    if (!first || !second) return {};
    Affine result = combined(*first, *second, -1);
    if (may_wrap(*first, a.dtype) || may_wrap(*second, b.dtype)) result.words = {*first, *second};
    return result;
}

std::optional<Affine> affine_condition(const StripOp& comparison, const Makers& makers,
                                       const Program& program) {
    const bool rises = comparison.op == Op::ge || comparison.op == Op::gt;
    if (!rises && comparison.op != Op::le && comparison.op != Op::lt) return {};
    auto form = affine_difference(comparison.in[rises ? 0 : 1], comparison.in[rises ? 1 : 0],
                                  makers, program);
    if (form && (comparison.op == Op::gt || comparison.op == Op::lt)) {
        form->constant -= 1;
        form->strict = true;
    }
    return form;
}

std::optional<Affine> affine_form(const StripSource& source, const Makers& makers,
                                  const Program& program) {
    auto form = find(source, makers, program, kMaxDepth);
    if (form && may_wrap(*form, source.dtype)) form->words = {*form};
    return form;
}

}  // namespace tilewright::cpu
