// What the passes of code generation and lowering ask about a kernel.
#include "cuda/codegen/kernel_facts.h"

#include <algorithm>
#include <vector>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

/// Does a permutation swap the last two axes and keep the others?
bool swaps_last_two(const std::vector<int>& permutation) {
    const auto rank = static_cast<int>(permutation.size());
    for (int i = 0; i + 2 < rank; ++i) {
        if (permutation[i] != i) return false;
    }
    return rank >= 2 && permutation[rank - 1] == rank - 2;
}

}  // namespace

KernelFacts::KernelFacts(const ir::Function& function, const Target& target, int warps, int stages)
    : Analysis(function), target_(target), warps_(warps), stages_(stages) {
    std::size_t order = 0;
    for (Value parameter : function.parameters()) {
        if (function.is_ref(parameter) && function.ref_type(parameter).space == ir::Space::global) {
            ref_order_[parameter] = order++;
        }
    }
}

const RefFacts* KernelFacts::facts_of(Value ref) const {
    const std::size_t order = ref_order_.at(ref);
    return order < target_.facts.size() ? &target_.facts[order] : nullptr;
}

bool KernelFacts::has_vectors(Value ref) const {
    const ir::RefType& array = function_.ref_type(ref);
    if (array.space == ir::Space::scratch) {
        return array.rank() > 0 &&
               (array.rank() == 1 || array.extents.back() * size_of(array.dtype) % 16 == 0);
    }
    const RefFacts* const facts = facts_of(ref);
    return facts != nullptr && facts->vectors;
}

bool KernelFacts::is_dense(Value ref) const {
    if (function_.ref_type(ref).space == ir::Space::scratch) return true;
    const RefFacts* const facts = facts_of(ref);
    return facts != nullptr && facts->dense;
}

bool KernelFacts::stays_inside(const Instruction& made, std::size_t dim) const {
    const auto& attributes = made.get<ir::AccessAttributes>();
    if (attributes.in_bounds) return true;
    const ir::Access access = ir::access(made);
    const ir::Index& index = attributes.indices[dim];
    const std::int64_t extent = function_.ref_type(access.ref).extents[dim];
    const Instruction* const known = constant(access.indices[dim]);
    if (index.kind == ir::Index::Kind::tile || extent == ir::kDynamic || known == nullptr) {
        return false;
    }
    const std::int64_t size = index.kind == ir::Index::Kind::slice ? index.size : 1;
    const auto first = static_cast<std::int64_t>(known->get<ir::ConstantAttributes>().bits);
    std::int64_t last = 0;
    if (__builtin_add_overflow(first, (size - 1) * index.stride, &last)) return false;
    return std::min(first, last) >= 0 && std::max(first, last) < extent;
}

int KernelFacts::contiguous_vector(const Instruction& made, int* axis) const {
    const ir::Access access = ir::access(made);
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    if (indices.empty() || !has_vectors(access.ref)) return 1;
    const ir::Index& last = indices.back();
    if (last.kind != ir::Index::Kind::slice || last.stride != 1) return 1;
    *axis = ir::access_shape(function_, made).axis.back();
    const std::int64_t most = 16 / size_of(function_.ref_type(access.ref).dtype);
    return static_cast<int>(
        std::min({most, divisor(access.indices.back()), std::int64_t{1} << cover(last.size).bits}));
}

int KernelFacts::access_vector(const Instruction& made, const Layout& layout) const {
    int axis = -1;
    const int vector = contiguous_vector(made, &axis);
    return vector > 1 ? std::min(vector, vector_length(layout, axis)) : vector;
}

bool KernelFacts::varies_along(Value value, int axis) const {
    const Instruction* const made = definition(value);
    if (type(value).is_scalar() || type(value).shape[axis] == 1) return false;
    if (made == nullptr) return true;
    const auto found = varies_.find({value, axis});
    if (found != varies_.end()) return found->second;
    const auto operands_vary = [&](int along) {
        return std::any_of(made->operands.begin(), made->operands.end(),
                           [&](Value operand) { return varies_along(operand, along); });
    };
    bool varies = true;
    if (made->op == Op::constant) {
        varies = false;
    } else if (made->op == Op::iota) {
        varies = made->get<ir::AxisAttributes>().axis == axis;
    } else if (made->op == Op::expand_dims) {
        varies = operands_vary(axis < made->get<ir::AxisAttributes>().axis ? axis : axis - 1);
    } else if (made->op == Op::transpose) {
        varies = operands_vary(
            made->get<ir::PermutationAttributes>().permutation[static_cast<std::size_t>(axis)]);
    } else if (made->op == Op::broadcast || ir::is_elementwise(made->op)) {
        varies = operands_vary(axis);
    }
    return varies_[{value, axis}] = varies;
}

