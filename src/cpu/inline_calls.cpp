// Replaces calls of mods by their bodies, applied to tiles.
#include "cpu/inline_calls.h"

#include <algorithm>
#include <map>

#include "ir/builder.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;

class Inliner {
  public:
    explicit Inliner(ir::Function& function) : function_(function), builder_(function) {}

    void run() { rewrite(function_.body); }

  private:
    using Bindings = std::map<Value, Value>;

    void rewrite(ir::Block& block) {
        std::vector<ir::Instruction> old = std::move(block.body);
        block.body.clear();
        for (ir::Instruction& instruction : old) {
            for (Value& operand : instruction.operands) operand = replaced(operand);
            for (ir::Block& inner : instruction.blocks) rewrite(inner);
            if (instruction.op != Op::call) {
                block.body.push_back(std::move(instruction));
                continue;
            }
            builder_.push_block(block);
            builder_.set_location(instruction.location);
            const std::vector<Value> results = expand(instruction);
            for (std::size_t i = 0; i < results.size(); ++i) {
                const ir::Type& wanted = function_.type(instruction.results[i]);
                replacements_[instruction.results[i]] =
                    builder_.broadcast(results[i], wanted.shape);
            }
            builder_.pop_block();
        }
    }

    Value replaced(Value value) const {
        const auto found = replacements_.find(value);
        return found == replacements_.end() ? value : found->second;
    }

    std::vector<Value> expand(const ir::Instruction& call) {
        const ir::Function& callee = *call.get<ir::CallAttributes>().callee;
        Bindings bindings;
        for (std::size_t i = 0; i < callee.parameters().size(); ++i) {
            bindings[callee.parameters()[i]] = call.operands[i];
        }
        return expand(callee, callee.body, bindings);
    }

    std::vector<Value> expand(const ir::Function& callee, const ir::Block& block,
                              Bindings& bindings) {
        for (const ir::Instruction& instruction : block.body) {
            std::vector<Value> operands;
            for (const Value operand : instruction.operands)
                operands.push_back(bindings.at(operand));
            if (instruction.op == Op::yield) return operands;
            const std::vector<Value> results = apply(callee, instruction, operands, bindings);
            for (std::size_t i = 0; i < results.size(); ++i) {
                bindings[instruction.results[i]] = results[i];
            }
        }
        TW_ASSERT(false, "a block of mod {} has no yield", callee.name);
        return {};
    }

    /// The shape that the tile operands broadcast to: the shape the mod is applied over.
    ir::Shape common_shape(const std::vector<Value>& values) const {
        ir::Shape shape;
        for (const Value value : values) {
            if (function_.is_ref(value)) continue;
            const ir::Shape& operand = function_.type(value).shape;
            if (operand.rank() == 0) continue;
            if (shape.rank() == 0) shape = operand;
            for (int axis = 0; axis < shape.rank(); ++axis) {
                if (shape[axis] == 1) shape[axis] = operand[axis];
            }
        }
        return shape;
    }

    void spread(std::vector<Value>& values, const ir::Shape& shape) {
        for (Value& value : values) {
            if (!function_.is_ref(value)) value = builder_.broadcast(value, shape);
        }
    }

    std::vector<Value> apply(const ir::Function& callee, const ir::Instruction& instruction,
                             std::vector<Value> operands, Bindings& bindings) {
        const ir::Shape shape = common_shape(operands);
        switch (instruction.op) {
            case Op::for_loop:
                return apply_for(callee, instruction, operands, bindings);
            case Op::if_else:
                return apply_if(callee, instruction, operands, bindings);
            case Op::call: {
                ir::Instruction inner = instruction;
                inner.operands = operands;
                return expand(inner);
            }
            case Op::while_loop:
                user_error("call", "expected a mod without a while loop but {} has one",
                           callee.name);
            default:
                break;
        }
        ir::Instruction copy;
        copy.op = instruction.op;
        copy.attributes = instruction.attributes;
        copy.location = instruction.location;
        const bool tiled = shape.rank() != 0;
        if (tiled && (instruction.op == Op::load)) {
            auto& access = copy.get<ir::AccessAttributes>();
            for (std::size_t i = 0; i < access.indices.size(); ++i) {
                if (function_.type(operands[i + 1]).shape.rank() != 0) {
                    access.indices[i].kind = ir::Index::Kind::tile;
                }
            }
            access.in_bounds = false;
        } else if (tiled &&
                   (ir::is_elementwise(instruction.op) || instruction.op == Op::random_bits)) {
            const Value key = operands.front();
            spread(operands, shape);
            if (instruction.op == Op::random_bits) operands.front() = key;
        }
        copy.operands = std::move(operands);
        ir::Type requested;
        const bool has_result = !instruction.results.empty();
        if (has_result) {
            requested = callee.type(instruction.result());
            if (tiled && requested.shape.rank() == 0) requested.shape = shape;
        }
        return builder_.append(std::move(copy), has_result ? &requested : nullptr);
    }

    std::vector<Value> apply_if(const ir::Function& callee, const ir::Instruction& instruction,
                                const std::vector<Value>& operands, Bindings& bindings) {
        // Both sides are evaluated: mods have no effects, and loads clip.
        std::vector<Value> if_true = expand(callee, instruction.blocks[0], bindings);
        std::vector<Value> if_false = expand(callee, instruction.blocks[1], bindings);
        std::vector<Value> results;
        for (std::size_t i = 0; i < if_true.size(); ++i) {
            std::vector<Value> parts{operands[0], if_true[i], if_false[i]};
            spread(parts, common_shape(parts));
            results.push_back(builder_.select(parts[0], parts[1], parts[2]));
        }
        return results;
    }

    std::vector<Value> apply_for(const ir::Function& callee, const ir::Instruction& instruction,
                                 std::vector<Value> operands, Bindings& bindings) {
        for (int i = 0; i < 3; ++i) {
            if (function_.type(operands[static_cast<std::size_t>(i)]).shape.rank() != 0) {
                user_error("call",
                           "expected loop bounds of mod {} that are the same for all elements",
                           callee.name);
            }
        }
        // A carry may become a tile in any turn: all are tiles from the start.
        const ir::Block& body = instruction.blocks[0];
        std::vector<Value> bound;
        for (const auto& [inner, outer] : bindings) bound.push_back(outer);
        const ir::Shape shape = common_shape(bound);
        std::vector<Value> init(operands.begin() + 3, operands.end());
        spread(init, shape);
        return builder_.for_loop(operands[0], operands[1], operands[2], init,
                                 [&](Value iv, std::span<const Value> carries) {
                                     bindings[body.arguments[0]] = iv;
                                     for (std::size_t i = 0; i < carries.size(); ++i) {
                                         bindings[body.arguments[i + 1]] = carries[i];
                                     }
                                     std::vector<Value> next = expand(callee, body, bindings);
                                     spread(next, shape);
                                     return next;
                                 });
    }

    ir::Function& function_;
    ir::Builder builder_;
    std::map<Value, Value> replacements_;
};

}  // namespace

void inline_calls(ir::Function& function) {
    Inliner(function).run();
}

}  // namespace tilewright::cpu
