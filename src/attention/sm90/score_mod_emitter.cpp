// Text of score mods: values by what they depend on, scores as linear forms.
#include "attention/sm90/score_mod_emitter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "cuda/codegen/scalar_op.h"
#include "ir/access.h"
#include "support/check.h"

namespace tilewright::attn::sm90 {
namespace {

using cuda::Range;
using ir::Op;
using ir::Value;

constexpr double kLog2E = 1.44269504088896340736;

// What a value depends on; nothing: batch and head alone.
enum Dependence : unsigned { kTile = 0, kRow = 1, kColumn = 2, kScore = 4 };

// Where text stands. Each place has its own locals; what is worth keeping is stored in the struct.
enum class Place : std::uint8_t { tile, row, column, element };
constexpr std::size_t kPlaces = 4;

Place place_of(unsigned dependence) {
    if (dependence == kTile) return Place::tile;
    if (dependence == kRow) return Place::row;
    return dependence == kColumn ? Place::column : Place::element;
}

std::string float_literal(double value) {
    return cuda::scalar_literal(DType::f32, std::bit_cast<std::uint64_t>(value));
}

/// A factor that is equal for the columns of a row: a number times, perhaps, a named value.
struct Coefficient {
    double number = 0;
    std::string name;  ///< empty: 1

    bool zero() const { return number == 0; }
    bool one() const { return number == 1 && name.empty(); }
    std::string text() const {
        if (name.empty()) return float_literal(number);
        return number == 1 ? name : fmt::format("({} * {})", float_literal(number), name);
    }
};

/// constant + offset * (column of the register) + sum of coefficient * atom. Atoms are names of
/// element values; "score" is the accumulator, before the softmax scale.
struct LinearForm {
    Coefficient constant, offset;
    std::map<std::string, Coefficient> atoms;

    bool of_row() const { return offset.zero() && atoms.empty(); }
};

class Emitter {
  public:
    Emitter(const ir::Function& function, const ScoreModFacts& facts)
        : function_(function), facts_(facts), info_(function.num_values()) {
        read_parameters();
        for (const ir::Instruction& instruction : function.body.body) {
            if (instruction.op == Op::yield) {
                results_ = instruction.operands;
            } else {
                define(instruction);
            }
        }
        TW_ASSERT(!results_.empty() && results_.size() <= 2);
    }

    std::string header();

  private:
    struct Info {
        const ir::Instruction* instruction = nullptr;
        unsigned dependence = kTile;
        cuda::Propagated known;  ///< of integers
        bool affine = false;  ///< an integer base + step * offset, base equal for a row's registers
        std::int64_t step = 0;
        std::string parameter;  ///< its name in the text
    };
    enum Parameter : std::size_t { kScoreParameter, kBatch, kHead, kQuery, kKey, kFirstRef };

    Info& info(Value value) { return info_[value.id]; }
    const Range& range(Value value) { return info(value).known.range; }
    DType dtype(Value value) const { return function_.type(value).dtype; }
    Op op(Value value) { return info(value).instruction ? info(value).instruction->op : Op::yield; }
    Value operand(Value value, std::size_t i) { return info(value).instruction->operands[i]; }
    bool is_constant(Value value, std::int64_t equal_to) {
        return op(value) == Op::constant && range(value) == Range{equal_to, equal_to};
    }
    bool varies(Value value) { return (info(value).dependence & (kColumn | kScore)) != 0; }
    bool usable_as_affine(Value value) { return info(value).affine || !varies(value); }
    std::string& text(Place place) { return text_[static_cast<std::size_t>(place)]; }
    /// True the first time.
    bool first_use(Place place, char kind, Value value) {
        return written_.insert({place, kind, value}).second;
    }
    std::string temporary() { return fmt::format("x{}", temporaries_++); }

    void read_parameters();
    void define(const ir::Instruction& instruction);
    void analyse_affine(const ir::Instruction& instruction, Info& result);
    bool kept(Value value);
    std::string local(Place place, const std::string& type, const std::string& name,
                      const std::string& expression);

    std::string use(Value value, Place place);
    std::string base(Value value, Place place);
    std::string expression(Value value, Place place);
    std::string comparison(Value value, Place place);
    std::string load(Value value, Place place);
    Value clamped(Value index, Value ref, std::size_t dim);

    LinearForm form(Value value, Place place);
    std::optional<LinearForm> linear(Value value, Place place);
    LinearForm scaled(LinearForm form, const Coefficient& factor, Place place);
    LinearForm sum(LinearForm a, const LinearForm& b, Place place);
    Coefficient product(const Coefficient& a, const Coefficient& b, Place place);
    Coefficient sum(const Coefficient& a, const Coefficient& b, Place place);
    static std::string evaluate(const LinearForm& form, const std::string& start);
    std::string exponent(Value value);