bool KernelFacts::is_tile_load(const Instruction& made) const {
    return made.op == Op::load && !type(made.result()).is_scalar() &&
           function_.ref_type(made.operands[0]).space == ir::Space::global;
}

DotOperand KernelFacts::operand_of(const Instruction& dot, int side) const {
    const auto& attributes = dot.get<ir::DotAttributes>();
    DotOperand operand{dot.operands[side],
                       side == 0 ? attributes.transpose_a : attributes.transpose_b};
    const Instruction* made = definition(operand.value);
    while (made != nullptr && made->op == Op::transpose &&
           swaps_last_two(made->get<ir::PermutationAttributes>().permutation)) {
        operand.value = made->operands[0];
        operand.transposed = !operand.transposed;
        made = definition(operand.value);
    }
    return operand;
}

Value KernelFacts::before_rounding(Value value) const {
    const Instruction* const made = definition(value);
    if (made == nullptr || made->op != Op::cast) return value;
    const DType from = type(made->operands[0]).dtype, to = type(value).dtype;
    return from == DType::f32 && is_float(to) && size_of(to) == 2 ? made->operands[0] : value;
}

bool KernelFacts::is_lazy(const Instruction& made) const {
    if (made.results.empty() || type(made.result()).is_scalar()) return made.op == Op::constant;
    if (made.op == Op::constant || made.op == Op::iota) return true;
    if (made.op == Op::reshape) {
        // Free in every layout only where no element moves; the shapes alone decide that.
        return Layout(type(made.result()).shape, warps_)
            .reshaped(type(made.operands[0]).shape)
            .has_value();
    }
    if (ir::is_view(made.op)) return true;
    if (made.op == Op::cast) {
        const DType from = type(made.operands[0]).dtype, to = type(made.result()).dtype;
        // A narrow float is an f32 in registers; it is rounded only when something reads it
        // rounded, because dots and stores round as they pack.
        if (to == DType::f32 && is_float(from) && from != DType::f64) return true;
        if (from == DType::f32 && is_float(to) && size_of(to) == 2) return true;
    }
    return is_index_math(made.result());
}

bool KernelFacts::is_reduced(Value value, int axis) const {
    std::vector<std::pair<Value, int>> open{{value, 0}};
    std::set<Value> seen;
    while (!open.empty()) {
        const auto [next, depth] = open.back();
        open.pop_back();
        if (depth > 32 || !seen.insert(next).second) continue;
        for (const Instruction* user : users(next)) {
            if (user->op == Op::reduce &&
                (axis < 0 || user->get<ir::ReduceAttributes>().axis == axis)) {
                return true;
            }
            if (ir::is_elementwise(user->op)) open.emplace_back(user->result(), depth + 1);
        }
    }
    return false;
}

std::set<Value> written_in(const KernelFacts& facts, const Instruction& loop) {
    std::set<Value> written;
    ir::walk(loop.blocks[0], [&](const Instruction& each) {
        if (ir::is_access(each.op) && each.op != Op::load) {
            written.insert(facts.root(each.operands[0]));
        }
    });
    return written;
}

bool is_computable(const KernelFacts& facts, Value value, const std::set<Value>& inside,
                   Value induction) {
    if (value == induction || inside.count(value) == 0) return true;
    const Instruction* const made = facts.definition(value);
    if (made == nullptr || !facts.type(value).is_scalar()) return false;
    if (made->op == Op::constant || made->op == Op::program_id || made->op == Op::extent)
        return true;
    return ir::is_elementwise(made->op) &&
           std::all_of(made->operands.begin(), made->operands.end(), [&](Value operand) {
               return is_computable(facts, operand, inside, induction);
           });
}

}  // namespace tilewright::cuda
