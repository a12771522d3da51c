// Constant folding: the walk and the rules for control flow. simplify.cpp has the rules for ops.
#include "ir/passes/fold.h"

#include "ir/passes/replace.h"
#include "ir/passes/simplify.h"

namespace tilewright::ir {
namespace {

class Folder {
  public:
    explicit Folder(Function& function) : function_(function), known_(function.num_values()) {}

    FoldReport run() {
        fold(function_.body);
        return report_;
    }

  private:
    using Body = std::vector<Instruction>;

    void fold(Block& block) {
        Body old = std::move(block.body);
        block.body.clear();
        for (Instruction& instruction : old) visit(std::move(instruction), block.body);
    }

    void visit(Instruction instruction, Body& out) {
        replaced_.apply(instruction);
        switch (instruction.op) {
            case Op::for_loop:
                return for_loop(std::move(instruction), out);
            case Op::while_loop:
                return while_loop(std::move(instruction), out);
            case Op::if_else:
                return if_else(std::move(instruction), out);
            default:
                break;
        }
        // The result of one rule may match another: select of not, chains of sums.
        for (Simplified found; (found = simplify(function_, instruction, known_));) {
            if (found.constant) {
                ++report_.constants;
                return make_constant(instruction, *found.constant, out);
            }
            ++report_.identities;
            if (found.value) return replaced_.add(instruction.result(), found.value);
            found.instruction->results = instruction.results;
            found.instruction->location = instruction.location;
            instruction = std::move(*found.instruction);
            if (found.last_operand) {
                const Type type = function_.type(instruction.result());
                instruction.operands.push_back(new_constant(type, *found.last_operand, out));
            }
        }
        emit(std::move(instruction), out);
    }

    void emit(Instruction instruction, Body& out) {
        known_.define(instruction);
        out.push_back(std::move(instruction));
    }

    void make_constant(const Instruction& instruction, std::uint64_t bits, Body& out) {
        Instruction constant;
        constant.op = Op::constant;
        constant.attributes = ConstantAttributes{bits};
        constant.results = instruction.results;
        constant.location = instruction.location;
        emit(std::move(constant), out);
    }

    Value new_constant(const Type& type, std::uint64_t bits, Body& out) {
        Instruction constant;
        constant.op = Op::constant;
        constant.attributes = ConstantAttributes{bits};
        constant.results = {function_.add_value(type)};
        const Value value = constant.result();
        emit(std::move(constant), out);
        return value;
    }

    void replace(std::span<const Value> from, std::span<const Value> to) {
        for (std::size_t i = 0; i < from.size(); ++i) replaced_.add(from[i], to[i]);
    }

    // Replaces the instruction that holds a block by the block's body.
    void splice(const Instruction& holder, Block& block, Body& out) {
        ++report_.control;
        Body body = std::move(block.body);
        for (Instruction& inner : body) {
            if (inner.op == Op::yield) {
                replaced_.apply(inner);
                replace(holder.results, inner.operands);
            } else {
                visit(std::move(inner), out);
            }
        }
    }

    void if_else(Instruction instruction, Body& out) {
        if (const auto condition = known_.constant(instruction.operands[0])) {
            return splice(instruction, instruction.blocks[*condition ? 0 : 1], out);
        }
        for (Block& block : instruction.blocks) fold(block);
        drop_equal_results(instruction);
        out.push_back(std::move(instruction));
    }

    // A result for which both branches yield the same value, defined outside, is that value.
    void drop_equal_results(Instruction& branch) {
        std::vector<Value>& then_values = branch.blocks[0].body.back().operands;
        std::vector<Value>& else_values = branch.blocks[1].body.back().operands;
        for (std::size_t i = then_values.size(); i-- > 0;) {
            if (then_values[i] != else_values[i]) continue;
            replaced_.add(branch.results[i], then_values[i]);
            const auto at = static_cast<std::ptrdiff_t>(i);
            branch.results.erase(branch.results.begin() + at);
            then_values.erase(then_values.begin() + at);
            else_values.erase(else_values.begin() + at);
            ++report_.control;
        }
    }

    std::optional<std::int64_t> integer(Value value) const {
        const auto bits = known_.constant(value);
        return bits ? std::optional(static_cast<std::int64_t>(*bits)) : std::nullopt;
    }

    void for_loop(Instruction loop, Body& out) {
        const auto lo = integer(loop.operands[0]), hi = integer(loop.operands[1]),
                   step = integer(loop.operands[2]);
        const std::span<const Value> init = std::span(loop.operands).subspan(3);
        const bool empty = (lo && hi && *lo >= *hi) || (step && *step <= 0) ||
                           loop.operands[0] == loop.operands[1];
        if (empty) {
            ++report_.control;
            return replace(loop.results, init);
        }
        // hi - lo as unsigned: it may exceed the signed range.
        const bool once = lo && hi && step &&
                          static_cast<std::uint64_t>(*hi) - static_cast<std::uint64_t>(*lo) <=
                              static_cast<std::uint64_t>(*step);
        Block& block = loop.blocks[0];
        if (once) {
            replaced_.add(block.arguments[0], loop.operands[0]);
            replace(std::span(block.arguments).subspan(1), init);
            return splice(loop, block, out);
        }
        drop_invariant_carries(loop, 3, block, 1, nullptr);
        fold(block);
        out.push_back(std::move(loop));
    }

    void while_loop(Instruction loop, Body& out) {
        drop_invariant_carries(loop, 0, loop.blocks[1], 0, &loop.blocks[0]);
        for (Block& block : loop.blocks) fold(block);
        const Value condition = loop.blocks[0].terminator().operands[0];
        if (known_.constant(condition) == std::uint64_t{0}) {
            ++report_.control;
            return replace(loop.results, loop.operands);
        }
        out.push_back(std::move(loop));
    }

    // A carry that yields itself is its initial value throughout.
    void drop_invariant_carries(Instruction& loop, std::size_t first_operand, Block& block,
                                std::size_t first_argument, Block* condition) {
        std::vector<Value>& yielded = block.body.back().operands;
        for (std::size_t i = yielded.size(); i-- > 0;) {
            const auto at = [i](std::vector<Value>& values, std::size_t first) {
                return values.begin() + (first + i);
            };
            if (yielded[i] != block.arguments[first_argument + i]) continue;
            const Value init = loop.operands[first_operand + i];
            replaced_.add(block.arguments[first_argument + i], init);
            replaced_.add(loop.results[i], init);
            yielded.erase(at(yielded, 0));
            block.arguments.erase(at(block.arguments, first_argument));
            loop.operands.erase(at(loop.operands, first_operand));
            loop.results.erase(at(loop.results, 0));
            if (condition != nullptr) {
                replaced_.add(condition->arguments[i], init);
                condition->arguments.erase(at(condition->arguments, 0));
            }
            ++report_.control;
        }
    }

    Function& function_;
    FoldReport report_;
    KnownValues known_;
    Replacements replaced_;
};

}  // namespace

FoldReport fold(Function& function) {
    return Folder(function).run();
}

}  // namespace tilewright::ir
