// Prints functions as text.
#include "ir/print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cctype>
#include <cmath>
#include <map>
#include <unordered_set>

#include "ir/access.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

bool is_identifier(std::string_view text) {
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
    for (char c : text) {
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
    }
    return true;
}

std::string sanitised(std::string_view hint) {
    std::string result;
    for (char c : hint) {
        result += std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? c : '_';
    }
    if (!result.empty() && std::isdigit(static_cast<unsigned char>(result[0]))) {
        result.insert(0, 1, '_');
    }
    return result;
}

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') {
            result += '\\';
            result += c;
        } else if (c == '\n') {
            result += "\\n";
        } else if (c == '\t') {
            result += "\\t";
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
            result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
            result += c;
        }
    }
    return result + '"';
}

// Unique names: the hint if it is free, else the hint followed by a counter.
class Names {
  public:
    std::string claim(std::string_view hint) {
        std::string name = sanitised(hint);
        if (name.empty()) name = "_";
        if (taken_.insert(name).second) return name;
        for (;;) {
            std::string numbered = fmt::format("{}_{}", name, ++counters_[name]);
            if (taken_.insert(numbered).second) return numbered;
        }
    }

  private:
    std::unordered_set<std::string> taken_;
    std::map<std::string, int> counters_;
};

// Names of the mods in one text, shared by its functions.
struct Callees {
    std::unordered_set<std::string> taken;
    std::map<const Function*, std::string> printed;

    std::string claim(const Function& function) {
        std::string name = function.name;
        for (int i = 1; !taken.insert(name).second; ++i) {
            name = fmt::format("{}_{}", function.name, i);
        }
        return is_identifier(name) ? name : quoted(name);
    }
};

class Printer {
  public:
    Printer(const Function& function, Callees& callees, bool lines = false)
        : function_(function), callees_(callees), lines_(lines) {}

    std::string function(const std::string& printed_name) {
        std::vector<std::string> parameters;
        for (Value value : function_.parameters()) {
            parameters.push_back(fmt::format("{}: {}", define(value), parameter_type(value)));
        }
        std::string text = fmt::format("func @{}({})", printed_name, fmt::join(parameters, ", "));
        if (!function_.grid.empty()) {
            std::vector<std::string> grid;
            for (std::int64_t extent : function_.grid) {
                grid.push_back(extent == kDynamic ? "?" : fmt::format("{}", extent));
            }
            text += fmt::format(" grid [{}]", fmt::join(grid, ", "));
        }
        if (function_.hints.num_warps != 0) {
            text += fmt::format(" num_warps {}", function_.hints.num_warps);
        }
        if (function_.hints.num_stages != 0) {
            text += fmt::format(" num_stages {}", function_.hints.num_stages);
        }
        return text + " " + block(function_.body, 0) + "\n";
    }

    std::string instruction(const Instruction& instruction, int depth, bool with_blocks) {
        std::string operands_text = operands(instruction);
        // The heading of a loop names its block arguments before the types.
        if (instruction.op == Op::for_loop) operands_text = for_heading(instruction);
        if (instruction.op == Op::while_loop) {
            operands_text = carries(instruction.operands, block_arguments(instruction, 0, 0));
        }
        std::string text;
        if (!instruction.results.empty()) {
            std::vector<std::string> results;
            for (Value value : instruction.results) results.push_back(define(value));
            text = fmt::format("{} = ", fmt::join(results, ", "));
        }
        text += name(instruction.op);
        if (!operands_text.empty()) text += " " + operands_text;
        if (!instruction.results.empty()) {
            std::vector<std::string> types;
            for (Value value : instruction.results) types.push_back(type_text(value));
            text += fmt::format(" : {}", fmt::join(types, ", "));
        }
        return with_blocks ? text + blocks(instruction, depth) : text;
    }

  private:
    std::string parameter_type(Value value) const {
        if (!function_.is_ref(value)) return to_string(function_.type(value));
        const RefType& type = function_.ref_type(value);
        if (type.alias_group < 0) return to_string(type);
        return fmt::format("{} alias {}", to_string(type), type.alias_group);
    }

    std::string type_text(Value value) const {
        if (value.id >= function_.num_values()) return "?";
        return function_.is_ref(value) ? to_string(function_.ref_type(value))
                                       : to_string(function_.type(value));
    }

    const std::string& define(Value value) {
        auto [entry, is_new] = names_.try_emplace(value);
        if (!is_new) return entry->second;
        const bool known = value.id < function_.num_values();
        const bool hinted = known && !function_.value_name(value).empty();
        entry->second = hinted ? "%" + unique_.claim(function_.value_name(value))
                               : fmt::format("%{}", next_number_++);
        return entry->second;
    }