    const ir::Function& function_;
    const ScoreModFacts& facts_;
    std::vector<Info> info_;
    std::vector<Value> results_;
    std::map<Value, std::size_t> captures_;  // number of a Ref parameter
    std::map<Value, std::size_t> words_;     // and the place of its address in the arguments
    std::size_t num_words_ = 0;
    std::array<std::string, kPlaces> text_;
    std::set<std::tuple<Place, char, Value>> written_;
    std::map<std::pair<Place, Value>, LinearForm> forms_;
    std::set<Value> members_;
    std::string member_text_, column_text_;
    int temporaries_ = 0;
};

void Emitter::read_parameters() {
    const auto& parameters = function_.parameters();
    TW_ASSERT(parameters.size() >= kFirstRef, "a score mod of {} parameters", parameters.size());
    const Range positions{0, facts_.positions - 1};
    const auto set = [&](std::size_t i, unsigned dependence, Range values, const char* name) {
        Info& parameter = info(parameters[i]);
        parameter.dependence = dependence;
        parameter.known.range = values;
        parameter.parameter = name;
        parameter.affine = dependence == kColumn;
        parameter.step = dependence == kColumn ? 1 : 0;
    };
    const std::size_t row = facts_.columns_are_keys ? kQuery : kKey;
    const std::size_t column = facts_.columns_are_keys ? kKey : kQuery;
    set(kScoreParameter, kScore, {}, "score");
    set(kBatch, kTile, {0, (1 << 29) - 1}, "batch");
    set(kHead, kTile, {0, (1 << 29) - 1}, "head");
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
        user_error(kOperation, "score_mod: expected elementwise ops and gathers but got {}",
                   name(instruction.op));
    }
    Info& result = info(instruction.result());
    result.instruction = &instruction;
    std::vector<Range> ranges;
    for (Value value : instruction.operands) {
        if (function_.is_ref(value)) continue;
        result.dependence |= info(value).dependence;
        ranges.push_back(range(value));
    }
    result.known = cuda::propagate(function_, instruction, ranges);
    if (instruction.op == Op::extent) result.known.range = {0, kMaxExtent};
    analyse_affine(instruction, result);
}

void Emitter::analyse_affine(const ir::Instruction& instruction, Info& result) {
    if ((result.dependence & kColumn) == 0 || (result.dependence & kScore) != 0) return;
    if (!is_integer(dtype(instruction.result()))) return;
    if (result.known.wraps || !result.known.range.narrow()) return;
    const auto& in = instruction.operands;
    switch (instruction.op) {
        case Op::add:
        case Op::sub:
            if (!usable_as_affine(in[0]) || !usable_as_affine(in[1])) return;
            result.step = info(in[0]).step +
                          (instruction.op == Op::add ? info(in[1]).step : -info(in[1]).step);
            break;
        case Op::neg:
            if (!usable_as_affine(in[0])) return;
            result.step = -info(in[0]).step;
            break;
        case Op::mul: {
            const std::size_t number = op(in[1]) == Op::constant ? 1 : 0;
            if (op(in[number]) != Op::constant || !usable_as_affine(in[1 - number])) return;
            result.step = info(in[1 - number]).step * range(in[number]).low;
            break;
        }
        case Op::cast:
            if (!is_integer(dtype(in[0])) || !usable_as_affine(in[0])) return;
            result.step = info(in[0]).step;
            break;
        default:
            return;
    }
    result.affine = std::abs(result.step) < (1 << 20);
}

/// Is the value worth keeping in the struct for the places that need it later?
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

/// Text of a value at a place: a literal, a name written there, or a member written before.
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

/// An affine integer at the first column, equal for all registers of a row.
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
                 cuda::scalar_expression(instruction, dtype(value), info(value).known, operands));
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
    return cuda::scalar_expression(*it.instruction, dtype(value), it.known, operands);
}

/// Positions that differ by a number known for each register are compared with that number.
std::string Emitter::comparison(Value value, Place place) {
    const Value a = operand(value, 0), b = operand(value, 1);
    if (!info(a).affine && !info(b).affine) return "";
    if (!usable_as_affine(a) || !usable_as_affine(b)) return "";
    if (!range(a).narrow() || !range(b).narrow()) return "";
    const Range difference{range(a).low - range(b).high, range(a).high - range(b).low};
    if (!difference.narrow()) return "";
    const std::int64_t step = info(b).step - info(a).step;
    const std::string start =
        local(place, "int", temporary(), fmt::format("{} - {}", base(a, place), base(b, place)));
    static constexpr const char* kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    const int which = static_cast<int>(op(value)) - static_cast<int>(Op::eq);
    return fmt::format("{} {} {} * offset", start, kOperators[which], step);
}

