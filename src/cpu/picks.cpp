// Recognises sums of selects that have one element.
#include "cpu/picks.h"

#include <algorithm>
#include <utility>

namespace tilewright::cpu {
namespace {

using ir::Instruction;
using ir::Op;
using ir::Value;

class Matcher {
  public:
    Matcher(const ir::Function& function, const ir::Definitions& definitions)
        : function_(function), definitions_(definitions) {}

    std::optional<PickForm> match(const Instruction& reduce) const {
        const auto& attributes = reduce.get<ir::ReduceAttributes>();
        const DType dtype = function_.type(reduce.result()).dtype;
        const bool known = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32 ||
                           dtype == DType::i64;
        if (attributes.kind != ir::Reduction::sum || !known) return {};
        PickForm form;
        form.axis = attributes.axis;
        Value chosen = reduce.operands[0];
        for (int axis = 0; axis < function_.type(chosen).shape.rank(); ++axis) {
            if (axis != form.axis) form.kept.push_back(axis);
        }
        // Sums over axes of one element change nothing but the shape.
        const Instruction* made = definitions_.of(chosen);
        while (made != nullptr && is_sum_of_one(*made)) {
            const int dropped = made->get<ir::ReduceAttributes>().axis;
            form.axis += form.axis >= dropped;
            for (int& axis : form.kept) axis += axis >= dropped;
            chosen = made->operands[0];
            made = definitions_.of(chosen);
        }
        if (made == nullptr || made->op != Op::select) return {};
        const auto condition = stripped(made->operands[0], form.axis);
        const Instruction* test = definitions_.of(condition.first);
        if (test == nullptr || (test->op != Op::eq && test->op != Op::ne)) return {};
        const std::size_t yes = test->op == Op::eq ? 1 : 2;
        if (definitions_.constant(made->operands[3 - yes]) != 0) return {};
        form.value = made->operands[yes];
        const std::int64_t extent = function_.type(chosen).shape[form.axis];
        for (const std::size_t side : {0, 1}) {
            if (!is_iota(test->operands[side], condition.second, extent)) continue;
            const Value at = stripped(test->operands[1 - side], -1).first;
            if (!function_.type(at).is_scalar()) continue;
            form.at = at;
            return form;
        }
        return {};
    }

  private:
    bool is_sum_of_one(const Instruction& made) const {
        if (made.op != Op::reduce) return false;
        const auto& attributes = made.get<ir::ReduceAttributes>();
        return attributes.kind == ir::Reduction::sum &&
               function_.type(made.operands[0]).shape[attributes.axis] == 1;
    }
    /// What a value is before broadcasts and new axes, and which axis `axis` is there (-1: none).
    std::pair<Value, int> stripped(Value value, int axis) const {
        for (;;) {
            const Instruction* made = definitions_.of(value);
            if (made == nullptr) return {value, axis};
            if (made->op == Op::expand_dims) {
                const int added = made->get<ir::AxisAttributes>().axis;
                axis = axis == added ? -1 : axis - (axis > added);
            } else if (made->op == Op::broadcast) {
                if (function_.type(made->operands[0]).is_scalar()) axis = -1;
            } else {
                return {value, axis};
            }
            value = made->operands[0];
        }
    }
    /// True for 0, 1, 2, ... along the axis, which does not overflow.
    bool is_iota(Value value, int axis, std::int64_t extent) const {
        const auto [source, along] = stripped(value, axis);
        const Instruction* made = definitions_.of(source);
        if (made == nullptr || made->op != Op::iota || along < 0) return false;
        const ir::Type& type = function_.type(source);
        return made->get<ir::AxisAttributes>().axis == along && type.shape[along] == extent &&
               (type.dtype == DType::i32 || type.dtype == DType::i64);
    }

    const ir::Function& function_;
    const ir::Definitions& definitions_;
};

}  // namespace

std::optional<PickForm> pick_form(const ir::Function& function, const ir::Definitions& definitions,
                                  const ir::Instruction& reduce) {
    return Matcher(function, definitions).match(reduce);
}

}  // namespace tilewright::cpu