    std::string list(std::span<const Value> values) {
        std::vector<std::string> result;
        for (Value value : values) result.push_back(define(value));
        return fmt::format("{}", fmt::join(result, ", "));
    }

    std::span<const Value> block_arguments(const Instruction& instruction, std::size_t block,
                                           std::size_t skip) const {
        if (instruction.blocks.size() <= block) return {};
        const std::vector<Value>& arguments = instruction.blocks[block].arguments;
        return std::span(arguments).subspan(std::min(skip, arguments.size()));
    }

    std::string carries(std::span<const Value> init, std::span<const Value> arguments) {
        if (init.empty()) return "";
        std::vector<std::string> pairs;
        for (std::size_t i = 0; i < init.size(); ++i) {
            const std::string start = define(init[i]);
            const std::string argument = i < arguments.size() ? define(arguments[i]) : "?";
            pairs.push_back(fmt::format("{} = {}", argument, start));
        }
        return fmt::format("carry ({})", fmt::join(pairs, ", "));
    }

    std::string for_heading(const Instruction& instruction) {
        const std::size_t bounds = std::min<std::size_t>(3, instruction.operands.size());
        const std::span<const Value> operands_ = instruction.operands;
        const std::string range = list(operands_.first(bounds));
        const auto iv = block_arguments(instruction, 0, 0);
        std::string text = fmt::format("{} = {}", iv.empty() ? "?" : define(iv[0]), range);
        const std::string carried =
            carries(operands_.subspan(bounds), block_arguments(instruction, 0, 1));
        return carried.empty() ? text : text + " " + carried;
    }

    std::string operands(const Instruction& instruction) {
        std::string text;
        if (instruction.op == Op::constant) {
            const auto* constant = std::get_if<ConstantAttributes>(&instruction.attributes);
            if (constant == nullptr || instruction.results.empty()) return "?";
            return print_element(function_.type(instruction.result()).dtype, constant->bits);
        }
        if (const auto* access = std::get_if<AccessAttributes>(&instruction.attributes)) {
            return access_operands(instruction, *access);
        }
        if (const auto* call = std::get_if<CallAttributes>(&instruction.attributes)) {
            return fmt::format("{}({})", callee(call->callee.get()), list(instruction.operands));
        }
        if (const auto* scan = std::get_if<CombineAttributes>(&instruction.attributes)) {
            return fmt::format("{}({}) axis {}{}", callee(scan->combine.get()),
                               list(instruction.operands), scan->axis,
                               scan->reverse ? " reverse" : "");
        }
        text = list(instruction.operands);
        const std::string attributes = attribute_text(instruction);
        return text.empty() || attributes.empty() ? text + attributes : text + " " + attributes;
    }

    std::string callee(const Function* mod) const {
        const auto printed = callees_.printed.find(mod);
        return "@" + (printed != callees_.printed.end() ? printed->second
                      : mod != nullptr                  ? mod->name
                                                        : "?");
    }

    std::string access_operands(const Instruction& instruction, const AccessAttributes& access) {
        const std::vector<Value>& values = instruction.operands;
        if (values.size() < 1 + access.indices.size()) return list(values);
        std::vector<std::string> indices;
        for (std::size_t i = 0; i < access.indices.size(); ++i) {
            const Index& index = access.indices[i];
            std::string text = define(values[1 + i]);
            if (index.kind == Index::Kind::tile) text = "tile " + text;
            if (index.kind == Index::Kind::slice) {
                text += fmt::format(" : {}", index.size);
                if (index.stride != 1) text += fmt::format(" : {}", index.stride);
            }
            indices.push_back(text);
        }
        std::string text = fmt::format("{}[{}]", define(values[0]), fmt::join(indices, ", "));
        std::span<const Value> rest = std::span(values).subspan(1 + access.indices.size());
        const std::size_t trailing = (access.has_mask ? 1u : 0u) + (access.has_other ? 1u : 0u);
        if (rest.size() < trailing) return list(values);
        for (Value value : rest.first(rest.size() - trailing)) text += ", " + define(value);
        rest = rest.last(trailing);
        if (access.has_mask) text += " mask " + define(rest.front());
        if (access.has_other) text += " other " + define(rest.back());
        if (access.in_bounds) text += " in_bounds";
        return text;
    }

