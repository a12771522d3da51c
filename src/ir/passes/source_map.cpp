// Where a function's values are defined, and in which order.
#include "ir/passes/source_map.h"

#include <algorithm>

#include "ir/passes/effects.h"
#include "support/check.h"

namespace tilewright::ir {

SourceMap::SourceMap(const Function& function, std::int64_t max_tile_elements)
    : function_(function), max_tile_elements_(max_tile_elements) {
    for (Value parameter : function.parameters()) {
        definitions_[parameter] = {};
        oversized_[parameter] = false;
    }
    visit(function.body, nullptr);
}

void SourceMap::visit(const Block& block, const Instruction* parent) {
    const auto large = [&](Value value) {
        return function_.type(value).shape.size() > max_tile_elements_;
    };
    for (std::size_t i = 0; i < block.body.size(); ++i) {
        const Instruction& instruction = block.body[i];
        sites_[&instruction] = {&block, i, parent};
        bool any =
            std::ranges::any_of(instruction.operands, [&](Value v) { return oversized_[v]; });
        for (const Block& inner : instruction.blocks) {
            for (std::size_t j = 0; j < inner.arguments.size(); ++j) {
                const Value argument = inner.arguments[j];
                const bool counts = instruction.op == Op::for_loop;
                definitions_[argument] = {&instruction, counts && j > 0 ? j - 1 : j, true,
                                          counts && j == 0};
                oversized_[argument] = large(argument);
                any |= large(argument);
            }
            visit(inner, &instruction);
            walk(inner, [&](const Instruction& each) {
                const auto large_value = [&](Value v) { return oversized_[v]; };
                any |= std::ranges::any_of(each.results, large_value) ||
                       std::ranges::any_of(each.operands, large_value);
            });
        }
        for (std::size_t j = 0; j < instruction.results.size(); ++j) {
            definitions_[instruction.results[j]] = {&instruction, j, false, false};
            oversized_[instruction.results[j]] = any || large(instruction.results[j]);
        }
    }
}

const Definition& SourceMap::definition(Value value) const {
    return definitions_.at(value);
}

bool SourceMap::oversized(Value value) const {
    return oversized_.at(value);
}

bool SourceMap::oversized(const Instruction& instruction) const {
    const auto large = [&](Value value) { return oversized(value); };
    return std::ranges::any_of(instruction.operands, large) ||
           std::ranges::any_of(instruction.results, large);
}

bool SourceMap::computed_by(Value value, Op op) const {
    std::vector<Value> pending = {value};
    std::map<Value, bool> seen;
    while (!pending.empty()) {
        const Value next = pending.back();
        pending.pop_back();
        if (!seen.try_emplace(next, true).second) continue;
        const Instruction* instruction = definition(next).instruction;
        if (instruction == nullptr) continue;
        bool found = instruction->op == op;
        for (const Block& block : instruction->blocks) {
            walk(block, [&](const Instruction& each) { found |= each.op == op; });
        }
        if (found) return true;
        for (Value operand : instruction->operands) pending.push_back(operand);
    }
    return false;
}

// Outermost site first.
std::vector<SourceMap::Site> SourceMap::chain(const Instruction& instruction) const {
    std::vector<Site> result;
    for (const Instruction* at = &instruction; at != nullptr; at = sites_.at(at).parent) {
        result.push_back(sites_.at(at));
    }
    std::ranges::reverse(result);
    return result;
}

bool SourceMap::written_between(const Instruction& load, const Instruction& root) const {
    const std::vector<Site> from = chain(load), to = chain(root);
    std::size_t depth = 0;
    while (depth + 1 < from.size() && depth + 1 < to.size() &&
           from[depth].block == to[depth].block && from[depth].index == to[depth].index &&
           from[depth + 1].block == to[depth + 1].block) {
        ++depth;
    }
    TW_ASSERT(from[depth].block == to[depth].block, "no common block");
    const Block& block = *to[depth].block;
    const Value ref = load.operands[0];
    for (std::size_t i = from[depth].index + 1; i < to[depth].index; ++i) {
        if (may_write(function_, effects(block.body[i]).writes, ref)) return true;
    }
    // In a loop, the root runs again after everything else that the loop writes.
    const Instruction& holder = block.body[to[depth].index];
    return &holder != &root && may_write(function_, effects(holder).writes, ref);
}

}  // namespace tilewright::ir
