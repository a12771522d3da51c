// Replaces runs of operations in strip chains by superinstructions.
#include "cpu/superinstructions.h"

#include <algorithm>
#include <map>

#include "cpu/affine.h"
#include "cpu/operands.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

using ir::Op;

class Selector {
  public:
    Selector(Region& region, const Program& program) : program_(program) { collect(region); }

    void run() {
        for (Chain* chain : chains_) {
            for (std::size_t i = 0; i < chain->ops.size(); ++i) {
                if (chain->ops[i].op == Op::select) affine_select(*chain, i);
            }
            for (std::size_t i = 0; i < chain->ops.size(); ++i) {
                if (chain->ops[i].out.dtype != DType::f32) continue;
                if (chain->ops[i].op == Op::exp2) exp2_sum(*chain, i);
                if (chain->ops[i].op == Op::mul) softcap(*chain, i);
                if (chain->ops[i].op == Op::mul) mul_sub_mul(*chain, i);
            }
            for (std::size_t i = 0; i < chain->ops.size(); ++i) {
                if (chain->ops[i].op == Op::fma) affine_add(*chain, i);
            }
            std::erase_if(chain->ops, [](const StripOp& op) { return !op.function; });
        }
    }

  private:
    void collect(Region& region) {
        for (Node& node : region) {
            for (Region& inner : node.regions) collect(inner);
            if (node.kind != Node::Kind::instruction) continue;
            visit_operands(node.instruction, [&](Home home, std::uint32_t index, Use use) {
                if (home == Home::buffer && use != Use::write) ++reads_[index];
            });
            auto* chain = std::get_if<Chain>(&node.instruction);
            if (!chain) continue;
            chains_.push_back(chain);
            for (const StripOp& op : chain->ops) {
                if (op.out.home == Home::buffer) makers_[op.out.index] = op;
            }
        }
    }

