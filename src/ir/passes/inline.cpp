// Inlining of mods: scalar code becomes tile code, with broadcasts where shapes differ.
#include "ir/passes/inline.h"

#include <map>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/passes/replace.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

// Applies a mod to the arguments of a call.
class Application {
  public:
    Application(Builder& builder, const Function& mod, std::span<const Value> arguments)
        : builder_(builder), mod_(mod) {
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            values_[mod.parameters()[i]] = arguments[i];
            if (!builder.function().is_ref(arguments[i])) {
                full_ = *joint_shape(full_, builder.type(arguments[i]).shape);
            }
        }
    }

    /// The results in the smallest shapes they can have.
    std::vector<Value> results() { return block(mod_.body); }

    /// The results in the joint shape of the arguments.
    std::vector<Value> run() {
        std::vector<Value> wide;
        for (Value value : results()) wide.push_back(builder_.broadcast(value, full_));
        return wide;
    }

  private:
    Value mapped(Value value) const { return values_.at(value); }
    Shape shape(Value value) const { return builder_.type(value).shape; }

    std::vector<Value> block(const Block& block) {
        for (const Instruction& instruction : block.body) {
            if (instruction.op == Op::yield) {
                std::vector<Value> yielded;
                for (Value value : instruction.operands) yielded.push_back(mapped(value));
                return yielded;
            }
            visit(instruction);
        }
        TW_ASSERT(false, "a block of @{} has no yield", mod_.name);
    }

    void bind(const Instruction& instruction, std::span<const Value> values) {
        for (std::size_t i = 0; i < values.size(); ++i) values_[instruction.results[i]] = values[i];
    }

    void visit(const Instruction& instruction) {
        for (Value result : instruction.results) {
            if (!mod_.type(result).is_scalar()) {
                user_error("call", "expected scalars only in @{} but got {} of type {}", mod_.name,
                           name(instruction.op), to_string(mod_.type(result)));
            }
        }
        switch (instruction.op) {
            case Op::if_else:
                return if_else(instruction);
            case Op::for_loop:
                return for_loop(instruction);
            case Op::while_loop:
                user_error("call",
                           "expected no while_loop in @{}: its elements may end at different "
                           "times",
                           mod_.name);
            case Op::load:
                return load(instruction);
            case Op::call:
                return call(instruction);
            case Op::random_bits:
                if (shape(mapped(instruction.operands[0])).rank() > 0) {
                    user_error("call", "expected a scalar key of random_bits in @{}", mod_.name);
                }
                return append(instruction,
                              {mapped(instruction.operands[0]), mapped(instruction.operands[1])});
            default:
                return append(instruction, joined(instruction.operands));
        }
    }

    // Operands broadcast to their joint shape; Refs unchanged.
    std::vector<Value> joined(std::span<const Value> operands) {
        Shape joint;
        std::vector<Value> result;
        for (Value value : operands) {
            result.push_back(mapped(value));
            if (!builder_.function().is_ref(result.back())) {
                joint = *joint_shape(joint, shape(result.back()));
            }
        }
        for (Value& value : result) {
            if (!builder_.function().is_ref(value)) value = builder_.broadcast(value, joint);
        }
        return result;
    }

    void append(const Instruction& instruction, std::vector<Value> operands) {
        Instruction copy;
        copy.op = instruction.op;
        copy.attributes = instruction.attributes;
        copy.location = instruction.location;
        Type requested;
        if (!instruction.results.empty()) requested.dtype = mod_.type(instruction.result()).dtype;
        if (!operands.empty() && !builder_.function().is_ref(operands.back())) {
            requested.shape = shape(operands.back());
        }
        copy.operands = std::move(operands);
        bind(instruction, builder_.append(std::move(copy), &requested));
    }

    // A scalar index that became a tile turns the load into a gather.
    void load(const Instruction& instruction) {
        const Access from = access(instruction);
        Instruction copy;
        copy.op = Op::load;
        copy.location = instruction.location;
        AccessAttributes attributes = instruction.get<AccessAttributes>();
        attributes.in_bounds = false;
        copy.operands.push_back(mapped(from.ref));
        Shape joint;
        for (std::size_t i = 0; i < from.indices.size(); ++i) {
            const Value index = mapped(from.indices[i]);
            copy.operands.push_back(index);
            if (shape(index).rank() > 0) attributes.indices[i].kind = Index::Kind::tile;
            joint = *joint_shape(joint, shape(index));
        }
        // A mask or other value that differs between elements gives the access its shape.
        for (Value value : {from.mask, from.other}) {
            if (!value) continue;
            const Value tile = mapped(value);
            const auto wide = joint_shape(joint, shape(tile));
            if (shape(tile).rank() > 0 && *wide != joint) {
                joint = *wide;
                widen_index(copy, attributes, joint);
            }
        }
        for (Value value : {from.mask, from.other}) {
            if (!value) continue;
            const Value tile = mapped(value);
            copy.operands.push_back(shape(tile).rank() > 0 ? builder_.broadcast(tile, joint)
                                                           : tile);
        }
        copy.attributes = std::move(attributes);
        bind(instruction, builder_.append(std::move(copy)));
    }

    void widen_index(Instruction& copy, AccessAttributes& attributes, const Shape& joint) {
        if (attributes.indices.empty()) {
            user_error("call", "expected a scalar mask for the load of a rank-0 Ref in @{}",
                       mod_.name);
        }
        copy.operands[1] = builder_.broadcast(copy.operands[1], joint);
        attributes.indices[0].kind = Index::Kind::tile;
    }

    void call(const Instruction& instruction) {
        std::vector<Value> arguments;
        for (Value value : instruction.operands) arguments.push_back(mapped(value));
        const Function& callee = *instruction.get<CallAttributes>().callee;
        bind(instruction, Application(builder_, callee, arguments).run());
    }

    // Mods write nothing, so both branches may run, and a select chooses.
    void if_else(const Instruction& instruction) {
        const Value condition = mapped(instruction.operands[0]);
        const std::vector<Value> if_true = block(instruction.blocks[0]);
        const std::vector<Value> if_false = block(instruction.blocks[1]);
        for (std::size_t i = 0; i < if_true.size(); ++i) {
            Shape joint = *joint_shape(shape(if_true[i]), shape(if_false[i]));
            joint = *joint_shape(joint, shape(condition));
            const Value wide =
                shape(condition).rank() > 0 ? builder_.broadcast(condition, joint) : condition;
            values_[instruction.results[i]] =
                builder_.select(wide, builder_.broadcast(if_true[i], joint),
                                builder_.broadcast(if_false[i], joint));
        }
    }

    void for_loop(const Instruction& instruction) {
        Value bounds[3];
        for (std::size_t i = 0; i < 3; ++i) {
            bounds[i] = mapped(instruction.operands[i]);
            if (shape(bounds[i]).rank() > 0) {
                user_error("call", "expected loop bounds in @{} that are equal for all elements",
                           mod_.name);
            }
        }
        std::vector<Value> init;
        for (Value value : std::span(instruction.operands).subspan(3)) {
            init.push_back(builder_.broadcast(mapped(value), full_));
        }
        const Block& body = instruction.blocks[0];
        bind(instruction,
             builder_.for_loop(bounds[0], bounds[1], bounds[2], init,
                               [&](Value iv, std::span<const Value> carries) {
                                   values_[body.arguments[0]] = iv;
                                   for (std::size_t i = 0; i < carries.size(); ++i) {
                                       values_[body.arguments[i + 1]] = carries[i];
                                   }
                                   std::vector<Value> next;
                                   for (Value value : block(body)) {
                                       next.push_back(builder_.broadcast(value, full_));
                                   }
                                   return next;
                               }));
    }

    Builder& builder_;
    const Function& mod_;
    Shape full_;  // joint shape of the arguments: that of the results
    std::map<Value, Value> values_;
};

