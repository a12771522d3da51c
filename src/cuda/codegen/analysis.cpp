// Facts about a kernel's values that code generation needs.
#include "cuda/codegen/analysis.h"

#include <algorithm>

namespace tilewright::cuda {
namespace {

using ir::Op;
using ir::Value;

constexpr int kMaxIndexMath = 48;  // instructions worth recomputing

}  // namespace

Analysis::Analysis(const ir::Function& function) : ir::Facts(function) {
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        if (ir::is_access(instruction.op) && instruction.op != Op::load) {
            written_.insert(root(instruction.operands[0]));
        }
    });
}

int Analysis::index_math_size(Value value) const {
    const auto known = index_math_.find(value);
    if (known != index_math_.end()) return known->second;
    int size = kMaxIndexMath + 1;
    const ir::Instruction* made = definition(value);
    if (function_.type(value).is_scalar()) {
        size = 0;
    } else if (made != nullptr) {
        const ir::FunctionInfo* const function = ir::function_info(made->op);
        const bool is_long = function != nullptr && function->work == ir::Work::long_function;
        const bool cheap = ir::is_view(made->op) || made->op == Op::constant ||
                           made->op == Op::iota || (ir::is_elementwise(made->op) && !is_long);
        if (cheap) {
            size = 1;
            for (Value operand : made->operands) size += index_math_size(operand);
            size = std::min(size, kMaxIndexMath + 1);
        }
    }
    index_math_[value] = size;
    return size;
}

bool Analysis::is_index_math(Value value) const {
    return index_math_size(value) <= kMaxIndexMath;
}

std::set<Value> Analysis::values_inside(const ir::Instruction& instruction) {
    std::set<Value> values;
    for (const ir::Block& block : instruction.blocks) {
        values.insert(block.arguments.begin(), block.arguments.end());
        ir::walk(block, [&](const ir::Instruction& inner) {
            values.insert(inner.results.begin(), inner.results.end());
            for (const ir::Block& deeper : inner.blocks) {
                values.insert(deeper.arguments.begin(), deeper.arguments.end());
            }
        });
    }
    return values;
}

Value Analysis::root(Value ref) const {
    const int group = function_.ref_type(ref).alias_group;
    if (group < 0) return ref;
    for (Value parameter : function_.parameters()) {
        if (function_.is_ref(parameter) && function_.ref_type(parameter).alias_group == group) {
            return parameter;
        }
    }
    return ref;
}

}  // namespace tilewright::cuda
