// Cotangents of the values of straight-line code.
#include "ir/passes/reverse_sweep.h"

#include <algorithm>
#include <vector>

namespace tilewright::ir {

bool ReverseSweep::reads_active(const Instruction& instruction) const {
    const auto reads = [&](const Instruction& made) {
        return std::any_of(made.operands.begin(), made.operands.end(),
                           [&](Value v) { return is_active(v); });
    };
    if (reads(instruction)) return true;
    bool found = false;
    for (const Block& block : instruction.blocks) {
        walk(block, [&](const Instruction& inner) { found |= reads(inner); });
    }
    return found;
}

void ReverseSweep::mark(const Instruction& instruction) {
    if (instruction.op == Op::extent || !reads_active(instruction)) return;
    for (Value result : instruction.results) {
        if (is_float(builder_.type(result).dtype)) active_.insert(result);
    }
}

void ReverseSweep::accumulate(Value value, Cotangent cotangent) {
    if (!cotangent || !is_active(value)) return;
    Cotangent& sum = cotangents_[value];
    sum = derivatives_.add(sum, cotangent);
}

Cotangent ReverseSweep::cotangent(Value value) const {
    const auto found = cotangents_.find(value);
    return found == cotangents_.end() ? Cotangent{} : found->second;
}

void ReverseSweep::backward(const Instruction& at) {
    std::vector<Cotangent> given;
    for (Value result : at.results) given.push_back(cotangent(result));
    const bool wanted = std::any_of(given.begin(), given.end(),
                                    [](const Cotangent& d) { return static_cast<bool>(d); });
    if (!wanted || !reads_active(at)) return;
    const Instruction instruction = at;  // appending moves the instructions
    const std::vector<Cotangent> parts = derivatives_.operands(instruction, given);
    for (std::size_t i = 0; i < parts.size(); ++i) accumulate(instruction.operands[i], parts[i]);
}

}  // namespace tilewright::ir
