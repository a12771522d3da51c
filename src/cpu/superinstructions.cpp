// Replaces runs of operations in strip chains by superinstructions.
#include "cpu/superinstructions.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cpu/affine.h"
#include "cpu/def_use.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

using ir::Op;

class Selector {
  public:
    Selector(Region& region, const Program& program) : program_(program), uses_(region) {}

    /// Tries every pattern on every op, phase by phase: later phases look for ops or
    /// superinstructions that earlier ones leave.
    void run() {
        for (Chain* chain : uses_.chains()) {
            for (int phase = 0; phase < kPhases; ++phase) {
                for (std::size_t i = 0; i < chain->ops.size(); ++i) match(*chain, i, phase);
            }
        }
        uses_.sweep();
    }

  private:
    /// Starts at the op that makes a result and looks from there at the ops that make its operands.
    struct Pattern {
        int phase;
        Op root;
        void (Selector::*replace)(Chain& chain, std::size_t at);
    };
    static constexpr int kPhases = 3;
    static std::span<const Pattern> patterns() {
        static constexpr Pattern kPatterns[] = {
            {0, Op::select, &Selector::affine_select}, {1, Op::exp2, &Selector::exp2_sum},
            {1, Op::mul, &Selector::softcap},          {1, Op::mul, &Selector::mul_sub_mul},
            {2, Op::fma, &Selector::affine_add},
        };
        return kPatterns;
    }

    void match(Chain& chain, std::size_t at, int phase) {
        for (const Pattern& pattern : patterns()) {
            const StripOp& op = chain.ops[at];
            const bool matches = pattern.phase == phase && op.op == pattern.root && op.function &&
                                 op.super == Super::none;
            if (matches) (this->*pattern.replace)(chain, at);
        }
    }

    std::optional<double> constant(const StripSource& source) const {
        if (source.home != Home::slot || !program_.constant_slots.contains(source.index)) return {};
        return ir::decode(source.dtype,
                          ir::read_element(source.dtype, &program_.initial_slots[source.index]));
    }

    static bool is_tile(const StripSource& source) {
        return source.dtype == DType::f32 && source.lane_stride == 1;
    }

    /// x * constant, as x and the constant.
    std::optional<std::pair<StripSource, double>> scaled(const StripOp& op) const {
        for (const int side : {0, 1}) {
            const auto factor = constant(op.in[static_cast<std::size_t>(1 - side)]);
            const StripSource& x = op.in[static_cast<std::size_t>(side)];
            if (factor && is_tile(x)) return std::pair{x, *factor};
        }
        return {};
    }

    /// The vector v for which `source` is -v.
    std::optional<StripSource> negated(const StripSource& source) const {
        const auto found = uses_.makers().find(source.index);
        if (source.home != Home::buffer || found == uses_.makers().end()) return {};
        const StripOp& op = found->second;
        const StripSource& in = op.in[0];
        if (op.op != Op::neg || op.super != Super::none) return {};
        // A vector, which `source` may have along the rows or the lanes.
        if (in.row_stride != 0 || in.view_row_axis >= 0 || in.lane_stride != 1) return {};
        if (op.out.row_stride != 0 || source.offset != op.out.offset) return {};
        StripSource result = source;
        result.home = in.home;
        result.index = in.index;
        result.offset = in.offset;
        if (in.home == Home::view) {
            if (source.row_stride != 0 && source.row_stride != 1) return {};
            result.row_stride = 0;
            result.view_row_axis = source.row_stride == 1 ? in.view_lane_axis : -1;
            result.view_lane_axis = source.lane_stride == 1 ? in.view_lane_axis : -1;
        }
        return in.home == Home::buffer || in.home == Home::view ? std::optional(result)
                                                                : std::nullopt;
    }

    /// `op` as a superinstruction with other operands.
    static StripOp super(const StripOp& op, Super super, StripFunction function,
                         std::initializer_list<StripSource> in) {
        StripOp result = op;
        result.super = super;
        result.function = function;
        result.in = {};
        std::copy(in.begin(), in.end(), result.in.begin());
        result.num_inputs = static_cast<int>(in.size());
        return result;
    }

