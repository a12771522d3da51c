// Effects of instructions.
#include "ir/passes/effects.h"

#include "ir/access.h"

namespace tilewright::ir {
namespace {

void collect(const Instruction& instruction, Effects& result) {
    const Op op = instruction.op;
    if (op == Op::load) {
        result.reads.insert(instruction.operands.at(0));
    } else if (is_access(op)) {
        result.writes.insert(instruction.operands.at(0));
        if (op != Op::store) result.reads.insert(instruction.operands.at(0));
    } else if (op == Op::debug_print || op == Op::debug_check) {
        result.debug = true;
    } else if (op == Op::while_loop) {
        result.may_hang = true;
    } else if (const Function* const mod = callee_of(instruction)) {
        // A mod writes nothing; it reads its Ref parameters, here the operands. That of a scan has
        // none.
        const Function& callee = *mod;
        Effects inner;
        walk(callee.body, [&](const Instruction& each) { collect(each, inner); });
        result.debug |= inner.debug;
        result.may_hang |= inner.may_hang;
        for (std::size_t i = 0; op == Op::call && i < instruction.operands.size(); ++i) {
            if (inner.reads.contains(callee.parameters()[i])) {
                result.reads.insert(instruction.operands[i]);
            }
        }
    }
    for (const Block& block : instruction.blocks) {
        for (const Instruction& each : block.body) collect(each, result);
    }
}

}  // namespace

Effects effects(const Instruction& instruction) {
    Effects result;
    collect(instruction, result);
    return result;
}

bool may_alias(const Function& function, Value a, Value b) {
    if (a == b) return true;
    const int group = function.ref_type(a).alias_group;
    return group >= 0 && group == function.ref_type(b).alias_group;
}

bool may_write(const Function& function, const std::set<Value>& writes, Value ref) {
    for (Value written : writes) {
        if (may_alias(function, written, ref)) return true;
    }
    return false;
}

}  // namespace tilewright::ir