/// x where the index is clamp(x, 0, extent - 1) of that dimension; else none.
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
        if (raw && range(raw).low >= 0 && range(raw).narrow()) {
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

Coefficient Emitter::product(const Coefficient& a, const Coefficient& b, Place place) {
    if (a.name.empty() || b.name.empty()) {
        return {a.number * b.number, a.name.empty() ? b.name : a.name};
    }
    return {a.number * b.number,
            local(place, "float", temporary(), fmt::format("{} * {}", a.name, b.name))};
}

Coefficient Emitter::sum(const Coefficient& a, const Coefficient& b, Place place) {
    if (a.zero()) return b;
    if (b.zero()) return a;
    if (a.name == b.name) return {a.number + b.number, a.name};
    return {1, local(place, "float", temporary(), fmt::format("{} + {}", a.text(), b.text()))};
}

LinearForm Emitter::scaled(LinearForm form, const Coefficient& factor, Place place) {
    form.constant = product(form.constant, factor, place);
    form.offset = product(form.offset, factor, place);
    for (auto& [atom, coefficient] : form.atoms) coefficient = product(coefficient, factor, place);
    return form;
}

LinearForm Emitter::sum(LinearForm a, const LinearForm& b, Place place) {
    a.constant = sum(a.constant, b.constant, place);
    a.offset = sum(a.offset, b.offset, place);
    for (const auto& [atom, coefficient] : b.atoms) {
        a.atoms[atom] = sum(a.atoms[atom], coefficient, place);
    }
    return a;
}

LinearForm Emitter::form(Value value, Place place) {
    const auto found = forms_.find({place, value});
    if (found != forms_.end()) return found->second;
    LinearForm result;
    if (op(value) == Op::constant) {
        result.constant.number =
            std::bit_cast<double>(info(value).instruction->get<ir::ConstantAttributes>().bits);
    } else if (info(value).parameter == "score") {
        result.atoms["score"] = {1, "scale"};
    } else if (!varies(value)) {
        result.constant = {1, use(value, place)};
    } else if (std::optional<LinearForm> parts = linear(value, place)) {
        result = *parts;
    } else {
        result.atoms[use(value, place)] = {1, ""};
    }
    return forms_[{place, value}] = result;
}

/// The form of an f32 op that keeps forms linear; none for others.
std::optional<LinearForm> Emitter::linear(Value value, Place place) {
    if (dtype(value) != DType::f32 || !varies(value) || info(value).instruction == nullptr)
        return {};
    const Coefficient minus_one{-1, ""};
    switch (op(value)) {
        case Op::neg:
            return scaled(form(operand(value, 0), place), minus_one, place);
        case Op::add:
            return sum(form(operand(value, 0), place), form(operand(value, 1), place), place);
        case Op::sub:
            return sum(form(operand(value, 0), place),
                       scaled(form(operand(value, 1), place), minus_one, place), place);
        case Op::mul:
        case Op::fma: {
            const bool left = !varies(operand(value, 0));
            if (!left && varies(operand(value, 1))) return {};
            LinearForm result = scaled(form(operand(value, left ? 1 : 0), place),
                                       form(operand(value, left ? 0 : 1), place).constant, place);
            if (op(value) == Op::fma) result = sum(result, form(operand(value, 2), place), place);
            return result;
        }
        case Op::div: {
            if (varies(operand(value, 1))) return {};
            const Coefficient divisor = form(operand(value, 1), place).constant;
            Coefficient inverse{1 / divisor.number, ""};
            if (!divisor.name.empty()) {
                inverse = {1, local(place, "float", temporary(),
                                    fmt::format("1.0f / {}", divisor.text()))};
            }
            return scaled(form(operand(value, 0), place), inverse, place);
        }
        case Op::cast: {
            const Value from = operand(value, 0);
            if (dtype(from) == DType::f16 || dtype(from) == DType::bf16) {
                LinearForm result;  // held in a float already
                result.atoms[use(from, place)] = {1, ""};
                return result;
            }
            if (!info(from).affine || !range(from).exact_in_f32()) return {};
            LinearForm result;
            result.constant = {1, fmt::format("f{}", value.id)};
            if (first_use(place, 'f', value)) {
                local(place, "float", result.constant.name,
                      fmt::format("static_cast<float>({})", base(from, place)));
            }
            result.offset.number = static_cast<double>(info(from).step);
            return result;
        }
        default:
            return {};
    }
}

/// start + form: what is equal for a row first, the score last.
std::string Emitter::evaluate(const LinearForm& form, const std::string& start) {
    std::string result = start;
    const auto add = [&](const Coefficient& coefficient, const std::string& factor) {
        if (factor.empty()) {
            result = result.empty() ? coefficient.text()
                                    : fmt::format("{} + {}", result, coefficient.text());
        } else if (result.empty()) {
            result =
                coefficient.one() ? factor : fmt::format("{} * {}", factor, coefficient.text());
        } else if (coefficient.one()) {
            result = fmt::format("{} + {}", result, factor);
        } else {
            result = fmt::format("fmaf({}, {}, {})", factor, coefficient.text(), result);
        }
    };
    if (!form.constant.zero()) add(form.constant, "");
    if (!form.offset.zero()) {
        if (form.offset.name.empty()) {
            add({1,
                 fmt::format("{} * static_cast<float>(offset)", float_literal(form.offset.number))},
                "");
        } else {
            add(form.offset, "static_cast<float>(offset)");
        }
    }
    for (const auto& [atom, coefficient] : form.atoms) {
        if (atom != "score") add(coefficient, atom);
    }
    const auto score = form.atoms.find("score");
    if (score != form.atoms.end()) add(score->second, "score");
    return result.empty() ? "0.0f" : result;
}

/// log2(e) * value + start, with what is affine in one multiply-add each.
std::string Emitter::exponent(Value value) {
    if (op(value) == Op::select && varies(value)) {
        const std::string condition = use(operand(value, 0), Place::element);
        const std::string if_true = exponent(operand(value, 1));
        const std::string if_false = exponent(operand(value, 2));
        return local(Place::element, "float", temporary(),
                     fmt::format("{} ? {} : {}", condition, if_true, if_false));
    }
    const LinearForm whole =
        scaled(form(value, Place::element), Coefficient{kLog2E, ""}, Place::element);
    return local(Place::element, "float", temporary(), evaluate(whole, "start"));
}

std::string Emitter::header() {
    const std::string result = exponent(results_[0]);
    const std::string exponent_text = std::exchange(text(Place::element), "");
    std::string derivative;
    if (results_.size() == 2) {
        std::erase_if(written_, [](const auto& key) { return std::get<0>(key) == Place::element; });
        std::erase_if(forms_, [](const auto& key) { return key.first.first == Place::element; });
        const std::string value = use(results_[1], Place::element);
        derivative = fmt::format(R"(
    /// Derivative of the new score by the old one.
    TW_DEVICE float derivative(float score, int j, int e, int r, const Columns& columns) const {{
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{}        return {};
    }}
)",
                                 text(Place::element), value);
    }
    return fmt::format(
        R"(// Generated: a score mod.
#pragma once

#include "cuda/device/scalar.cuh"

namespace tw::attn {{

struct ModArguments {{
    u64 words[{words}];  ///< per capture: address, extents, strides
}};

/// The score mod over a thread's part of a block of scores: its two rows, 8 apart, and pairs of
/// columns, 8 apart. Register 4 j + 2 r + e is row r, column 8 j + e from the thread's first.
struct ScoreMod {{
    const ModArguments& arguments;
    float scale;  ///< softmax scale
    int batch, head, first_row, first;
{members}
    struct Columns {{
{columns}    }};

    TW_DEVICE void enter_tile(int b, int h) {{
        batch = b;
        head = h;
{tile}    }}

    TW_DEVICE void enter_rows(int row_index) {{
        first_row = row_index;
#pragma unroll
        for (int r = 0; r < 2; ++r) {{
            const int row = first_row + 8 * r;
{rows}        }}
    }}

    TW_DEVICE void enter_block(int column_index) {{
        first = column_index;
    }}

    /// What columns 8 j and 8 j + 1 need and every row shares.
    TW_DEVICE Columns columns_at(int j) const {{
        Columns result;
#pragma unroll
        for (int e = 0; e < 2; ++e) {{
            const int offset = 8 * j + e, column = first + offset;
{column}        }}
        return result;
    }}

    /// log2(e) * the new score + start; `score` is a product of Q and K before the scale.
    TW_DEVICE float exponent(float score, int j, int e, int r, const Columns& columns,
                             float start) const {{
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{element}        return {result};
    }}
{derivative}}};

}}  // namespace tw::attn
)",
        fmt::arg("words", std::max<std::size_t>(num_words_, 1)), fmt::arg("members", member_text_),
        fmt::arg("columns", column_text_), fmt::arg("tile", text(Place::tile)),
        fmt::arg("rows", text(Place::row)), fmt::arg("column", text(Place::column)),
        fmt::arg("element", exponent_text), fmt::arg("result", result),
        fmt::arg("derivative", derivative));
}

}  // namespace

std::string emit_score_mod(const ir::Function& mod, const ScoreModFacts& facts) {
    return Emitter(mod, facts).header();
}

}  // namespace tilewright::attn::sm90
