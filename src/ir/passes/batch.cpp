// A kernel over a batch.
#include "ir/passes/batch.h"

#include <map>
#include <set>

#include "ir/access.h"
#include "ir/passes/inline.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

/// The global Refs whose flag is set; Refs that may share memory must agree.
std::set<Value> mapped_refs(const Function& kernel, const std::vector<bool>& mapped) {
    std::vector<Value> refs;
    for (const Value parameter : kernel.parameters()) {
        if (kernel.is_ref(parameter) && kernel.ref_type(parameter).space == Space::global) {
            refs.push_back(parameter);
        }
    }
    if (refs.size() != mapped.size()) {
        user_error("batch", "expected a flag for each of {} arrays of `{}` but got {}", refs.size(),
                   kernel.name, mapped.size());
    }
    std::set<Value> result;
    std::map<int, bool> groups;
    for (std::size_t i = 0; i < refs.size(); ++i) {
        if (mapped[i]) result.insert(refs[i]);
        const int alias_group = kernel.ref_type(refs[i]).alias_group;
        if (alias_group < 0) continue;
        const auto [group, is_new] = groups.emplace(alias_group, mapped[i]);
        if (!is_new && group->second != mapped[i]) {
            user_error("batch",
                       "expected the Refs that share memory with `{}` of `{}` to be batched alike",
                       kernel.value_name(refs[i]), kernel.name);
        }
    }
    return result;
}

}  // namespace

void add_batch(Function& kernel, const std::vector<bool>& mapped, std::int64_t size) {
    inline_calls(kernel);
    const std::set<Value> refs = mapped_refs(kernel, mapped);
    std::map<Value, Value> batched;
    for (Value& parameter : kernel.body.arguments) {
        const Value ref = parameter;
        if (!refs.contains(ref)) continue;
        RefType type = kernel.ref_type(ref);
        if (type.rank() == kMaxRefRank) {
            user_error("batch", "expected `{}` of `{}` to have rank < {}", kernel.value_name(ref),
                       kernel.name, kMaxRefRank);
        }
        type.extents.insert(type.extents.begin(), size);
        parameter = kernel.add_ref(std::move(type));
        kernel.set_value_name(parameter, kernel.value_name(ref));
        batched.emplace(ref, parameter);
    }
    kernel.grid.insert(kernel.grid.begin(), size);

    Instruction element;
    element.op = Op::program_id;
    element.attributes = AxisAttributes{0};
    element.results = {kernel.add_value({DType::i64, {}})};
    walk(kernel.body, [&](Instruction& instruction) {
        if (instruction.op == Op::program_id || instruction.op == Op::num_programs) {
            ++instruction.get<AxisAttributes>().axis;
            return;
        }
        if (instruction.op != Op::extent && !is_access(instruction.op)) return;
        const auto ref = batched.find(instruction.operands[0]);
        if (ref == batched.end()) return;
        instruction.operands[0] = ref->second;
        if (instruction.op == Op::extent) {
            ++instruction.get<AxisAttributes>().axis;
        } else {
            instruction.operands.insert(instruction.operands.begin() + 1, element.result());
            auto& indices = instruction.get<AccessAttributes>().indices;
            indices.insert(indices.begin(), Index{});
        }
    });
    kernel.body.body.insert(kernel.body.body.begin(), std::move(element));
}

}  // namespace tilewright::ir
