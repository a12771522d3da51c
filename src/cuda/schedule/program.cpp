// Names and small tools of the scheduled form.
#include "cuda/schedule/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::array<std::string_view, kNumLevels> kLevels = {
    "lowered", "selected", "laid_out", "staged",      "specialised",
    "waiting", "split",    "placed",   "synchronised"};

constexpr std::array<std::string_view, kNumOps> kOps = {"",
                                                        "zeros",
                                                        "fresh",
                                                        "pack",
                                                        "join_lanes",
                                                        "soft_cap",
                                                        "clear",
                                                        "group_start",
                                                        "wgmma",
                                                        "wgmma_fence",
                                                        "wgmma_commit",
                                                        "wgmma_wait",
                                                        "count",
                                                        "next",
                                                        "skip",
                                                        "acquire",
                                                        "publish",
                                                        "publish_copies",
                                                        "finish_copies",
                                                        "await",
                                                        "release",
                                                        "tma_load",
                                                        "thread_load",
                                                        "share",
                                                        "store_shared",
                                                        "read_panel",
                                                        "tma_store",
                                                        "commit_stores",
                                                        "wait_stores",
                                                        "fence_async",
                                                        "group_sync",
                                                        "all_sync",
                                                        "comment",
                                                        "declare",
                                                        "assign",
                                                        "relabel",
                                                        "shuffle",
                                                        "write_tile",
                                                        "read_tile",
                                                        "narrow",
                                                        "write_parts",
                                                        "join_parts",
                                                        "write_totals",
                                                        "join_totals",
                                                        "meet",
                                                        "fill_lines",
                                                        "write_lines",
                                                        "sort_lines",
                                                        "read_lines",
                                                        "print",
                                                        "print_tile",
                                                        "copy_tile",
                                                        "copy",
                                                        "keep_words",
                                                        "targets",
                                                        "last_writers",
                                                        "store_targets",
                                                        "write_operand",
                                                        "shared_tile",
                                                        "read_fragments",
                                                        "mma",
                                                        "multiply_add",
                                                        "program_ids",
                                                        "place_scratch",
                                                        "scope",
                                                        "loop",
                                                        "branch",
                                                        "leave",
                                                        "index",
                                                        "following",
                                                        "advance",
                                                        "before",
                                                        "next_slot",
                                                        "operation",
                                                        "access",
                                                        "barrier",
                                                        "settle_copies",
                                                        "commit_copies",
                                                        "wait_copies",
                                                        "issue_begin",
                                                        "issue_end",
                                                        "role",
                                                        "programs",
                                                        "panels"};

/// Bits of a warpgroup's rows, from those of neighbours in its registers, lanes and warps. Two rows
/// of a thread are neighbours in memory, and the half of a warp that reads at once meets no other
/// in a bank: its rows differ in bits 1 and 4, and the swizzle moves bits 2 and 3.
constexpr int kRowOfRegister = 0;
constexpr std::array<int, 3> kRowsOfLanes = {1, 4, 2};
constexpr std::array<int, 2> kRowsOfWarps = {3, 5};

template <typename List>
auto& by_name(List& list, std::string_view name, const char* kind) {
    for (auto& one : list) {
        if (one.name == name) return one;
    }
    user_error("schedule", "expected a {} named @{} but there is none", kind, name);
}

bool remove_unused(Block& block, const std::set<Value>& used) {
    const auto is_unused = [&](const Instruction& made) {
        const bool pure = made.op == Op::tile
                              ? ir::is_pure(made.tile) || made.is(ir::Op::load)
                              : made.is(Op::fresh) || made.is(Op::pack) ||
                                    made.is(Op::join_lanes) || made.is(Op::soft_cap) ||
                                    made.is(Op::group_start);
        return pure && made.blocks.empty() && !made.results.empty() &&
               std::none_of(made.results.begin(), made.results.end(),
                            [&](Value result) { return used.contains(result); });
    };
    bool removed = std::erase_if(block.body, is_unused) > 0;
    for (Instruction& made : block.body) {
        for (Block& inner : made.blocks) removed |= remove_unused(inner, used);
    }
    return removed;
}

}  // namespace

std::string_view name(Level level) {
    return kLevels[static_cast<std::size_t>(level)];
}

