// Variables of values, and values that are other values' registers or text.
#include "cuda/schedule/register_names.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "cuda/codegen/element_text.h"
#include "cuda/codegen/mma_fragments.h"
#include "cuda/schedule/array_access.h"
#include "ir/access.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {

std::optional<Layout> layout_of_source(const Instruction& view, const ir::Shape& source,
                                       const Layout& layout) {
    switch (view.tile) {
        case ir::Op::broadcast:
            return layout.narrowed(source);
        case ir::Op::expand_dims:
            return layout.without(static_cast<int>(view.number("axis")));
        case ir::Op::transpose: {
            const std::vector<std::int64_t>& permutation = view.list("permutation");
            std::vector<int> inverse(permutation.size());
            for (std::size_t i = 0; i < permutation.size(); ++i) {
                inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
            }
            return layout.transposed(inverse);
        }
        default:
            return layout.reshaped(source);
    }
}

const Layout& RegisterNames::layout(Value value) const {
    const auto& layout = program_.type(value).layout;
    return layout ? *layout : scalar_layout_;
}

Names RegisterNames::numbered_registers(Value value) const {
    return numbered(program_.value_name(value), layout(value).registers());
}

bool RegisterNames::is_computed(Value result, int reg) const {
    if (are_distinct(result)) return true;
    const Names& names = of(result);
    const std::string& name = names[static_cast<std::size_t>(reg)];
    return std::find(names.begin(), names.begin() + reg, name) == names.begin() + reg;
}

Names RegisterNames::unpacked(Value value) {
    const DType dtype = program_.type(value).type.dtype;
    const int count = layout(value).registers(), vector = 16 / size_of(dtype);
    words_[value.id] = numbered(program_.value_name(value), count / vector);
    Names names;
    names.reserve(static_cast<std::size_t>(count));
    for (int r = 0; r < count; ++r) {
        names.push_back(fmt::format("unpacked<{}, {}>({})", storage_type(dtype), r % vector,
                                    words_[value.id][static_cast<std::size_t>(r / vector)]));
    }
    return names;
}

Names RegisterNames::iota(const Instruction& made) {
    const Layout& own = layout(made.result());
    const DType dtype = program_.type(made.result()).type.dtype;
    const int axis = static_cast<int>(made.number("axis")), registers = own.registers();
    Names names;
    names.reserve(static_cast<std::size_t>(registers));
    for (int r = 0; r < registers; ++r) {
        std::string at = positions_.of(own, axis, own.register_coordinates(r)[axis]);
        names.push_back(dtype == DType::i32
                            ? std::move(at)
                            : fmt::format("ops::cast<{}>({})", storage_type(dtype), at));
    }
    return names;
}

Names RegisterNames::view(const Instruction& made) const {
    const Value source = made.operands[0];
    const Names& from = of(source);
    const Layout& own = layout(made.result());
    const ir::Shape& narrow = program_.type(source).type.shape;
    const bool permutes = made.is(ir::Op::transpose);
    if (narrow.rank() == 0) return Names(static_cast<std::size_t>(own.registers()), from.front());
    if (!permutes && !made.is(ir::Op::broadcast)) return from;
    std::map<Coordinates, int> places;
    for (int r = 0; r < std::ssize(from); ++r) {
        places[layout(source).register_coordinates(r)] = r;
    }
    const std::vector<std::int64_t>& permutation = made.list("permutation");
    Names names;
    names.reserve(static_cast<std::size_t>(own.registers()));
    for (int r = 0; r < own.registers(); ++r) {
        const Coordinates at = own.register_coordinates(r);
        Coordinates wanted{};
        for (std::size_t axis = 0; axis < static_cast<std::size_t>(narrow.rank()); ++axis) {
            if (permutes) {
                wanted[static_cast<std::size_t>(permutation[axis])] = at[axis];
            } else if (narrow[static_cast<int>(axis)] != 1) {
                wanted[axis] = at[axis];
            }
        }
        names.push_back(from[static_cast<std::size_t>(places.at(wanted))]);
    }
    return names;
}

