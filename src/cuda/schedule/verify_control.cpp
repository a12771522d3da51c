// The rule of loops, branches and scratch in programs without roles.
#include <algorithm>
#include <set>

#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {
namespace {

bool is_scalar(const Program& p, Value value, DType dtype) {
    return !p.is_tile(value) && p.type(value).type.dtype == dtype;
}

Broken broken_indices(const Program& p, const Instruction& made) {
    for (const Value operand : made.operands) {
        const DType dtype = p.type(operand).type.dtype;
        if (p.is_tile(operand) || !is_integer(dtype) || dtype == DType::boolean) {
            return broken("%{} is no scalar index", p.value_name(operand));
        }
    }
    return std::nullopt;
}

Broken broken_index_of_loop(const Program& p, Value value) {
    if (is_scalar(p, value, DType::i64)) return std::nullopt;
    return broken("%{} is no index of a loop", p.value_name(value));
}

bool leaves(const Instruction& loop) {
    const std::vector<Instruction>& body = loop.blocks[0].body;
    return std::any_of(body.begin(), body.end(),
                       [](const Instruction& made) { return made.is(Op::leave); });
}

/// The most operands and blocks that an operation of control flow has, and the least.
Broken broken_counts(const Instruction& made) {
    const std::size_t operands = made.operands.size(), blocks = made.blocks.size();
    const bool fits = made.is(Op::loop)     ? blocks == 1 && (operands == 0 || operands == 3)
                      : made.is(Op::branch) ? operands == 1 && (blocks == 1 || blocks == 2)
                                            : operands == 2 && blocks == 1;
    if (fits) return std::nullopt;
    return broken("`{}` has another number of operands or blocks", name(made.op));
}

Broken broken_scratch(const Program& p, const Instruction& made) {
    const Parameter& array = p.ref(made.symbol("of"));
    std::int64_t bytes = size_of(array.dtype);
    for (const std::int64_t extent : array.extents) bytes *= extent;
    if (!array.scratch || made.has("at") == made.has("uses")) {
        return broken("@{} has two places, or none", array.name);
    }
    const std::int64_t space = made.has("at") ? made.number("stride") - made.number("at")
                                              : p.buffer(made.symbol("uses")).slot_bytes();
    if (bytes > space) {
        return broken("@{} does not fit the {} bytes of a program", array.name,
                      made.has("at") ? made.number("stride") : space);
    }
    return std::nullopt;
}

class Control {
  public:
    explicit Control(const Program& p) : p_(p) {
        each_instruction(p.body, [&](const Instruction& made) {
            if (made.is(Op::declare)) variables_.insert(made.result());
        });
    }

    Broken block(const Block& of, bool may_leave) {
        for (const Instruction& made : of.body) {
            if (made.is(Op::leave) && !may_leave) {
                return broken("a loop is left from outside of it");
            }
            if (Broken found = instruction(made)) return found;
            const bool endless = made.is(Op::loop) && made.operands.empty();
            for (const Block& inner : made.blocks) {
                if (Broken found = block(inner, endless)) return found;
            }
            if (endless && !leaves(made)) return broken("a loop does not end");
        }
        return std::nullopt;
    }

  private:
    Broken instruction(const Instruction& made) const {
        switch (made.op) {
            case Op::loop:
            case Op::scope:
                if (Broken found = broken_counts(made)) return found;
                if (Broken found = broken_indices(p_, made)) return found;
                if (made.operands.size() != 3) return std::nullopt;
                if (made.blocks[0].arguments.size() != 1) return broken("a loop has one index");
                return broken_index_of_loop(p_, made.blocks[0].arguments[0]);
            case Op::branch:
                if (Broken found = broken_counts(made)) return found;
                [[fallthrough]];
            case Op::leave:
                if (is_scalar(p_, made.operands.at(0), DType::boolean)) return std::nullopt;
                return broken("%{} is no condition", p_.value_name(made.operands[0]));
            case Op::index:
            case Op::following:
                if (Broken found = broken_indices(p_, made)) return found;
                return broken_index_of_loop(p_, made.result());
            case Op::advance:
                if (Broken found = broken_indices(p_, made)) return found;
                if (Broken found = broken_variable(made)) return found;
                return broken_index_of_loop(p_, made.operands[0]);
            case Op::next_slot:
                if (Broken found = broken_variable(made)) return found;
                [[fallthrough]];
            case Op::before:
                if (made.number("slots") < 1) {
                    return broken("a slot of {}", made.number("slots"));
                }
                return broken_indices(p_, made);
            case Op::place_scratch:
                return broken_scratch(p_, made);
            default:
                return std::nullopt;
        }
    }

    Broken broken_variable(const Instruction& made) const {
        if (variables_.contains(made.operands.at(0))) return std::nullopt;
        return broken("%{} is not declared", p_.value_name(made.operands[0]));
    }

    const Program& p_;
    std::set<Value> variables_;
};

}  // namespace

// V34: heads of blocks are scalars, a loop without an end of its own is left, what is advanced is a
// variable, and scratch has one place that it fits.
Broken control(const Program& p) {
    return Control(p).block(p.body, false);
}

}  // namespace tilewright::cuda::schedule