std::optional<Level> parse_level(std::string_view text) {
    const auto at = std::find(kLevels.begin(), kLevels.end(), text);
    if (at == kLevels.end()) return std::nullopt;
    return static_cast<Level>(at - kLevels.begin());
}

std::string_view name(Pairs pairs) {
    constexpr std::string_view kNames[] = {"none", "rows", "columns", "both"};
    return kNames[static_cast<std::size_t>(pairs)];
}

std::string_view name(Op op) {
    return kOps[static_cast<std::size_t>(op)];
}

std::optional<Op> parse_op(std::string_view text) {
    const auto at = std::find(kOps.begin() + 1, kOps.end(), text);
    if (at == kOps.end()) return std::nullopt;
    return static_cast<Op>(at - kOps.begin());
}

const Attribute* Instruction::find(std::string_view attribute) const {
    for (const Attribute& one : attributes) {
        if (one.name == attribute) return &one;
    }
    return nullptr;
}

std::int64_t Instruction::number(std::string_view attribute, std::int64_t otherwise) const {
    const Attribute* const found = find(attribute);
    return found == nullptr || found->numbers.size() != 1 ? otherwise : found->numbers[0];
}

const std::vector<std::int64_t>& Instruction::list(std::string_view attribute) const {
    static const std::vector<std::int64_t> none;
    const Attribute* const found = find(attribute);
    return found == nullptr ? none : found->numbers;
}

const std::string& Instruction::symbol(std::string_view attribute) const {
    static const std::string none;
    const Attribute* const found = find(attribute);
    return found == nullptr ? none : found->text;
}

Attribute& Instruction::add(std::string attribute, Attribute::Kind kind) {
    Attribute& one = attributes.emplace_back();
    one.name = std::move(attribute);
    one.kind = kind;
    return one;
}

Instruction& Instruction::flag(std::string attribute) {
    add(std::move(attribute), Attribute::Kind::flag);
    return *this;
}

Instruction& Instruction::with(std::string attribute, std::int64_t number) {
    add(std::move(attribute), Attribute::Kind::number).numbers = {number};
    return *this;
}

Instruction& Instruction::with(std::string attribute, std::vector<std::int64_t> list) {
    add(std::move(attribute), Attribute::Kind::list).numbers = std::move(list);
    return *this;
}

Instruction& Instruction::with_symbol(std::string attribute, std::string symbol) {
    add(std::move(attribute), Attribute::Kind::symbol).text = std::move(symbol);
    return *this;
}

Instruction& Instruction::with_text(std::string attribute, std::string text) {
    add(std::move(attribute), Attribute::Kind::text).text = std::move(text);
    return *this;
}

Value Program::add(ValueType type, std::string hint) {
    const Value value{static_cast<std::uint32_t>(values_.size())};
    for (std::size_t n = values_.size(); hint.empty() || names_.contains(hint); ++n) {
        hint = fmt::format("{}", n);
    }
    names_.insert(hint);
    values_.push_back({std::move(type), std::move(hint)});
    return value;
}

int Program::warps() const {
    int warps = 0;
    for (const Role& role : roles) warps = std::max(warps, role.first_warp + role.warps);
    return warps;
}

const Buffer& Program::buffer(std::string_view called) const {
    return by_name(buffers, called, "buffer");
}
const Map& Program::map(std::string_view called) const {
    return by_name(maps, called, "map");
}
const Channel& Program::channel(std::string_view called) const {
    return by_name(channels, called, "channel");
}
Channel& Program::channel(std::string_view called) {
    return by_name(channels, called, "channel");
}
const Channel& Program::channel_of(std::string_view buffer) const {
    for (const Channel& one : channels) {
        for (const std::string& own : one.buffers) {
            if (own == buffer) return one;
        }
    }
    user_error("schedule", "expected a channel with @{} but there is none", buffer);
}
const Role& Program::role(std::string_view called) const {
    return by_name(roles, called, "role");
}
const Parameter& Program::ref(std::string_view called) const {
    return by_name(parameters, called, "parameter");
}

