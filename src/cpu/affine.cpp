// Finds integer operands of strips that are affine in the row and the lane.
#include "cpu/affine.h"

#include <algorithm>
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

Affine combined(Affine a, const Affine& b, std::int64_t factor) {
    for (const Affine::Term& term : b.terms) {
        a.terms.push_back({term.slot, term.dtype, term.coefficient * factor});
    }
    a.constant += b.constant * factor;
    a.row += b.row * factor;
    a.lane += b.lane * factor;
    return a;
}

std::optional<Affine> affine_condition(const StripOp& comparison, const Makers& makers,
                                       const Program& program) {
    const auto a = affine_form(comparison.in[0], makers, program);
    const auto b = affine_form(comparison.in[1], makers, program);
    if (!a || !b) return {};
    const Affine one{{}, 1, 0, 0};
    switch (comparison.op) {
        case Op::ge:
            return combined(*a, *b, -1);
        case Op::gt:
            return combined(combined(*a, *b, -1), one, -1);
        case Op::le:
            return combined(*b, *a, -1);
        case Op::lt:
            return combined(combined(*b, *a, -1), one, -1);
        default:
            return {};
    }
}

std::optional<Affine> affine_form(const StripSource& source, const Makers& makers,
                                  const Program& program) {
    return find(source, makers, program, kMaxDepth);
}

}  // namespace tilewright::cpu