    /// exp2(x * c - m), where c is a constant or a vector, exp2(x - m), and the sum of the results
    /// over rows.
    void exp2_sum(Chain& chain, std::size_t at) {
        StripOp& exp2 = chain.ops[at];
        const auto& table = program_.kernels->super;
        StripOp* argument = uses_.sole_maker(chain, exp2.in[0]);
        if (exp2.out.dtype != DType::f32 || !argument || !table.exp2_sum) return;
        const StripSource x = argument->in[0];
        if (!is_tile(x)) return;
        StripOp made;
        if (argument->op == Op::fma) {
            const auto c = constant(argument->in[1]);
            const auto m = negated(argument->in[2]);
            if (!m || (!c && argument->in[1].dtype != DType::f32)) return;
            made = super(exp2, Super::exp2_sum, table.exp2_sum, {x, *m});
            made.immediate[0] = c.value_or(1);
            if (!c) made.in[static_cast<std::size_t>(made.num_inputs++)] = argument->in[1];
        } else if (argument->op == Op::sub) {
            made = super(exp2, Super::exp2_sum, table.exp2_sum, {x, argument->in[1]});
            made.immediate[0] = 1;
            StripOp* product = uses_.sole_maker(chain, x);
            const auto split = product && product->op == Op::mul ? scaled(*product) : std::nullopt;
            if (split) {
                made.in[0] = split->first;
                made.immediate[0] = split->second;
                uses_.remove(*product);
            }
        } else {
            return;
        }
        uses_.remove(*argument);
        uses_.replace(exp2, std::move(made));
        reduce_with(chain, exp2, ir::Reduction::sum);
        round_result(chain, exp2, table.exp2_sum_bf16, table.exp2_sum_f16);
    }

    /// Where only a cast to 16 bits reads the result, the superinstruction rounds it.
    void round_result(Chain& chain, StripOp& made, StripFunction to_bf16, StripFunction to_f16) {
        if (made.stored_ref >= 0 || made.out.home != Home::buffer ||
            uses_.uses(made.out.index) != 1)
            return;
        for (StripOp& cast : chain.ops) {
            const bool rounds = cast.function && cast.kind == StripOp::Kind::map &&
                                cast.op == Op::cast && cast.super == Super::none &&
                                cast.stored_ref < 0 && cast.in[0] == made.out;
            if (!rounds) continue;
            const StripFunction function = cast.out.dtype == DType::bf16  ? to_bf16
                                           : cast.out.dtype == DType::f16 ? to_f16
                                                                          : nullptr;
            if (function == nullptr) return;
            StripOp rounded = made;
            rounded.function = function;
            rounded.out = cast.out;
            uses_.remove(cast);
            uses_.replace(made, std::move(rounded));
            return;
        }
    }

    /// Collects the comparisons whose conjunction makes `source`; false if there is anything else.
    /// Comparisons of vectors may be in other chains.
    bool conjunction(Chain& chain, const StripSource& source, std::vector<StripOp*>& parts,
                     std::vector<Affine>& forms) {
        if (StripOp* op = uses_.sole_maker(chain, source)) {
            if (op->super != Super::none) return false;
            parts.push_back(op);
            if (op->op == Op::bitwise_and) {
                return conjunction(chain, op->in[0], parts, forms) &&
                       conjunction(chain, op->in[1], parts, forms);
            }
            const auto form = affine_condition(*op, uses_.makers(), program_);
            if (form) forms.push_back(*form);
            return form.has_value();
        }
        const auto found = uses_.makers().find(source.index);
        if (source.home != Home::buffer || found == uses_.makers().end()) return false;
        const StripOp& op = found->second;
        const bool vector = op.kind == StripOp::Kind::map && op.super == Super::none &&
                            op.out.row_stride == 0 && op.out.lane_stride == 1;
        auto form = vector ? affine_condition(op, uses_.makers(), program_) : std::nullopt;
        if (!form || form->row != 0 || source.offset != op.out.offset) return false;
        forms.push_back(along(std::move(*form), source.row_stride, source.lane_stride));
        return true;
    }

    /// select(affine comparison, x, constant): one superinstruction per comparison.
    void affine_select(Chain& chain, std::size_t at) {
        const StripOp select = chain.ops[at];
        const auto value = constant(select.in[2]);
        if (!program_.kernels->super.affine_select || !value || !is_tile(select.in[1])) return;
        std::vector<StripOp*> parts;
        std::vector<Affine> forms;
        if (!conjunction(chain, select.in[0], parts, forms)) return;
        if (chain.ops.size() + forms.size() > Chain::kMaxOps) return;
        for (StripOp* part : parts) uses_.remove(*part);
        for (std::size_t i = 0; i < forms.size(); ++i) {
            StripOp op = super(select, Super::affine_select, program_.kernels->super.affine_select,
                               {i == 0 ? select.in[1] : select.out});
            op.immediate[3] = *value;
            op.in[1] = select.in[2];  // no operand of the kernel: for runs on ranges
            op.affine = std::move(forms[i]);
            if (i == 0) {
                uses_.replace(chain.ops[at], std::move(op));
            } else {
                uses_.add(chain, at + i, std::move(op));
            }
        }
    }