Product::Product(const Instruction& made) : accumulator(made.operands.at(0)) {
    std::size_t next = 1;
    if (made.has("conditional")) condition = made.operands.at(next++);
    if (made.has("registers")) {
        registers = made.operands.at(next++);
        count_b = made.operands.at(next);
    } else if (made.has("shared")) {
        count_b = made.operands.at(next);
    } else {
        count_a = made.operands.at(next);
        count_b = made.operands.back();
    }
}

std::vector<int> groups_of(const Program& program, const Instruction& product) {
    const std::vector<std::int64_t>& own = product.list("groups");
    return own.empty() ? program.groups : std::vector<int>(own.begin(), own.end());
}

std::set<std::string> channels_of(const Program& program, const Instruction& product) {
    if (product.is(Op::read_fragments) || product.is(Op::read_panel)) {
        return {program.channel_of(product.symbol("reads")).name};
    }
    std::set<std::string> names = {program.channel_of(product.symbol("b")).name};
    if (!product.has("registers") && !product.has("shared")) {
        names.insert(program.channel_of(product.symbol("a")).name);
    }
    return names;
}

bool is_chained(const Program& program) {
    bool chained = false;
    each_instruction(program.body, [&](const Instruction& made) {
        chained |= made.is(Op::fresh) && !made.has("partial");
    });
    return chained;
}

bool has_roles(const Program& program) {
    return program.consumer_groups() != 0 || program.level < Level::split;
}

bool is_access(const Instruction& made) {
    if (made.has("blocks")) return false;  // in order by itself
    switch (made.op) {
        case Op::access:
        case Op::write_tile:
        case Op::read_tile:
        case Op::targets:
        case Op::last_writers:
        case Op::write_parts:
        case Op::join_parts:
        case Op::write_totals:
        case Op::join_totals:
        case Op::fill_lines:
        case Op::write_lines:
        case Op::sort_lines:
        case Op::read_lines:
        case Op::print_tile:
        case Op::write_operand:
        case Op::shared_tile:
        case Op::place_scratch:
        case Op::read_fragments:
        case Op::mma:
        case Op::multiply_add:
            return true;
        default:
            return false;
    }
}

const std::string& nth_symbol(const Instruction& made, std::string_view attribute, int n) {
    static const std::string none;
    for (const Attribute& one : made.attributes) {
        if (one.name == attribute && n-- == 0) return one.text;
    }
    return none;
}

ir::Reduction reduction_of(const Instruction& made) {
    for (const Attribute& one : made.attributes) {
        if (one.kind != Attribute::Kind::flag) continue;
        if (const auto kind = ir::parse_reduction(one.name)) return *kind;
    }
    return ir::Reduction::sum;
}

bool is_free_cast(const Program& program, const Instruction& made) {
    if (!made.is(ir::Op::cast)) return false;
    const DType from = program.type(made.operands.at(0)).type.dtype;
    return program.type(made.result()).type.dtype == DType::f32 && is_float(from) &&
           from != DType::f64;
}

DType dtype_in_memory(const Program& program, const Instruction& made, Value tile) {
    return parse_dtype(made.symbol("dtype")).value_or(program.type(tile).type.dtype);
}

bool is_gather(const Instruction& made) {
    if (!made.is(ir::Op::load)) return false;
    const std::vector<std::int64_t>& index = made.list("index");
    return std::find(index.begin(), index.end(), kGathered) != index.end();
}

Instruction make(Op op, std::vector<Value> operands, std::vector<Value> results) {
    Instruction made;
    made.op = op;
    made.operands = std::move(operands);
    made.results = std::move(results);
    return made;
}

Instruction make(ir::Op op, std::vector<Value> operands, std::vector<Value> results) {
    Instruction made = make(Op::tile, std::move(operands), std::move(results));
    made.tile = op;
    return made;
}

Attribute element_attribute(DType dtype, std::uint64_t bits) {
    return {"is",
            Attribute::Kind::element,
            {static_cast<std::int64_t>(bits)},
            ir::print_element(dtype, bits)};
}