    static std::string attribute_text(const Instruction& instruction) {
        return std::visit(
            [&](const auto& value) -> std::string {
                using T = std::decay_t<decltype(value)>;
                if constexpr (std::is_same_v<T, AxisAttributes>) {
                    return fmt::format("axis {}", value.axis);
                } else if constexpr (std::is_same_v<T, MathAttributes>) {
                    return value.approx ? "approx" : "";
                } else if constexpr (std::is_same_v<T, PermutationAttributes>) {
                    return fmt::format("permutation [{}]", fmt::join(value.permutation, ", "));
                } else if constexpr (std::is_same_v<T, SliceAttributes>) {
                    return fmt::format("starts [{}] sizes [{}] strides [{}]",
                                       fmt::join(value.starts, ", "), fmt::join(value.sizes, ", "),
                                       fmt::join(value.strides, ", "));
                } else if constexpr (std::is_same_v<T, ReduceAttributes>) {
                    return fmt::format("{} axis {}{}{}", name(value.kind), value.axis,
                                       value.reverse ? " reverse" : "",
                                       value.exclusive ? " exclusive" : "");
                } else if constexpr (std::is_same_v<T, SortAttributes>) {
                    return fmt::format("axis {} count {}{}", value.axis, value.count,
                                       value.descending ? " descending" : "");
                } else if constexpr (std::is_same_v<T, DotAttributes>) {
                    std::string text;
                    if (value.transpose_a) text += " transpose_a";
                    if (value.transpose_b) text += " transpose_b";
                    if (value.precision != Precision::ieee) {
                        text += fmt::format(" precision {}", name(value.precision));
                    }
                    return text.empty() ? text : text.substr(1);
                } else if constexpr (std::is_same_v<T, TextAttributes>) {
                    return "text " + quoted(value.text);
                } else {
                    return "";
                }
            },
            instruction.attributes);
    }

    std::string blocks(const Instruction& instruction, int depth) {
        std::string text;
        for (std::size_t i = 0; i < instruction.blocks.size(); ++i) {
            if (i == 1 && instruction.op == Op::while_loop) {
                text += fmt::format(" do ({})", list(instruction.blocks[i].arguments));
            }
            if (i == 1 && instruction.op == Op::if_else) text += " else";
            text += " " + block(instruction.blocks[i], depth + 1);
        }
        return text;
    }

    std::string block(const Block& block, int depth) {
        std::string text = "{\n";
        for (const Instruction& each : block.body) {
            const std::string margin(2 * (depth + 1), ' ');
            if (lines_ && (each.location.line != line_.line || each.location.file != line_.file)) {
                line_ = each.location;
                text += fmt::format("{}loc {} {}\n", margin, quoted(line_.file), line_.line);
            }
            text += margin + instruction(each, depth, true);
            text += '\n';
        }
        return text + std::string(static_cast<std::size_t>(2 * depth), ' ') + "}";
    }

    const Function& function_;
    Callees& callees_;
    bool lines_;
    Location line_;  ///< the last location printed
    Names unique_;
    std::map<Value, std::string> names_;
    int next_number_ = 0;
};

// Mods are printed before the first function that calls them.
void print_callees(const Function& function, Callees& callees, std::string& text) {
    walk(function.body, [&](const Instruction& instruction) {
        const Function* const mod = callee_of(instruction);
        if (mod == nullptr) return;
        const Function& callee = *mod;
        if (callees.printed.contains(&callee)) return;
        print_callees(callee, callees, text);
        const std::string name = callees.claim(callee);
        callees.printed.emplace(&callee, name);
        text += Printer(callee, callees).function(name) + "\n";
    });
}

}  // namespace

std::string print_element(DType dtype, std::uint64_t bits) {
    if (dtype == DType::boolean) return bits != 0 ? "true" : "false";
    if (!is_float(dtype)) {
        return is_signed(dtype) ? fmt::format("{}", static_cast<std::int64_t>(bits))
                                : fmt::format("{}", bits);
    }
    const double value = std::bit_cast<double>(bits);
    if (std::isnan(value)) return "nan";
    if (dtype == DType::f64) return fmt::format("{}", value);
    return fmt::format("{}", static_cast<float>(value));
}

std::string print(const Function& function, bool lines) {
    Callees callees;
    const std::string name = callees.claim(function);
    std::string text;
    print_callees(function, callees, text);
    return text + Printer(function, callees, lines).function(name);
}

std::string describe(const Function& function, const Instruction& instruction) {
    Callees callees;
    return Printer(function, callees).instruction(instruction, 0, false);
}

}  // namespace tilewright::ir