    /// Makes the sum or maximum over rows of an op's results part of the op.
    void reduce_with(Chain& chain, StripOp& maker, ir::Reduction reduction) {
        for (StripOp& op : chain.ops) {
            const bool reduces = op.function && op.kind == StripOp::Kind::reduce_rows &&
                                 op.in[0] == maker.out && op.reduction == reduction &&
                                 op.out.home == Home::buffer;
            if (!reduces) continue;
            StripOp reducing = maker;
            reducing.sum = op.out;
            reducing.identity = op.identity;
            uses_.remove(op);
            uses_.replace(maker, std::move(reducing));
            break;
        }
    }

    /// An index computed from positions, times a factor of a lane or a row, in a chain that uses it
    /// for nothing else: the index as an affine form, and the factor.
    std::optional<std::pair<Affine, StripSource>> sloped(Chain& chain, const StripOp& product,
                                                         StripOp*& cast) {
        for (const std::size_t side : {0U, 1U}) {
            cast = uses_.sole_maker(chain, product.in[side]);
            const StripSource& slope = product.in[1 - side];
            if (!cast || cast->op != Op::cast || slope.dtype != DType::f32) continue;
            const auto form = affine_form(cast->in[0], uses_.makers(), program_);
            if (form) return std::pair{*form, slope};
        }
        return {};
    }

    /// x + slope * index or x * constant + slope * index, where another instruction makes x and
    /// only superinstructions and reductions read the sum.
    void affine_add(Chain& chain, std::size_t at) {
        StripOp& sum = chain.ops[at];
        if (!program_.kernels->super.affine_add || sum.out.dtype != DType::f32) return;
        StripSource x = sum.in[2];
        double factor = 1;
        StripOp *cast = nullptr, *product = nullptr;
        auto index = is_tile(x) ? sloped(chain, sum, cast) : std::nullopt;
        if (!index) {
            product = uses_.sole_maker(chain, sum.in[2]);
            const auto c = constant(sum.in[1]);
            if (!product || product->op != Op::mul || product->super != Super::none || !c) return;
            x = sum.in[0];
            factor = *c;
            index = is_tile(x) ? sloped(chain, *product, cast) : std::nullopt;
            if (!index) return;
        }
        for (const StripOp& op : chain.ops) {
            const bool arithmetic = op.function && op.kind == StripOp::Kind::map &&
                                    op.super == Super::none && op.stored_ref < 0;
            if (arithmetic && &op != &sum && (op.out == x || reads(op, sum.out))) return;
        }
        StripOp made =
            super(sum, Super::affine_add, program_.kernels->super.affine_add, {x, index->second});
        made.immediate[3] = factor;
        made.affine = std::move(index->first);
        uses_.remove(*cast);
        if (product) uses_.remove(*product);
        uses_.replace(sum, std::move(made));
        reduce_with(chain, sum, ir::Reduction::max);
    }

    /// a * tanh(x * b).
    void softcap(Chain& chain, std::size_t at) {
        StripOp& mul = chain.ops[at];
        const auto outer = scaled(mul);
        if (mul.out.dtype != DType::f32 || !program_.kernels->super.softcap || !outer) return;
        StripOp* tanh = uses_.sole_maker(chain, outer->first);
        if (!tanh || tanh->op != Op::tanh) return;
        StripOp* product = uses_.sole_maker(chain, tanh->in[0]);
        const auto inner = product && product->op == Op::mul && product->super == Super::none
                               ? scaled(*product)
                               : std::nullopt;
        if (!inner) return;
        StripOp made = super(mul, Super::softcap, program_.kernels->super.softcap, {inner->first});
        made.immediate[0] = outer->second;
        made.immediate[1] = inner->second;
        uses_.remove(*product);
        uses_.remove(*tanh);
        uses_.replace(mul, std::move(made));
    }

    /// p * (dp - delta).
    void mul_sub_mul(Chain& chain, std::size_t at) {
        StripOp& mul = chain.ops[at];
        const auto& table = program_.kernels->super;
        if (mul.out.dtype != DType::f32 || !table.mul_sub_mul) return;
        for (const std::size_t side : {0U, 1U}) {
            StripOp* difference = uses_.sole_maker(chain, mul.in[side]);
            const StripSource& p = mul.in[1 - side];
            if (!difference || difference->op != Op::sub || difference->super != Super::none)
                continue;
            const StripSource &dp = difference->in[0], &delta = difference->in[1];
            if (!is_tile(p) || !is_tile(dp) || delta.dtype != DType::f32) continue;
            StripOp made = super(mul, Super::mul_sub_mul, table.mul_sub_mul, {p, dp, delta});
            made.immediate[0] = 1;
            uses_.remove(*difference);
            uses_.replace(mul, std::move(made));
            round_result(chain, mul, table.mul_sub_mul_bf16, table.mul_sub_mul_f16);
            return;
        }
    }

    const Program& program_;
    DefUse uses_;
};

}  // namespace

void select_superinstructions(Region& region, Program& program) {
    Selector(region, program).run();
}

}  // namespace tilewright::cpu
