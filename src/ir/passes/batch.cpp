// A kernel over a batch.
#include "ir/passes/batch.h"

#include <map>
#include <set>

#include "ir/access.h"
#include "ir/passes/inline.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

/// The global Refs with a flag set; Refs that may share memory must agree.
std::set<Value> mapped_refs(const Function& kernel, const std::vector<bool>& mapped) {
    std::set<Value> result;
    std::map<int, bool> groups;
    std::size_t next = 0;
    for (const Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const RefType& type = kernel.ref_type(parameter);
        if (type.space != Space::global) continue;
        if (next == mapped.size()) break;
        const bool flag = mapped[next++];
        if (flag) result.insert(parameter);
        if (type.alias_group < 0) continue;
        const auto [group, is_new] = groups.emplace(type.alias_group, flag);
        if (!is_new && group->second != flag) {
            user_error("batch",
                       "expected the Refs that share memory with `{}` of `{}` to be batched alike",
                       kernel.value_name(parameter), kernel.name);
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