Instruction tile_instruction(const ir::Function& function, const ir::Instruction& made) {
    Instruction same;
    same.tile = made.op;
    same.line = made.location.line;
    switch (made.op) {
        case ir::Op::constant:
            same.attributes.push_back(element_attribute(function.type(made.result()).dtype,
                                                        made.get<ir::ConstantAttributes>().bits));
            break;
        case ir::Op::reduce:
        case ir::Op::scan: {
            const auto& reduce = made.get<ir::ReduceAttributes>();
            same.flag(std::string(ir::name(reduce.kind))).with("axis", reduce.axis);
            if (reduce.reverse) same.flag("reverse");
            if (reduce.exclusive) same.flag("exclusive");
            break;
        }
        case ir::Op::associative_scan: {
            const auto& combine = made.get<ir::CombineAttributes>();
            same.with("axis", combine.axis);
            if (combine.reverse) same.flag("reverse");
            break;
        }
        case ir::Op::iota:
        case ir::Op::program_id:
        case ir::Op::num_programs:
        case ir::Op::extent:
        case ir::Op::expand_dims:
            same.with("axis", made.get<ir::AxisAttributes>().axis);
            break;
        case ir::Op::transpose: {
            const auto& order = made.get<ir::PermutationAttributes>().permutation;
            same.with("permutation", std::vector<std::int64_t>(order.begin(), order.end()));
            break;
        }
        case ir::Op::dot: {
            const auto& dot = made.get<ir::DotAttributes>();
            if (dot.transpose_a) same.flag("transpose_a");
            if (dot.transpose_b) same.flag("transpose_b");
            if (dot.precision == ir::Precision::tf32) same.flag("tf32");
            break;
        }
        default:
            if (const auto* math = std::get_if<ir::MathAttributes>(&made.attributes);
                math != nullptr && math->approx) {
                same.flag("approx");
            }
    }
    return same;
}

Value append_scalar(Program& program, Block& block, ir::Op op, std::vector<Value> operands) {
    const bool compares = ir::info(op).op_class == ir::OpClass::comparison;
    const Value result = program.add({false, {compares ? DType::boolean : DType::i64, {}}, {}});
    block.body.push_back(make(op, std::move(operands), {result}));
    return result;
}

Value append_constant(Program& program, Block& block, std::int64_t value) {
    const Value result = program.add({false, {DType::i64, {}}, {}});
    block.body.push_back(make(ir::Op::constant, {}, {result}));
    block.body.back().attributes.push_back(
        {"is", Attribute::Kind::element, {value}, fmt::format("{}", value)});
    return result;
}

void clone(Program& program, const Block& from, Block& to, std::map<Value, Value>& copies,
           const std::function<bool(const Instruction&)>& keep) {
    const auto copy_of = [&](Value value) {
        const auto found = copies.find(value);
        return found == copies.end() ? value : found->second;
    };
    const auto copy = [&](Value value) {
        const ValueType type = program.type(value);
        return copies[value] = program.add(type, program.value_name(value));
    };
    for (const Instruction& made : from.body) {
        if (!keep(made)) continue;
        Instruction same = made;
        for (Value& operand : same.operands) operand = copy_of(operand);
        for (std::size_t i = 0; i < made.blocks.size(); ++i) {
            same.blocks[i] = {};
            for (Value argument : made.blocks[i].arguments) {
                same.blocks[i].arguments.push_back(copy(argument));
            }
            clone(program, made.blocks[i], same.blocks[i], copies, keep);
        }
        for (Value& result : same.results) result = copy(result);
        to.body.push_back(std::move(same));
    }
}

void remove_unused(Program& program) {
    for (bool removed = true; removed;) {
        std::set<Value> used;
        each_instruction(program.body, [&](const Instruction& made) {
            used.insert(made.operands.begin(), made.operands.end());
        });
        removed = remove_unused(program.body, used);
    }
}

void replace(Block& block, Value old, Value by) {
    each_instruction(block, [&](Instruction& made) {
        std::replace(made.operands.begin(), made.operands.end(), old, by);
    });
}

void replace(Instruction& made, Value old, Value by) {
    std::replace(made.operands.begin(), made.operands.end(), old, by);
    for (Block& inner : made.blocks) replace(inner, old, by);
}

