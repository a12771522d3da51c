// Loop-invariant code motion, inner loops first.
#include "ir/passes/licm.h"

#include <algorithm>

#include "ir/passes/effects.h"

namespace tilewright::ir {
namespace {

class Hoister {
  public:
    explicit Hoister(Function& function)
        : function_(function), inside_(function.num_values(), false) {}

    LicmReport run() {
        block(function_.body);
        return report_;
    }

  private:
    void block(Block& block) {
        std::vector<Instruction> body;
        body.reserve(block.body.size());
        for (Instruction& instruction : block.body) {
            for (Block& inner : instruction.blocks) this->block(inner);
            if (instruction.op == Op::for_loop || instruction.op == Op::while_loop) {
                hoist(instruction, body);
            }
            body.push_back(std::move(instruction));
        }
        block.body = std::move(body);
    }

    // Marks every value defined in the loop, then moves out what depends on none of them. A moved
    // instruction's results are outside from then on, so one pass in order suffices.
    void hoist(Instruction& loop, std::vector<Instruction>& before) {
        mark(loop, true);
        const std::set<Value> writes = effects(loop).writes;
        for (Block& block : loop.blocks) {
            std::vector<Instruction> kept;
            kept.reserve(block.body.size());
            for (Instruction& instruction : block.body) {
                if (!invariant(instruction, writes)) {
                    kept.push_back(std::move(instruction));
                    continue;
                }
                for (Value result : instruction.results) inside_[result.id] = false;
                // The proof may have assumed that the loop runs at least once.
                forget_bounds(instruction);
                before.push_back(std::move(instruction));
                ++report_.hoisted;
            }
            block.body = std::move(kept);
        }
        mark(loop, false);
    }

    void mark(const Instruction& loop, bool value) {
        for (const Block& block : loop.blocks) {
            for (Value argument : block.arguments) inside_[argument.id] = value;
            for (const Instruction& instruction : block.body) {
                for (Value result : instruction.results) inside_[result.id] = value;
                mark(instruction, value);
            }
        }
    }

    // Operands of its blocks count, except values defined inside the instruction.
    bool uses_inside(const Instruction& instruction) const {
        for (Value operand : instruction.operands) {
            if (inside_[operand.id] && !own_.contains(operand)) return true;
        }
        for (const Block& block : instruction.blocks) {
            for (const Instruction& each : block.body) {
                if (uses_inside(each)) return true;
            }
        }
        return false;
    }

    bool invariant(const Instruction& instruction, const std::set<Value>& writes) {
        if (instruction.op == Op::yield) return false;
        const Effects what = effects(instruction);
        if (!what.removable() || what.may_hang) return false;
        for (Value read : what.reads) {
            if (may_write(function_, writes, read)) return false;
        }
        own_.clear();
        for (const Block& block : instruction.blocks) {
            own_.insert(block.arguments.begin(), block.arguments.end());
            walk(block, [&](const Instruction& each) {
                own_.insert(each.results.begin(), each.results.end());
                for (const Block& inner : each.blocks) {
                    own_.insert(inner.arguments.begin(), inner.arguments.end());
                }
            });
        }
        return !uses_inside(instruction);
    }

    void forget_bounds(Instruction& instruction) {
        const auto forget = [](Instruction& each) {
            if (each.op == Op::load) each.get<AccessAttributes>().in_bounds = false;
        };
        forget(instruction);
        for (Block& block : instruction.blocks) walk(block, forget);
    }

    Function& function_;
    LicmReport report_;
    std::vector<bool> inside_;  // defined in the current loop
    std::set<Value> own_;       // defined inside the current instruction
};

}  // namespace

LicmReport licm(Function& function) {
    return Hoister(function).run();
}

}  // namespace tilewright::ir