    /// The op of `chain` that makes `source` and does so for one reader alone; nullptr if none.
    StripOp* sole_maker(Chain& chain, const StripSource& source) {
        if (source.home != Home::buffer || reads_[source.index] != 1) return nullptr;
        for (StripOp& op : chain.ops) {
            if (op.function && op.out == source && op.kind == StripOp::Kind::map) return &op;
        }
        return nullptr;
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
        const auto found = makers_.find(source.index);
        if (source.home != Home::buffer || found == makers_.end()) return {};
        const StripOp& op = found->second;
        const StripSource& in = op.in[0];
        if (op.op != Op::neg || op.super != Super::none) return {};
        // A vector, which `source` may see along the rows or the lanes.
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

    void drop(StripOp& op) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
            if (op.in[i].home == Home::buffer) --reads_[op.in[i].index];
        }
        op.function = nullptr;
        op.num_inputs = 0;
    }

    /// exp2(x * c - m), c a constant or a vector, exp2(x - m), and the sum of the results over
    /// rows.
    void exp2_sum(Chain& chain, std::size_t at) {
        StripOp& exp2 = chain.ops[at];
        StripOp* argument = sole_maker(chain, exp2.in[0]);
        if (!argument || !program_.kernels->super.exp2_sum) return;
        StripSource x, offset;
        std::optional<StripSource> factors;
        double factor = 1;
        if (argument->op == Op::fma) {
            const auto c = constant(argument->in[1]);
            const auto m = negated(argument->in[2]);
            if (!m || !is_tile(argument->in[0])) return;
            if (!c && argument->in[1].dtype != DType::f32) return;
            x = argument->in[0];
            if (c)
                factor = *c;
            else
                factors = argument->in[1];
            offset = *m;
        } else if (argument->op == Op::sub && is_tile(argument->in[0])) {
            x = argument->in[0];
            offset = argument->in[1];
            StripOp* product = sole_maker(chain, x);
            if (product && product->op == Op::mul) {
                if (const auto split = scaled(*product)) {
                    x = split->first;
                    factor = split->second;
                    ++reads_[x.index];
                    drop(*product);
                }
            }
        } else {
            return;
        }
        if (x.home == Home::buffer) ++reads_[x.index];
        if (offset.home == Home::buffer) ++reads_[offset.index];
        if (factors && factors->home == Home::buffer) ++reads_[factors->index];
        drop(*argument);
        exp2.super = Super::exp2_sum;
        exp2.function = program_.kernels->super.exp2_sum;
        exp2.in[0] = x;
        exp2.in[1] = offset;
        exp2.num_inputs = 2;
        if (factors) exp2.in[static_cast<std::size_t>(exp2.num_inputs++)] = *factors;
        exp2.immediate[0] = factor;
        reduce_with(chain, exp2, ir::Reduction::sum);
        const auto& super = program_.kernels->super;
        round_result(chain, exp2, super.exp2_sum_bf16, super.exp2_sum_f16);
    }

    /// Where a cast to 16 bits alone reads the result, the superinstruction does it.
    void round_result(Chain& chain, StripOp& made, StripFunction to_bf16, StripFunction to_f16) {
        if (made.stored_ref >= 0 || made.out.home != Home::buffer || reads_[made.out.index] != 1)
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
            made.function = function;
            made.out = cast.out;
            drop(cast);
            return;
        }
    }

    /// Gathers the comparisons whose conjunction makes `source`; false if there is anything else.
    /// Comparisons of vectors may have been made elsewhere.
    bool conjunction(Chain& chain, const StripSource& source, std::vector<StripOp*>& parts,
                     std::vector<Affine>& forms) {
        if (StripOp* op = sole_maker(chain, source)) {
            if (op->super != Super::none) return false;
            parts.push_back(op);
            if (op->op == Op::bitwise_and) {
                return conjunction(chain, op->in[0], parts, forms) &&
                       conjunction(chain, op->in[1], parts, forms);
            }
            const auto form = affine_condition(*op, makers_, program_);
            if (form) forms.push_back(*form);
            return form.has_value();
        }
        const auto found = makers_.find(source.index);
        if (source.home != Home::buffer || found == makers_.end()) return false;
        const StripOp& op = found->second;
        const bool vector = op.kind == StripOp::Kind::map && op.super == Super::none &&
                            op.out.row_stride == 0 && op.out.lane_stride == 1;
        auto form = vector ? affine_condition(op, makers_, program_) : std::nullopt;
        if (!form || form->row != 0 || source.offset != op.out.offset) return false;
        form->row = form->lane * source.row_stride;
        form->lane = form->lane * source.lane_stride;
        forms.push_back(*form);
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
        for (StripOp* part : parts) drop(*part);
        --reads_[select.in[0].index];
        std::vector<StripOp> replacement;
        for (Affine& form : forms) {
            StripOp op = select;
            op.super = Super::affine_select;
            op.function = program_.kernels->super.affine_select;
            op.in = {replacement.empty() ? select.in[1] : select.out, {}, {}, {}};
            op.num_inputs = 1;
            op.immediate[3] = *value;
            op.affine = std::move(form);
            replacement.push_back(std::move(op));
        }
        if (select.out.home == Home::buffer) {
            reads_[select.out.index] += static_cast<int>(forms.size()) - 1;
        }
        chain.ops[at] = replacement[0];
        chain.ops.insert(chain.ops.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                         replacement.begin() + 1, replacement.end());
    }

    /// The sum of the results of an op over rows, or their maximum, as part of the op.
    void reduce_with(Chain& chain, StripOp& maker, ir::Reduction reduction) {
        for (StripOp& op : chain.ops) {
            const bool reduces = op.function && op.kind == StripOp::Kind::reduce_rows &&
                                 op.in[0] == maker.out && op.reduction == reduction &&
                                 op.out.home == Home::buffer;
            if (!reduces) continue;
            maker.sum = op.out;
            maker.identity = op.identity;
            drop(op);
            break;
        }
    }

    /// An index made of positions times a factor of a lane or a row, in a chain that does nothing
    /// else with it: the index as an affine form and the factor.
    std::optional<std::pair<Affine, StripSource>> sloped(Chain& chain, const StripOp& product,
                                                         StripOp*& cast) {
        for (const std::size_t side : {0U, 1U}) {
            cast = sole_maker(chain, product.in[side]);
            const StripSource& slope = product.in[1 - side];
            if (!cast || cast->op != Op::cast || slope.dtype != DType::f32) continue;
            const auto form = affine_form(cast->in[0], makers_, program_);
            if (form) return std::pair{*form, slope};
        }
        return {};
    }

    /// x + slope * index or x * constant + slope * index, where x comes from another instruction
    /// and only superinstructions and reductions read the sum.
    void affine_add(Chain& chain, std::size_t at) {
        StripOp& sum = chain.ops[at];
        if (!program_.kernels->super.affine_add || sum.out.dtype != DType::f32) return;
        StripSource x = sum.in[2];
        double factor = 1;
        StripOp *cast = nullptr, *product = nullptr;
        auto index = is_tile(x) ? sloped(chain, sum, cast) : std::nullopt;
        if (!index) {
            product = sole_maker(chain, sum.in[2]);
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
        if (x.home == Home::buffer) ++reads_[x.index];
        if (index->second.home == Home::buffer) ++reads_[index->second.index];
        drop(*cast);
        if (product) drop(*product);
        const StripSource out = sum.out;
        drop(sum);
        sum.out = out;
        sum.super = Super::affine_add;
        sum.function = program_.kernels->super.affine_add;
        sum.in = {x, index->second, {}, {}};
        sum.num_inputs = 2;
        sum.immediate[3] = factor;
        sum.affine = std::move(index->first);
        reduce_with(chain, sum, ir::Reduction::max);
    }

    static bool reads(const StripOp& op, const StripSource& value) {
        return std::any_of(op.in.begin(), op.in.begin() + op.num_inputs, [&](const auto& in) {
            return in.home == value.home && in.index == value.index;
        });
    }

    /// a * tanh(x * b).
    void softcap(Chain& chain, std::size_t at) {
        StripOp& mul = chain.ops[at];
        const auto outer = scaled(mul);
        if (!program_.kernels->super.softcap || !outer) return;
        StripOp* tanh = sole_maker(chain, outer->first);
        if (!tanh || tanh->op != Op::tanh) return;
        StripOp* product = sole_maker(chain, tanh->in[0]);
        const auto inner = product && product->op == Op::mul && product->super == Super::none
                               ? scaled(*product)
                               : std::nullopt;
        if (!inner) return;
        if (inner->first.home == Home::buffer) ++reads_[inner->first.index];
        drop(*product);
        drop(*tanh);
        mul.super = Super::softcap;
        mul.function = program_.kernels->super.softcap;
        mul.in = {inner->first, {}, {}, {}};
        mul.num_inputs = 1;
        mul.immediate[0] = outer->second;
        mul.immediate[1] = inner->second;
    }

    /// p * (dp - delta).
    void mul_sub_mul(Chain& chain, std::size_t at) {
        StripOp& mul = chain.ops[at];
        if (!program_.kernels->super.mul_sub_mul || mul.super != Super::none) return;
        for (const std::size_t side : {0U, 1U}) {
            StripOp* difference = sole_maker(chain, mul.in[side]);
            const StripSource p = mul.in[1 - side];
            if (!difference || difference->op != Op::sub || difference->super != Super::none)
                continue;
            if (!is_tile(p) || !is_tile(difference->in[0])) continue;
            const StripSource dp = difference->in[0], delta = difference->in[1];
            if (delta.dtype != DType::f32) continue;
            if (dp.home == Home::buffer) ++reads_[dp.index];
            if (delta.home == Home::buffer) ++reads_[delta.index];
            drop(*difference);
            mul.super = Super::mul_sub_mul;
            mul.function = program_.kernels->super.mul_sub_mul;
            mul.in = {p, dp, delta, {}};
            mul.num_inputs = 3;
            mul.immediate[0] = 1;
            const auto& super = program_.kernels->super;
            round_result(chain, mul, super.mul_sub_mul_bf16, super.mul_sub_mul_f16);
            return;
        }
    }

    const Program& program_;
    std::vector<Chain*> chains_;
    std::map<std::uint32_t, int> reads_;  ///< per buffer
    Makers makers_;                       ///< as before any replacement
};

}  // namespace

void select_superinstructions(Region& region, Program& program) {
    Selector(region, program).run();
}

}  // namespace tilewright::cpu
