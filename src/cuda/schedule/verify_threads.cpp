// The rules of programs without roles.
#include <algorithm>
#include <set>

#include "cuda/schedule/lifetimes.h"
#include "cuda/schedule/memory_order.h"
#include "cuda/schedule/register_names.h"
#include "cuda/schedule/verify_rules.h"
#include "ir/passes/facts.h"

namespace tilewright::cuda::schedule {
namespace {

// V19: what threads access, no other thread has accessed since the last barrier, if one of them
// writes; copies that are read have been waited for.
Broken unordered(const Block& block, MemoryOrder& order) {
    Broken found;
    for (const Instruction& made : block.body) {
        if (is_access(made) && order.needs_copies(made)) {
            return broken("@{} is read while copies are under way", made.attributes[0].text);
        }
        if (is_access(made) && order.needs_barrier(made)) {
            return broken("no barrier stands before an access of @{}", made.attributes[0].text);
        }
        if (made.is(Op::settle_copies)) return broken("it is open whether copies are waited for");
        order.follow(made, [&](const Block& inner) {
            if (!found) found = unordered(inner, order);
        });
        if (found) return found;
    }
    return std::nullopt;
}

/// The most elements from the first one on that a tile's place takes.
std::int64_t extent_of_place(const Instruction& made, const Layout& layout) {
    std::int64_t elements = 1;
    if (made.has("pitch")) {
        elements = made.number("pitch");
        for (int axis = 0; axis + 1 < layout.shape.rank(); ++axis) {
            elements *= cover(layout.shape[axis]).size();
        }
        return elements;
    }
    for (const std::int64_t extent : made.list("extents")) elements *= extent;
    return elements;
}

Broken broken_place(const Program& p, const Instruction& made, Value value,
                    const std::string& buffer) {
    const ValueType& type = p.type(value);
    const Layout layout = layout_in(p, value);
    const auto rank = static_cast<std::size_t>(type.type.shape.rank());
    const bool has_extents = made.list("extents").size() == rank;
    if (made.has("pitch") ? made.has("extents") : !has_extents) {
        return broken("the place of %{} has other axes", p.value_name(value));
    }
    const int bytes = size_of(dtype_in_memory(p, made, value));
    if (extent_of_place(made, layout) * bytes > p.buffer(buffer).slot_bytes()) {
        return broken("%{} is larger than @{}", p.value_name(value), buffer);
    }
    const std::int64_t vector = made.number("vector", 1);
    if (made.has("within") && (made.list("within").size() != 2 * rank || vector > 1)) {
        return broken("what is left out of %{} is not given by elements and axes",
                      p.value_name(value));
    }
    if (vector > 1 && (vector > vector_length(layout, static_cast<int>(rank) - 1) ||
                       vector * bytes > 16 || made.number("pitch") % vector != 0)) {
        return broken("%{} does not have {} neighbours in rows", p.value_name(value), vector);
    }
    return std::nullopt;
}

}  // namespace

Layout layout_in(const Program& p, Value value) {
    const auto& layout = p.type(value).layout;
    return layout ? *layout : Layout(ir::Shape(), p.warps());
}

// V12 of programs without roles: buffers that are in use at the same time do not overlap.
Broken places_in_time(const Program& p) {
    const std::map<std::string, Lifetime> lives = lifetimes(p);
    for (const auto& [name, life] : lives) {
        const Buffer& one = p.buffer(name);
        if (one.offset < 0 || one.offset + one.slot_bytes() > p.shared_bytes) {
            return broken("@{} lies outside of shared memory", name);
        }
        for (const auto& [before, other_life] : lives) {
            if (before == name) break;
            const Buffer& other = p.buffer(before);
            if (life.meets(other_life) && one.offset < other.offset + other.slot_bytes() &&
                other.offset < one.offset + one.slot_bytes()) {
                return broken("@{} overlaps @{}", name, before);
            }
        }
    }
    return std::nullopt;
}

Broken ordered_accesses(const Program& p) {
    MemoryOrder order(p);
    return unordered(p.body, order);
}

// V22: a tile in registers has a layout of its shape; what is shuffled stays in its warp, and what
// is relabelled in its thread.
Broken registers_of_values(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        for (const Value result : made.results) {
            const bool in_memory = is_operand_in_memory(made) || is_lines(made);
            if (p.is_tile(result) && !p.type(result).layout && !in_memory) {
                return broken("%{} has no layout", p.value_name(result));
            }
            const ValueType& type = p.type(result);
            if (type.layout && type.layout->shape != type.type.shape) {
                return broken("%{} has the layout of another shape", p.value_name(result));
            }
        }
        if (made.is(Op::shuffle) || made.is(Op::relabel)) {
            const Value from = made.operands.at(0), to = made.result();
            const auto kind = conversion(layout_in(p, from), layout_in(p, to)).kind;
            const bool moves = made.is(Op::relabel) && kind != Conversion::Kind::relabel;
            if (p.type(from).type != p.type(to).type || kind == Conversion::Kind::shared || moves) {
                return broken("elements of %{} leave their {}", p.value_name(to),
                              moves ? "thread" : "warp");
            }
        }
        return std::nullopt;
    });
}

// V24: a view has the elements of its operand in their threads and registers.
Broken views(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.op != Op::tile || !ir::is_view(made.tile)) return std::nullopt;
        const Value source = made.operands.at(0), result = made.result();
        if (!p.is_tile(source)) return std::nullopt;
        const auto& layout = p.type(result).layout;
        if (!layout) return broken("%{} has no layout", p.value_name(result));
        const ir::Shape& shape = p.type(source).type.shape;
        const bool ranks = !made.is(ir::Op::broadcast) || shape.rank() == layout->shape.rank();
        if (!ranks || layout_of_source(made, shape, *layout) != p.type(source).layout) {
            return broken("the elements of %{} are not in the registers of %{}",
                          p.value_name(result), p.value_name(source));
        }
        return std::nullopt;
    });
}

// V25: what variables are assigned has their type and layout.
Broken assignments(const Program& p) {
    std::set<Value> variables;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.is(Op::declare)) variables.insert(made.result());
    });
    const auto differ = [&](Value variable, Value value) -> Broken {
        if (p.type(variable) == p.type(value)) return std::nullopt;
        return broken("%{} has another type or layout than %{}", p.value_name(value),
                      p.value_name(variable));
    };
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::declare) && !made.operands.empty()) {
            return differ(made.result(), made.operands[0]);
        }
        if (!made.is(Op::assign)) return std::nullopt;
        const std::size_t count = made.operands.size() / 2;
        if (made.operands.size() % 2 != 0) return broken("a variable is assigned nothing");
        for (std::size_t i = 0; i < count; ++i) {
            const Value variable = made.operands[i];
            if (!variables.contains(variable)) {
                return broken("%{} is not declared", p.value_name(variable));
            }
            if (Broken found = differ(variable, made.operands[count + i])) return found;
        }
        return std::nullopt;
    });
}

// V23: a tile fits its place in shared memory, and is accessed by neighbours that its registers
// have.
Broken tiles_in_memory(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::write_tile)) {
            for (const Value operand : made.operands) {
                if (Broken found = broken_place(p, made, operand, made.symbol("writes"))) {
                    return found;
                }
            }
        }
        if (made.is(Op::read_tile)) {
            return broken_place(p, made, made.result(), made.symbol("reads"));
        }
        return std::nullopt;
    });
}

}  // namespace tilewright::cuda::schedule