Names RegisterNames::elementwise(const Instruction& made) {
    const Value result = made.result();
    Names names = numbered_registers(result);
    bool distinct = names.size() == 1;
    for (const Value operand : made.operands) {
        distinct |= program_.is_tile(operand) && are_distinct(operand);
    }
    // Registers with equal operands (broadcasts) share one variable.
    if (!distinct) {
        distinct = true;
        std::unordered_map<std::string, std::size_t> seen;
        for (std::size_t r = 0; r < names.size(); ++r) {
            std::string key;
            for (const Value operand : made.operands) {
                if (program_.is_tile(operand)) key += of(operand)[r] + ",";
            }
            const auto [entry, inserted] = seen.try_emplace(std::move(key), r);
            if (!inserted) names[r] = names[entry->second], distinct = false;
        }
    }
    distinct_[result.id] = distinct;
    return names;
}

Names RegisterNames::of_tile(const Instruction& made) {
    const Value result = made.result();
    switch (made.tile) {
        case ir::Op::constant:
            return Names(static_cast<std::size_t>(layout(result).registers()),
                         literal(program_.type(result).type.dtype,
                                 static_cast<std::uint64_t>(made.attributes.at(0).numbers.at(0))));
        case ir::Op::iota:
            return iota(made);
        case ir::Op::program_id:
            return {fmt::format("program{}", made.number("axis"))};
        case ir::Op::num_programs: {
            const std::int64_t axis = made.number("axis");
            const std::int64_t extent = program_.grid.at(static_cast<std::size_t>(axis));
            if (extent == ir::kDynamic) return {fmt::format("grid{}", axis)};
            return {literal(DType::i64, static_cast<std::uint64_t>(extent))};
        }
        case ir::Op::extent:
            return {extent_text(program_.ref(made.symbol("of")),
                                static_cast<int>(made.number("axis")))};
        case ir::Op::expand_dims:
        case ir::Op::reshape:
            distinct_[result.id] = are_distinct(made.operands[0]);
            return view(made);
        case ir::Op::broadcast:
        case ir::Op::transpose:
            return view(made);
        default:
            if (is_free_cast(program_, made)) {
                distinct_[result.id] = are_distinct(made.operands[0]);
                return of(made.operands[0]);
            }
            TW_ASSERT(is_pointwise(made.tile), "`{}` has no registers", ir::name(made.tile));
            return elementwise(made);
    }
}

void RegisterNames::reserve() {
    if (names_.size() >= program_.num_values()) return;
    names_.resize(program_.num_values());
    words_.resize(program_.num_values());
    distinct_.resize(program_.num_values());
}

void RegisterNames::define(Value argument) {
    reserve();
    names_[argument.id] = numbered_registers(argument);
    distinct_[argument.id] = true;
}

std::string RegisterNames::index(Value value) const {
    const std::string& text = of(value).front();
    return program_.type(value).type.dtype == DType::i64
               ? text
               : fmt::format("static_cast<i64>({})", text);
}

std::string RegisterNames::following(const Instruction& made) const {
    const std::string at = index(made.operands[0]), step = index(made.operands[1]);
    return made.operands.size() > 2
               ? fmt::format("next_index({}, {}, {})", at, index(made.operands[2]), step)
               : fmt::format("({} + {})", at, step);
}

void RegisterNames::define(const Instruction& made) {
    const Value result = made.result();
    reserve();
    Names& names = names_[result.id];
    if (is_in_place(made)) {
        for (std::size_t i = 0; i < made.results.size(); ++i) {
            names_[made.results[i].id] = of(made.operands[i]);
            distinct_[made.results[i].id] = true;
        }
    } else if (made.is(ir::Op::reduce) || made.is(ir::Op::scan) ||
               made.is(ir::Op::associative_scan) || made.is(Op::join_totals)) {
        for (const Value one : made.results) {
            names_[one.id] = numbered_registers(one);
            distinct_[one.id] = true;
        }
    } else if (made.has("words") || (made.is(Op::copy) && !words(made.operands[0]).empty())) {
        names = unpacked(result);
        distinct_[result.id] = true;
    } else if (made.op == Op::tile && !ir::is_access(made.tile)) {
        names = of_tile(made);
    } else if (made.is(Op::relabel)) {
        names.clear();
        const Names& from = of(made.operands[0]);
        for (const int r : conversion(layout(made.operands[0]), layout(result)).source) {
            names.push_back(from[static_cast<std::size_t>(r)]);
        }
    } else if (made.is(Op::index)) {
        names = {index(made.operands[0])};
    } else if (made.is(Op::following)) {
        names = {following(made)};
    } else if (made.is(Op::read_fragments)) {
        names = numbered(program_.value_name(result), fragment_words(layout(result)));
    } else {
        names = numbered_registers(result);
        distinct_[result.id] = true;
    }
}

}  // namespace tilewright::cuda::schedule