Layout accumulator_layout(const ir::Shape& shape, const std::vector<int>& groups) {
    const int warps = 4 * groups[0] * groups[1];
    Layout layout(shape, warps);
    const std::int64_t columns = shape[1] / groups[1];
    const int column_bits = cover(columns).bits;
    layout.reg = {layout.basis(1, 0), layout.basis(0, 3)};
    constexpr int kPanelBits = 6;
    const int rows_of_groups = 6 + std::countr_zero(static_cast<unsigned>(groups[0]));
    const bool halves = shape[0] == static_cast<std::int64_t>(2) << rows_of_groups;
    for (int bit = 3; bit < column_bits || (halves && bit <= kPanelBits); ++bit) {
        if (halves && bit == kPanelBits) layout.reg.push_back(layout.basis(0, rows_of_groups));
        if (bit < column_bits) layout.reg.push_back(layout.basis(1, bit));
    }
    layout.lane = {layout.basis(1, 1), layout.basis(1, 2), layout.basis(0, 0), layout.basis(0, 1),
                   layout.basis(0, 2)};
    layout.warp = {layout.basis(0, 4), layout.basis(0, 5)};
    for (int bit = 0; 1 << bit < groups[0]; ++bit) layout.warp.push_back(layout.basis(0, 6 + bit));
    for (int bit = 0; 1 << bit < groups[1]; ++bit) {
        layout.warp.push_back(layout.basis(1, column_bits + bit));
    }
    return layout;
}

Sums sums_of(const Program& program) {
    Sums sums = Sums::plain;
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.is(Op::wgmma) && made.has("swapped")) sums = Sums::swapped;
        if (made.is(Op::read_fragments) && sums == Sums::plain) sums = Sums::fragments;
    });
    return sums;
}

Layout sums_layout(const Program& program, const ir::Shape& shape, const std::vector<int>& groups) {
    const Sums sums = sums_of(program);
    if (sums == Sums::plain) return accumulator_layout(shape, groups);
    const int columns = columns_axis(sums), rows = 1 - columns;
    Layout layout(shape, 4 * groups[0] * groups[1]);
    const int column_bits = cover(shape[columns] / groups[columns]).bits;
    layout.reg = {layout.basis(columns, 0), layout.basis(rows, kRowOfRegister)};
    for (int bit = 3; bit < column_bits; ++bit) layout.reg.push_back(layout.basis(columns, bit));
    layout.lane = {layout.basis(columns, 1), layout.basis(columns, 2)};
    for (const int bit : kRowsOfLanes) layout.lane.push_back(layout.basis(rows, bit));
    layout.warp.clear();
    for (const int bit : kRowsOfWarps) layout.warp.push_back(layout.basis(rows, bit));
    for (int bit = 0; 1 << bit < groups[rows]; ++bit) {
        layout.warp.push_back(layout.basis(rows, 6 + bit));
    }
    for (int bit = 0; 1 << bit < groups[columns]; ++bit) {
        layout.warp.push_back(layout.basis(columns, column_bits + bit));
    }
    return layout;
}

Layout fragments_layout(const Program& program, const ir::Shape& shape) {
    Layout layout(shape, 4 * program.consumer_groups());
    layout.reg = {layout.basis(0, kRowOfRegister)};
    for (int bit = 2; bit < cover(shape[1]).bits; ++bit) layout.reg.push_back(layout.basis(1, bit));
    layout.lane = {layout.basis(1, 0), layout.basis(1, 1)};
    for (const int bit : kRowsOfLanes) layout.lane.push_back(layout.basis(0, bit));
    for (std::size_t bit = 0; bit < layout.warp.size(); ++bit) {
        const bool copies = bit >= kRowsOfWarps.size() && shape[0] <= 64;
        layout.warp[bit] =
            copies ? 0
                   : layout.basis(0, bit < kRowsOfWarps.size() ? kRowsOfWarps[bit]
                                                               : static_cast<int>(4 + bit));
    }
    return layout;
}

std::pair<std::string, std::string> operand_buffers(const Program& program,
                                                    const Instruction& product) {
    const auto registers = Product(product).registers;
    if (!registers) return {product.symbol("a"), product.symbol("b")};
    std::string left;
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.is(Op::read_fragments) && made.result() == *registers) left = made.symbol("reads");
    });
    if (product.has("swapped")) return {product.symbol("b"), left};
    return {left, product.symbol("b")};
}

}  // namespace tilewright::cuda::schedule
