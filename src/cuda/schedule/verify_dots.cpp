// The rules of products in programs without roles.
#include <algorithm>
#include <map>
#include <set>

#include "cuda/codegen/mma_fragments.h"
#include "cuda/schedule/array_access.h"
#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {
namespace {

bool is_product(const Instruction& made) {
    return made.is(Op::mma) || made.is(Op::multiply_add);
}

/// The buffers of the tiles in shared memory.
std::map<Value, std::string> tiles_in_buffers(const Program& p) {
    std::map<Value, std::string> found;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.is(Op::write_operand)) found[made.result()] = made.symbol("writes");
        if (made.is(Op::shared_tile)) found[made.result()] = made.symbol("uses");
    });
    return found;
}

Broken broken_rows(const Program& p, const Instruction& made) {
    const ir::Type& type = p.type(made.result()).type;
    const std::string& name = p.value_name(made.result());
    const std::string& buffer = made.symbol(made.is(Op::write_operand) ? "writes" : "uses");
    const std::int64_t row = made.number("row_bytes"), group = made.number("group");
    if (p.type(made.result()).layout || type.shape.rank() < 2 || type.shape.rank() > 3) {
        return broken("%{} is no matrix in shared memory", name);
    }
    if (row % 16 != 0 || row < type.shape[type.shape.rank() - 1] * size_of(type.dtype) ||
        group < 16 || group > 128 || (group & (group - 1)) != 0 || row % group != 0) {
        return broken("rows of {} bytes in groups of {} do not fit %{}", row, group, name);
    }
    if (covered_rows(type.shape) * row > p.buffer(buffer).slot_bytes()) {
        return broken("%{} is larger than @{}", name, buffer);
    }
    if (made.is(Op::write_operand)) {
        const ValueType& from = p.type(made.operands.at(0));
        const bool narrows = combined_dtype(type.dtype) == combined_dtype(from.type.dtype);
        if (!from.layout || from.type.shape != type.shape || !narrows) {
            return broken("%{} is not %{} in shared memory", name, p.value_name(made.operands[0]));
        }
    }
    return std::nullopt;
}

/// The shape of an operand as the product reads it, [.., m, k] or [.., k, n].
ir::Shape read_shape(const Program& p, Value operand, bool moved) {
    ir::Shape shape = p.type(operand).type.shape;
    const int rank = shape.rank();
    if (moved && rank >= 2) std::swap(shape[rank - 2], shape[rank - 1]);
    return shape;
}

Broken broken_product(const Program& p, const Instruction& made,
                      const std::map<Value, std::string>& tiles, const std::set<Value>& variables) {
    const auto name = [&](Value value) { return p.value_name(value); };
    const Value sums = made.operands.at(0), a = made.operands.at(1), b = made.operands.at(2);
    if (!variables.contains(sums)) return broken("%{} is not declared", name(sums));
    const bool left_in_memory = tiles.contains(a);
    if (!tiles.contains(b) || (!left_in_memory && made.is(Op::multiply_add))) {
        return broken("%{} is not in shared memory", name(tiles.contains(b) ? a : b));
    }
    const Layout layout = layout_in(p, sums);
    const ir::Shape left = read_shape(p, a, made.has("transpose_a")),
                    right = read_shape(p, b, made.has("transpose_b"));
    const int rank = layout.shape.rank();
    bool fits = rank >= 2 && left.rank() == rank && right.rank() == rank;
    fits = fits && left[rank - 2] == layout.shape[rank - 2] &&
           right[rank - 1] == layout.shape[rank - 1] && left[rank - 1] == right[rank - 2] &&
           (rank == 2 || (left[0] == layout.shape[0] && right[0] == layout.shape[0]));
    if (!fits) return broken("the operands of %{} do not fit its shape", name(sums));
    if (made.is(Op::multiply_add)) return std::nullopt;
    const DType in = p.type(b).type.dtype, of_left = p.type(a).type.dtype;
    if (size_of(in) > 4 && in != DType::f64) {
        return broken("mma.sync multiplies no %{}", name(b));
    }
    const MmaUnit& unit = mma_unit(in);
    const bool bytes = size_of(in) == 1;
    if (is_float(in) == bytes || combined_dtype(p.type(sums).type.dtype) != unit.sum) {
        return broken("%{} is no sum of products of {}", name(sums), tilewright::name(in));
    }
    if (!holds_sums(layout, unit) || cover(left[rank - 1]).size() % unit.step != 0) {
        return broken("%{} has another layout than sums of mma.sync", name(sums));
    }
    if (left_in_memory) {
        if (of_left != in && !(bytes && is_integer(of_left) && size_of(of_left) == 1)) {
            return broken("%{} and %{} have different types", name(a), name(b));
        }
        return std::nullopt;
    }
    const bool rounded = p.type(a).packed ? of_left == in : combined_dtype(of_left) == DType::f32;
    if (size_of(in) != 2 || !rounded || made.has("transpose_a") ||
        p.type(a).layout != left_fragments(layout, in, left[rank - 1])) {
        return broken("%{} is not in the registers from which products read", name(a));
    }
    return std::nullopt;
}

}  // namespace

// V32: what products read of shared memory fits its buffer, and nothing else reads it.
Broken operands_in_memory(const Program& p) {
    const std::map<Value, std::string> tiles = tiles_in_buffers(p);
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (is_operand_in_memory(made)) {
            if (Broken found = broken_rows(p, made)) return found;
        }
        for (const Value operand : made.operands) {
            const auto tile = tiles.find(operand);
            if (tile == tiles.end()) continue;
            if (!is_product(made) && !made.is(Op::read_fragments)) {
                return broken("%{} is in shared memory, and is read as if in registers",
                              p.value_name(operand));
            }
            const bool reads = std::any_of(
                made.attributes.begin(), made.attributes.end(), [&](const Attribute& one) {
                    return one.name == "reads" && one.text == tile->second;
                });
            if (!reads) {
                return broken("an operand reads @{} without saying so", tile->second);
            }
        }
        return std::nullopt;
    });
}

// V33: sums and operands of products fit together; those in registers are in the threads that the
// instructions ask for.
Broken products(const Program& p) {
    const std::map<Value, std::string> tiles = tiles_in_buffers(p);
    std::set<Value> variables;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.is(Op::declare)) variables.insert(made.result());
    });
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (is_product(made)) return broken_product(p, made, tiles, variables);
        if (!made.is(Op::read_fragments)) return std::nullopt;
        const Value from = made.operands.at(0);
        const ValueType& to = p.type(made.result());
        if (!tiles.contains(from) || !to.packed || !to.layout || size_of(to.type.dtype) != 2 ||
            to.type.dtype != p.type(from).type.dtype ||
            to.type.shape != read_shape(p, from, made.has("transposed"))) {
            return broken("%{} is no operand of %{}", p.value_name(made.result()),
                          p.value_name(from));
        }
        return std::nullopt;
    });
}

}  // namespace tilewright::cuda::schedule
