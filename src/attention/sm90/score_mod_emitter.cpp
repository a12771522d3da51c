// Writes the values of score mods, each at the place where everything it depends on is known.
#include <cmath>

#include "attention/sm90/score_mod_text.h"
#include "ir/access.h"
#include "ir/passes/affine.h"
#include "ir/passes/range_ops.h"
#include "support/check.h"

namespace tilewright::attn::sm90 {

Emitter::Emitter(const ir::Function& function, const ScoreModFacts& facts,
                 std::span<const ir::GatherGradient> gathers)
    : function_(function), facts_(facts), info_(function.num_values()) {
    read_parameters();
    for (const ir::Instruction& instruction : function.body.body) {
        if (instruction.op == Op::yield) {
            results_ = instruction.operands;
        } else {
            define(instruction);
        }
        if (!refusal_.empty()) return;
    }
    TW_ASSERT(!results_.empty());
    for (const ir::GatherGradient& gather : gathers) gathers_.push_back(gather_of(gather));
}

void Emitter::read_parameters() {
    const auto& parameters = function_.parameters();
    TW_ASSERT(parameters.size() >= kFirstRef, "a score mod of {} parameters", parameters.size());
    const Interval positions = Interval::integers(0, facts_.positions - 1);
    const auto set = [&](std::size_t i, unsigned dependence, Interval values, const char* name) {
        Info& parameter = info(parameters[i]);
        parameter.dependence = dependence;
        parameter.range = values;
        parameter.parameter = name;
        parameter.affine = dependence == kColumn;
        parameter.step = dependence == kColumn ? 1 : 0;
    };
    const std::size_t row = facts_.columns_are_keys ? kQuery : kKey;
    const std::size_t column = facts_.columns_are_keys ? kKey : kQuery;
    const Interval heads = Interval::integers(0, (1 << 29) - 1);
    set(kScoreParameter, kScore, Interval::all(DType::f32), "score");
    set(kBatch, kTile, heads, "batch");
    set(kHead, kTile, heads, "head");
    set(row, kRow, positions, "row");
    set(column, kColumn, positions, "column");
    for (std::size_t i = kFirstRef; i < parameters.size(); ++i) {
        captures_[parameters[i]] = i - kFirstRef;
        words_[parameters[i]] = num_words_;
        num_words_ += 1 + 2 * function_.ref_type(parameters[i]).extents.size();
    }
    TW_ASSERT(facts_.captures.size() == captures_.size());
}

void Emitter::define(const ir::Instruction& instruction) {
    const bool has_text = ir::is_elementwise(instruction.op) || instruction.op == Op::constant ||
                          instruction.op == Op::extent || instruction.op == Op::load ||
                          instruction.op == Op::random_bits;
    if (!has_text || !function_.type(instruction.result()).is_scalar()) {
        return refuse("expected elementwise ops and gathers but got {}", name(instruction.op));
    }
    if (const DType held = dtype(instruction.result()); is_float(held) && size_of(held) == 1) {
        return refuse("expected scalars of at least 16 bits where they are floats but got {}",
                      name(held));
    }
    Info& result = info(instruction.result());
    result.instruction = &instruction;
    for (Value value : instruction.operands) {
        if (!function_.is_ref(value)) result.dependence |= info(value).dependence;
    }
    result.range = instruction.op == Op::extent
                       ? Interval::integers(0, kMaxExtent)
                       : ir::result_range(function_, instruction,
                                          [this](Value value) { return range(value); });
    analyse_affine(instruction, result);
}

void Emitter::analyse_affine(const ir::Instruction& instruction, Info& result) {
    if ((result.dependence & kColumn) == 0 || (result.dependence & kScore) != 0) return;
    if (!is_integer(dtype(instruction.result()))) return;
    if (!result.range.fits_i32() || result.range.is_all(dtype(instruction.result()))) return;
    const auto& in = instruction.operands;
    const auto parts =
        ir::linear_combination(instruction.op, [&](std::size_t i) -> std::optional<std::int64_t> {
            if (op(in[i]) != Op::constant) return {};
            return range(in[i]).low;
        });
    if (!parts) return;
    for (std::size_t i = 0; i < in.size(); ++i) {
        if (!is_integer(dtype(in[i]))) return;
        if (parts->factor[i] == 0) continue;
        if (!usable_as_affine(in[i])) return;
        result.step += info(in[i]).step * parts->factor[i];
    }
    result.affine = std::abs(result.step) < (1 << 20);
}

/// Is the value worth keeping in the struct for places that need it later?
bool Emitter::kept(Value value) {
    if (info(value).instruction == nullptr) return false;
    if (place_of(info(value).dependence) == Place::element) return false;
    switch (op(value)) {
        case Op::load:
        case Op::random_bits:
        case Op::div:
        case Op::floordiv:
        case Op::rem:
        case Op::floormod:
        case Op::pow:
            return true;
        default:
            return ir::info(op(value)).op_class == ir::OpClass::unary && op(value) != Op::neg &&
                   op(value) != Op::abs && op(value) != Op::bitwise_not && op(value) != Op::isnan;
    }
}

std::string Emitter::local(Place place, const std::string& type, const std::string& name,
                           const std::string& expression) {
    const char* const indent =
        place == Place::row || place == Place::column ? "            " : "        ";
    text(place) += fmt::format("{}const {} {} = {};\n", indent, type, name, expression);
    return name;
}

/// The text of a value at a place: a literal, a local written there, or a member written before.
std::string Emitter::use(Value value, Place place) {
    const Info& it = info(value);
    std::string name = fmt::format("v{}", value.id);
    if (it.parameter == "score") {
        return first_use(place, 'v', value) ? local(place, "float", name, "score * scale") : name;
    }
    if (!it.parameter.empty()) return it.parameter;
    if (op(value) == Op::constant) {
        return cuda::scalar_literal(dtype(value),
                                    it.instruction->get<ir::ConstantAttributes>().bits);
    }
    const std::string type = cuda::held_type(dtype(value), range(value));
    const Place home = place_of(it.dependence);
    if (!kept(value) || home == place) {
        if (!first_use(place, 'v', value)) return name;
        return local(place, type, name, expression(value, place));
    }
    const char* const index = home == Place::tile ? "" : home == Place::row ? "[r]" : "[e]";
    const std::string member = fmt::format("m{}{}", value.id, index);
    if (members_.insert(value).second) {
        const std::string inner = use(value, home);
        const bool of_column = home == Place::column, of_tile = home == Place::tile;
        (of_column ? column_text_ : member_text_) +=
            fmt::format("{}    {} m{}{};  // of {}\n", of_column ? "    " : "", type, value.id,
                        of_tile ? "" : "[2]",
                        of_tile     ? "the tile"
                        : of_column ? "two columns"
                                    : "the two rows");
        text(home) += fmt::format("{}{}{} = {};\n", of_tile ? "        " : "            ",
                                  of_column ? "result." : "", member, inner);
    }
    return home == Place::column ? "columns." + member : member;
}

/// An affine integer at the first column, which is the same for all registers of a row.
std::string Emitter::base(Value value, Place place) {
    if (!varies(value)) return use(value, place);
    if (info(value).parameter == "column") return "first";
    std::string name = fmt::format("b{}", value.id);
    if (!first_use(place, 'b', value)) return name;
    const ir::Instruction& instruction = *info(value).instruction;
    std::vector<cuda::ScalarOperand> operands;
    for (Value in : instruction.operands) {
        operands.push_back({base(in, place), dtype(in), range(in)});
    }
    return local(place, cuda::held_type(dtype(value), range(value)), name,
                 scalar_expression(value, operands));
}

std::string Emitter::expression(Value value, Place place) {
    const Info& it = info(value);
    if (it.affine) {
        const std::string start = base(value, place);
        return it.step == 0   ? start
               : it.step == 1 ? fmt::format("{} + offset", start)
                              : fmt::format("{} + {} * offset", start, it.step);
    }
    if (op(value) == Op::load) return load(value, place);
    if (op(value) == Op::extent) {
        const std::size_t word =
            words_.at(operand(value, 0)) + 1 +
            static_cast<std::size_t>(it.instruction->get<ir::AxisAttributes>().axis);
        return fmt::format("static_cast<int>(arguments.words[{}])", word);
    }
    if (ir::info(op(value)).op_class == ir::OpClass::comparison) {
        if (std::string text = comparison(value, place); !text.empty()) return text;
    }
    if (const std::optional<LinearForm> form = linear(value, place)) {
        return evaluate(*form, "");
    }
    std::vector<cuda::ScalarOperand> operands;
    for (Value in : it.instruction->operands) {
        operands.push_back({use(in, place), dtype(in), range(in)});
    }
    return scalar_expression(value, operands);
}

/// Text of an elementwise op; 0 if it has none, after which there is no header.
std::string Emitter::scalar_expression(Value value, std::span<const cuda::ScalarOperand> operands) {
    const ir::Instruction& instruction = *info(value).instruction;
    const std::string reason = cuda::no_scalar_expression(instruction, dtype(value), operands);
    if (reason.empty())
        return cuda::scalar_expression(instruction, dtype(value), range(value), operands);
    refuse("{}", reason);
    return "0";
}

/// Comparisons of positions whose difference is known for each register become comparisons with a
/// constant.
std::string Emitter::comparison(Value value, Place place) {
    const Value a = operand(value, 0), b = operand(value, 1);
    if (!info(a).affine && !info(b).affine) return "";
    if (!usable_as_affine(a) || !usable_as_affine(b)) return "";
    if (!range(a).fits_i32() || !range(b).fits_i32()) return "";
    const Interval difference =
        Interval::integers(range(a).low - range(b).high, range(a).high - range(b).low);
    if (!difference.fits_i32()) return "";
    const std::int64_t step = info(b).step - info(a).step;
    const std::string start =
        local(place, "int", temporary(), fmt::format("{} - {}", base(a, place), base(b, place)));
    static constexpr const char* kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    const int which = static_cast<int>(op(value)) - static_cast<int>(Op::eq);
    return fmt::format("{} {} {} * offset", start, kOperators[which], step);
}

/// x if the index is clamp(x, 0, extent - 1) of that dimension, else none.
Value Emitter::clamped(Value index, Value ref, std::size_t dim) {
    if (op(index) != Op::clamp || !is_constant(operand(index, 1), 0)) return {};
    const Value high = operand(index, 2);
    const bool minus_one = op(high) == Op::sub && is_constant(operand(high, 1), 1);
    const bool plus_minus_one = op(high) == Op::add && is_constant(operand(high, 1), -1);
    if (!minus_one && !plus_minus_one) return {};
    const Value extent = operand(high, 0);
    if (op(extent) != Op::extent || operand(extent, 0) != ref) return {};
    const int axis = info(extent).instruction->get<ir::AxisAttributes>().axis;
    return static_cast<std::size_t>(axis) == dim ? operand(index, 0) : Value{};
}

std::string Emitter::load(Value value, Place place) {
    const ir::Instruction& instruction = *info(value).instruction;
    const ir::Access access = ir::access(instruction);
    const DType element = dtype(value);
    std::string other = access.other ? use(access.other, place) : cuda::scalar_literal(element, 0);
    const ScoreModFacts::Capture& facts = facts_.captures[captures_.at(access.ref)];
    if (facts.empty) return other;

    const bool half = element == DType::f16 || element == DType::bf16;
    const std::string type = half                        ? "u16"
                             : element == DType::boolean ? "u8"
                                                         : cuda::scalar_type(element);
    const std::size_t rank = access.indices.size(), first_word = words_.at(access.ref);
    std::string row_part =
        fmt::format("reinterpret_cast<const {}*>(arguments.words[{}])", type, first_word);
    std::string element_part, inside;
    bool pair = false;
    for (std::size_t d = 0; d < rank; ++d) {
        const Value index = access.indices[d];
        const Value raw = clamped(index, access.ref, d);
        const std::string extent =
            fmt::format("static_cast<int>(arguments.words[{}])", first_word + 1 + d);
        if (raw && d + 1 == rank && facts.pairs && info(raw).parameter == "column") {
            pair = true;
            element_part += fmt::format(" + scalar::min(first + offset - e, {} - 2)", extent);
            continue;
        }
        std::string position;
        if (raw && range(raw).low >= 0 && range(raw).fits_i32()) {
            position =
                fmt::format("scalar::min(static_cast<int>({}), {} - 1)", use(raw, place), extent);
        } else {
            position = use(index, place);
        }
        if (!raw && !instruction.get<ir::AccessAttributes>().in_bounds) {
            inside += fmt::format("{}static_cast<u64>(static_cast<i64>({})) < arguments.words[{}]",
                                  inside.empty() ? "" : " && ", position, first_word + 1 + d);
        }
        const std::string term =
            fmt::format(" + static_cast<i64>({}) * static_cast<i64>(arguments.words[{}])", position,
                        first_word + 1 + rank + d);
        (varies(index) ? element_part : row_part) += term;
    }
    if (access.mask) inside = use(access.mask, place) + (inside.empty() ? "" : " && " + inside);
    const std::string pointer =
        local(place, fmt::format("{}* const", type), temporary(), row_part) + element_part;
    const char* const tag = element == DType::f16    ? "F16{}, "
                            : element == DType::bf16 ? "Bf16{}, "
                                                     : "";
    std::string text;
    if (pair) {
        const std::string both =
            local(place, "auto", temporary(), fmt::format("scalar::load_pair({}{})", tag, pointer));
        text = fmt::format("e == 0 ? {0}.x : {0}.y", both);
    } else if (half) {
        text = fmt::format("scalar::load({}{})", tag, pointer);
    } else if (inside.empty()) {
        text = fmt::format("__ldg({})", pointer);
    } else {
        text = fmt::format("*({})", pointer);
    }
    if (element == DType::boolean) text = fmt::format("({}) != 0", text);
    return inside.empty() ? text : fmt::format("{} ? {} : {}", inside, text, other);
}

}  // namespace tilewright::attn::sm90
