// Probabilities and score gradients of attention, from products to operands of products in one run.
#include "cpu/fuse_gradients.h"

#include <algorithm>
#include <optional>

namespace tilewright::cpu {
namespace {

/// Ops of a chain, from `first` on, that make P = exp2(s * c - m) and dS = P * (dP - delta).
class GradientRun {
  public:
    GradientRun(const Chain& chain, const DefUse& uses, const Superinstructions& table)
        : ops_(chain.ops), uses_(uses), table_(table) {}

    std::optional<FusedRun> plan(std::size_t first) {
        run_ = {};
        run_.first = at_ = first;
        const StripOp& exp2 = ops_[first];
        const bool is_exp2 = exp2.super == Super::exp2_sum && exp2.function == table_.exp2_sum &&
                             exp2.sum.home == Home::none && exp2.num_inputs == 2;
        if (!is_exp2 || !select_pairs()) return {};
        const std::size_t product = at_;
        if (!is_product(product)) return {};
        ++at_;
        std::optional<std::size_t> p_pairs, rows, pairs;
        for (; at_ < ops_.size(); ++at_) {
            const StripOp& op = ops_[at_];
            const bool of_gradient = op.in[0] == ops_[product].out;
            if (!rounds(op) || !(of_gradient || op.in[0] == probability_)) break;
            const bool in_pairs = op.super == Super::round_pairs;
            auto& place = !in_pairs ? rows : of_gradient ? pairs : p_pairs;
            if (place || !(in_pairs || of_gradient)) break;
            place = at_;
        }
        run_.last = at_;
        if (!p_pairs || !rows || !pairs || !is_local(ops_[product].out)) return {};
        for (std::size_t i = first; i < product; ++i) {
            if (!is_local(ops_[i].out)) return {};
        }
        run_.steps.resize(1);
        run_.steps[0].immediate = static_cast<float>(exp2.immediate[0]);
        run_.compiled = table_.gradient_pairs;
        run_.operands = {{first, 0},     {first, 1},  {product, 1}, {product, 2},
                         {*p_pairs, -1}, {*rows, -1}, {*pairs, -1}};
        return run_;
    }

  private:
    /// Passes the selects that set probabilities to 0, by conditions on positions.
    bool select_pairs() {
        probability_ = ops_[at_++].out;
        for (; at_ < ops_.size() && ops_[at_].super == Super::affine_select; ++at_) {
            const StripOp& select = ops_[at_];
            if (!(select.in[0] == probability_) || select.immediate[3] != 0) return false;
            probability_ = select.out;
            run_.forms.push_back(select.affine);
        }
        return at_ < ops_.size() && run_.forms.size() <= FusedCall::kMaxAffine;
    }

    /// P * (dP - delta), where delta lies as the shift of the exponents does.
    bool is_product(std::size_t at) const {
        const StripOp& op = ops_[at];
        return op.super == Super::mul_sub_mul && op.function == table_.mul_sub_mul &&
               op.in[0] == probability_ && op.immediate[0] == 1 &&
               op.in[2].lane_stride == ops_[run_.first].in[1].lane_stride;
    }

    static bool rounds(const StripOp& op) {
        const bool casts =
            op.kind == StripOp::Kind::map && op.stored_ref < 0 &&
            (op.super == Super::round_pairs || (op.super == Super::none && op.op == ir::Op::cast));
        return casts && op.function && op.out.dtype == DType::bf16 && op.out.home == Home::buffer &&
               op.out.lane_stride == 1;
    }

    /// True for a buffer that only ops of the run read.
    bool is_local(const StripSource& made) const {
        std::ptrdiff_t inside = 0;
        for (std::size_t i = run_.first; i < run_.last; ++i) {
            const StripOp& op = ops_[i];
            inside += std::count_if(
                op.in.begin(), op.in.begin() + op.num_inputs,
                [&](const auto& in) { return in.home == Home::buffer && in.index == made.index; });
        }
        return made.home == Home::buffer && inside == uses_.uses(made.index);
    }

    const std::vector<StripOp>& ops_;
    const DefUse& uses_;
    const Superinstructions& table_;
    FusedRun run_;
    std::size_t at_ = 0;
    StripSource probability_;
};

}  // namespace

bool plan_gradient_run(Chain& chain, const DefUse& uses, const Program& program) {
    const Kernels& kernels = *program.kernels;
    if (!kernels.super.gradient_pairs || chain.lanes < kernels.fused.lanes || chain.rows % 2 != 0)
        return false;
    for (std::size_t first = 0; first < chain.ops.size(); ++first) {
        if (auto run = GradientRun(chain, uses, kernels.super).plan(first)) {
            chain.fused.push_back(std::move(*run));
            return true;
        }
    }
    return false;
}

}  // namespace tilewright::cpu