class Inliner {
  public:
    explicit Inliner(Function& function) : function_(function), builder_(function) {}

    InlineReport run() {
        inline_block(function_.body);
        return report_;
    }

  private:
    void inline_block(Block& block) {
        std::vector<Instruction> old = std::move(block.body);
        block.body.clear();
        builder_.push_block(block);
        for (Instruction& instruction : old) {
            replaced_.apply(instruction);
            for (Block& inner : instruction.blocks) inline_block(inner);
            if (instruction.op != Op::call) {
                block.body.push_back(std::move(instruction));
                continue;
            }
            builder_.set_location(instruction.location);
            const Function& mod = *instruction.get<CallAttributes>().callee;
            const auto results = Application(builder_, mod, instruction.operands).run();
            for (std::size_t i = 0; i < results.size(); ++i) {
                replaced_.add(instruction.results[i], results[i]);
            }
            ++report_.calls;
        }
        builder_.pop_block();
    }

    Function& function_;
    Builder builder_;
    InlineReport report_;
    Replacements replaced_;
};

}  // namespace

std::vector<Value> append_mod(Builder& builder, const Function& mod,
                              std::span<const Value> arguments) {
    return Application(builder, mod, arguments).results();
}

InlineReport inline_calls(Function& function) {
    return Inliner(function).run();
}

}  // namespace tilewright::ir
