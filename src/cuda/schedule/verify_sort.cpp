// The rules of sorts and prints in programs without roles.
#include <algorithm>
#include <bit>

#include "cuda/schedule/sort_lines.h"
#include "cuda/schedule/tools.h"
#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {
namespace {

/// The operation whose result an operation on lines continues with, if there is one.
Op source_of(Op op) {
    return op == Op::write_lines  ? Op::fill_lines
           : op == Op::sort_lines ? Op::write_lines
                                  : Op::sort_lines;
}

const std::string& buffer_of(const Instruction& made) {
    return made.symbol(made.has("writes") ? "writes" : "reads");
}

class Sorts {
  public:
    explicit Sorts(const Program& p) : p_(p), uses_(p) {}

    Broken check(const Instruction& made) const {
        if (made.is(Op::read_lines)) return broken_result(made);
        if (is_lines(made)) return broken_lines(made);
        for (const Value operand : made.operands) {
            const Instruction* const from = uses_.definition(operand);
            if (from != nullptr && is_lines(*from)) {
                return broken("%{} is in lines, and is read as if in registers", name(operand));
            }
        }
        return std::nullopt;
    }

  private:
    const std::string& name(Value value) const { return p_.value_name(value); }

    Broken broken_lines(const Instruction& made) const {
        const ValueType& type = p_.type(made.result());
        const std::int64_t axis = made.number("axis", -1), word = made.number("word");
        if (type.layout || axis < 0 || axis >= type.type.shape.rank()) {
            return broken("%{} has no lines along an axis", name(made.result()));
        }
        if (word != bytes_of_word(type.type.dtype, false) &&
            word != bytes_of_word(type.type.dtype, true)) {
            return broken("words of {} bytes do not tell the elements of %{} apart", word,
                          name(made.result()));
        }
        const SortedLines lines = lines_of(p_, made);
        if (bytes_of_lines(lines, word) > p_.buffer(buffer_of(made)).slot_bytes()) {
            return broken("%{} is larger than @{}", name(made.result()), buffer_of(made));
        }
        if (made.is(Op::fill_lines)) return std::nullopt;
        if (made.is(Op::write_lines)) {
            const ValueType& from = p_.type(made.operands.at(0));
            if (!from.layout || from.type != type.type) {
                return broken("%{} does not have the elements of %{}", name(made.result()),
                              name(made.operands[0]));
            }
            if (made.operands.size() > 1) return broken_source(made, made.operands[1]);
            if (lines.elements == lines.length) return std::nullopt;
            return broken("the ends of the lines of %{} are not filled", name(made.result()));
        }
        if (const Attribute* const keep = made.find("keep")) {
            const auto kept = static_cast<std::uint64_t>(keep->numbers.at(0));
            if (!std::has_single_bit(kept) || kept < 8 ||
                kept >= static_cast<std::uint64_t>(lines.length)) {
                return broken("the first {} of {} words cannot be kept", kept, lines.length);
            }
        }
        return broken_source(made, made.operands.at(0));
    }

    /// Lines are those of the operation before: of this kind, of the same words, in one buffer.
    Broken broken_source(const Instruction& made, Value lines) const {
        const Instruction* const from = uses_.definition(lines);
        if (from == nullptr || !from->is(source_of(made.op))) {
            return broken("%{} is not the result of `{}`", name(lines),
                          schedule::name(source_of(made.op)));
        }
        const bool same = buffer_of(*from) == buffer_of(made) &&
                          from->number("axis") == made.number("axis", -1) &&
                          from->number("word") == made.number("word") &&
                          (made.is(Op::read_lines) || p_.type(lines) == p_.type(made.result()));
        if (same) return std::nullopt;
        return broken("`{}` has other lines than %{}", schedule::name(made.op), name(lines));
    }

    Broken broken_result(const Instruction& made) const {
        const Value sorted = made.operands.at(0), result = made.result();
        if (Broken found = broken_source(made, sorted)) return found;
        const ir::Type &from = p_.type(sorted).type, &to = p_.type(result).type;
        const auto axis = static_cast<int>(made.number("axis"));
        const Instruction& sort = *uses_.definition(sorted);
        const Instruction& write = *uses_.definition(sort.operands[0]);
        const bool places = made.has("places");
        if (to.dtype != (places ? DType::i32 : from.dtype) || (places && made.number("word") < 8) ||
            made.has("descending") != write.has("descending")) {
            return broken("%{} is not what the words of %{} have", name(result), name(sorted));
        }
        bool fits = to.shape.rank() == from.shape.rank();
        for (int at = 0; fits && at < to.shape.rank(); ++at) {
            fits = to.shape[at] == from.shape[at] || (at == axis && to.shape[at] < from.shape[at]);
        }
        fits = fits && to.shape[axis] <= sort.number("keep", from.shape[axis]);
        if (!fits) return broken("%{} is no part of %{}", name(result), name(sorted));
        return std::nullopt;
    }

    const Program& p_;
    const Uses uses_;
};

}  // namespace

// V35: lines that are read have been written and sorted as they are read, in a buffer that they
// fit, and their ends are filled.
Broken sorts(const Program& p) {
    bool has_lines = false;
    each_instruction(p.body, [&](const Instruction& made) {
        has_lines |= is_lines(made) || made.is(Op::read_lines);
    });
    if (!has_lines) return std::nullopt;
    const Sorts sorts(p);
    return first(p.body, [&](const Instruction& made) { return sorts.check(made); });
}

// V36: what is printed is a text, a scalar, or a tile in a buffer that it fits.
Broken prints(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::print)) {
            const std::size_t operands = made.operands.size();
            if (operands + (made.has("text") ? 1 : 0) != 1) {
                return broken("a text or a scalar is printed");
            }
            if (operands == 0 || !p.is_tile(made.operands[0])) return std::nullopt;
            return broken("%{} is no scalar", p.value_name(made.operands[0]));
        }
        if (!made.is(Op::print_tile)) return std::nullopt;
        const auto dtype = parse_dtype(made.symbol("dtype"));
        if (!dtype) return broken("@{} is no element type", made.symbol("dtype"));
        const std::string& buffer = made.symbol("reads");
        if (made.number("elements") * size_of(*dtype) > p.buffer(buffer).slot_bytes()) {
            return broken("{} elements do not fit @{}", made.number("elements"), buffer);
        }
        return std::nullopt;
    });
}

}  // namespace tilewright::cuda::schedule
