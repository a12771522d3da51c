// Mods from texts: names are resolved, values traced, errors located.
#include <algorithm>

#include "lang/tracer.h"
#include "mod/capture_table.h"
#include "mod/library.h"
#include "mod/text.h"
#include "support/check.h"

namespace tilewright {
namespace mod {
namespace {

bool is_position(const std::string& name) {
    return name == "b" || name == "h" || name == "q" || name == "kv";
}

/// The message of an error raised below, without its "[op] " and its C++ line.
std::string bare_message(const std::string& what) {
    std::size_t begin = what.rfind("[", 0) == 0 ? what.find("] ") : std::string::npos;
    begin = begin == std::string::npos ? 0 : begin + 2;
    const std::size_t end = what.find(" (at ", begin);
    return what.substr(begin, end == std::string::npos ? end : end - begin);
}

/// Runs `action`; its errors are made to point at `place`, unless they already point somewhere.
template <typename Action>
auto at_place(const Text& text, std::size_t place, Action&& action) {
    try {
        return action();
    } catch (const UserError& error) {
        const std::string what = error.what();
        if (what.find("\n    ") != std::string::npos) throw;
        text_error(text.source, place, bare_message(what));
    }
}

// ---- Names.

constexpr std::string_view kCompose = "compose";

class Resolver {
  public:
    explicit Resolver(Text& text) : text_(text) {}

    void run() { visit(text_.root); }

  private:
    [[noreturn]] void fail(const Node& node, const std::string& message) const {
        text_error(text_.source, node.place, message);
    }

    const Capture* array(const std::string& name) const {
        const auto found = text_.arrays.find(name);
        return found == text_.arrays.end() ? nullptr : &found->second;
    }

    void visit(Node& node) {
        switch (node.kind) {
            case Node::Kind::name:
                return visit_name(node);
            case Node::Kind::index:
                return visit_index(node);
            case Node::Kind::call:
                return visit_call(node);
            default:
                for (Node& child : node.children) visit(child);
        }
    }

    void visit_name(Node& node) {
        if (is_position(node.text) || node.text == "score") return;
        if (const Capture* capture = array(node.text)) {
            const int rank = capture->tensor().rank();
            if (rank > 0) {
                fail(node, fmt::format("expected {} of `{}`, {}, as in {}[{}], but got the array",
                                       rank == 1 ? "an index" : fmt::format("{} indices", rank),
                                       node.text, capture->tensor().type_name(), node.text,
                                       rank == 1 ? "q" : "h, q"));
            }
            return;
        }
        if (find_entry(node.text)) return visit_call(node);
        unknown(node,
                find_function(node.text)
                    ? fmt::format("expected the arguments of `{0}`, as in {0}(score)", node.text)
                    : "");
    }

    void visit_index(Node& node) {
        const Capture* capture = array(node.text);
        if (!capture) {
            if (is_position(node.text) || node.text == "score") {
                fail(node, fmt::format("expected an array but `{}` is a scalar", node.text));
            }
            unknown(node, "");
        }
        const int rank = capture->tensor().rank();
        if (rank != std::ssize(node.children)) {
            fail(node, fmt::format("expected {} indices of `{}`, {}, but got {}", rank, node.text,
                                   capture->tensor().type_name(), node.children.size()));
        }
        for (Node& child : node.children) visit(child);
    }

    [[noreturn]] void unknown(const Node& node, const std::string& message) const {
        if (!message.empty()) fail(node, message);
        std::string names = "b, h, q, kv, score";
        for (const auto& [name, capture] : text_.arrays) names += ", " + name;
        if (text_.arrays.empty()) names += ", an array bound by its name (there is none)";
        fail(node, fmt::format("expected one of {}, a function or a library name but got `{}`",
                               names, node.text));
    }

    void visit_call(Node& node) {
        if (const TextFunction* function = find_function(node.text)) {
            for (std::size_t i = 0; i < node.names.size(); ++i) {
                if (!node.names[i].empty() && node.names[i] != "approx") {
                    fail(node.children[i], fmt::format("expected no argument named `{}` of `{}`",
                                                       node.names[i], node.text));
                }
            }
            if (node.children.size() < function->least || node.children.size() > function->most) {
                fail(node, fmt::format("expected {}{} of `{}` but got {}", function->least,
                                       function->most == function->least
                                           ? (function->least == 1 ? " argument" : " arguments")
                                           : fmt::format(" to {} arguments", function->most),
                                       node.text, node.children.size()));
            }
            for (Node& child : node.children) visit(child);
            return;
        }
        if (node.text == kCompose && !array(node.text)) return compose_call(node);
        const LibraryEntry* entry = find_entry(node.text);
        if (!entry || array(node.text)) {
            if (array(node.text)) {
                fail(node, fmt::format("expected `{0}[...]` but got `{0}(...)`", node.text));
            }
            unknown(node, "");
        }
        library_call(node, *entry);
    }

    void compose_call(Node& node) {
        const bool named = std::any_of(node.names.begin(), node.names.end(),
                                       [](const std::string& name) { return !name.empty(); });
        if (named || node.children.size() != 2) {
            fail(node, fmt::format("expected `{}(outer, inner)`, two scores, but got {} argument{}",
                                   node.text, node.children.size(),
                                   named                       ? "s with names"
                                   : node.children.size() == 1 ? ""
                                                               : "s"));
        }
        for (Node& child : node.children) visit(child);
    }

    void library_call(Node& node, const LibraryEntry& entry) {
        const auto& parameters = entry.parameters;
        std::vector<std::optional<mod::Arguments::Value>> values(parameters.size());
        std::size_t positional = 0;
        for (std::size_t i = 0; i < node.children.size(); ++i) {
            Node& child = node.children[i];
            const bool is_last = i + 1 == node.children.size();
            if (is_last && node.names[i].empty() && entry.kind == Mod::Kind::score &&
                takes_score(child)) {
                visit(child);
                node.score_argument = static_cast<int>(i);
                continue;
            }
            std::size_t place = positional;
            if (node.names[i].empty()) {
                ++positional;
            } else {
                place = static_cast<std::size_t>(
                    std::find(parameters.begin(), parameters.end(), node.names[i]) -
                    parameters.begin());
            }
            if (place >= parameters.size()) {
                fail(child,
                     node.names[i].empty()
                         ? fmt::format("expected at most {} argument{} of `{}`", parameters.size(),
                                       parameters.size() == 1 ? "" : "s", node.text)
                         : fmt::format("expected no argument named `{}` of `{}`", node.names[i],
                                       node.text));
            }
            if (values[place]) {
                fail(child,
                     fmt::format("expected `{}` of `{}` once", parameters[place], node.text));
            }
            values[place] = argument(child);
        }
        for (std::size_t i = 0; i < entry.required; ++i) {
            if (!values[i]) {
                fail(node, fmt::format("expected `{}({})` but `{}` was left out", node.text,
                                       fmt::join(parameters, ", "), parameters[i]));
            }
        }
        node.mod = at_place(text_, node.place, [&] {
            return entry.make(mod::Arguments(parameters, std::move(values)));
        });
    }

    /// Does the tree read a score? Then it can be the trailing score argument of a score name.
    bool takes_score(const Node& node) const {
        if (node.kind == Node::Kind::name && node.text == "score") return true;
        if (node.kind == Node::Kind::name || node.kind == Node::Kind::call) {
            const LibraryEntry* entry = array(node.text) ? nullptr : find_entry(node.text);
            if (entry && entry->kind == Mod::Kind::score) return true;
        }
        return std::any_of(node.children.begin(), node.children.end(),
                           [&](const Node& child) { return takes_score(child); });
    }

    static bool is_constant(const Node& node) {
        const bool leaf = node.kind == Node::Kind::integer || node.kind == Node::Kind::real ||
                          node.kind == Node::Kind::truth;
        const bool inner = node.kind == Node::Kind::unary || node.kind == Node::Kind::binary ||
                           node.kind == Node::Kind::comparison;
        return leaf ||
               (inner && std::all_of(node.children.begin(), node.children.end(), is_constant));
    }

    mod::Arguments::Value argument(Node& node) {
        if (node.kind == Node::Kind::name) {
            if (const Capture* capture = array(node.text)) return *capture;
            if (find_function(node.text)) return node.text;
        }
        if (is_constant(node)) {
            lang::Tracer tracer("literals");  // nothing is traced, but operators need a tracer
            Text part{text_.source, node, {}};
            const Operand value = evaluate(part, {});
            if (value.kind() == Operand::Kind::floating) return value.floating();
            if (value.kind() == Operand::Kind::truth) return value.integer() != 0;
            return static_cast<std::int64_t>(value.integer());
        }
        visit(node);
        if (uses_score(node)) fail(node, "expected a number, an array or a mask but got a score");
        const auto part = std::make_shared<Text>(Text{text_.source, node, text_.arrays});
        return Mod::make(Mod::Kind::mask, {},
                         [part](std::span<const Tile> x) -> Operand { return evaluate(*part, x); });
    }

    Text& text_;
};

// ---- Values.

class Evaluation {
  public:
    Evaluation(const Text& text, std::span<const Tile> arguments)
        : text_(text), arguments_(arguments) {}

    Operand value(const Node& node) {
        return at_place(text_, node.place, [&] { return visit(node); });
    }

  private:
    bool has_score() const { return arguments_.size() == 5; }
    std::span<const Tile> positions() const { return arguments_.last(4); }

    Operand visit(const Node& node) {
        switch (node.kind) {
            case Node::Kind::integer:
                return Operand(node.integer, {});
            case Node::Kind::real:
                return Operand(node.real, {});
            case Node::Kind::truth:
                return Operand(node.integer != 0, {});
            case Node::Kind::name:
                return name(node);
            case Node::Kind::unary:
                return apply_unary(node.text, value(node.children[0]));
            case Node::Kind::binary: {
                const Operand left = value(node.children[0]);
                return apply_binary(node.text, left, value(node.children[1]));
            }
            case Node::Kind::comparison:
                return comparison(node);
            case Node::Kind::conditional:
                return conditional(node);
            case Node::Kind::index:
                return text_.arrays.at(node.text).element(values(node));
            default:
                if (node.mod.defined()) return library(node);
                if (const TextFunction* function = find_function(node.text)) {
                    return function->apply(values(node));
                }
                return composed(node);
        }
    }

    std::vector<Operand> values(const Node& node) {
        std::vector<Operand> result;
        for (const Node& child : node.children) result.push_back(value(child));
        return result;
    }

    Operand name(const Node& node) {
        if (node.mod.defined()) return library(node);
        if (node.text == "score") {
            if (!has_score()) user_error("mask", "expected a mask, which has no `score`");
            return Operand(arguments_[0], std::source_location{});
        }
        if (is_position(node.text)) {
            constexpr const char* kNames[] = {"b", "h", "q", "kv"};
            std::size_t place = 0;
            while (node.text != kNames[place]) ++place;
            return Operand(positions()[place], std::source_location{});
        }
        return Operand(text_.arrays.at(node.text).element({}), std::source_location{});
    }

    Operand library(const Node& node) {
        const auto p = positions();
        const auto at = [](Tile tile) { return Operand(tile, std::source_location{}); };
        if (node.mod.kind() == Mod::Kind::mask) {
            return at(node.mod(at(p[0]), at(p[1]), at(p[2]), at(p[3])));
        }
        const bool given = node.score_argument >= 0;
        const Operand wide = at(as_score(
            given ? value(node.children[node.score_argument]) : at(arguments_.front()), node));
        return at(node.mod(wide, at(p[0]), at(p[1]), at(p[2]), at(p[3])));
    }

    /// Evaluates the second argument, then the first one with that as the current score.
    Operand composed(const Node& node) {
        const Tile inner = as_score(value(node.children[1]), node);
        std::vector<Tile> arguments(arguments_.begin(), arguments_.end());
        arguments[0] = inner;
        return Evaluation(text_, arguments).value(node.children[0]);
    }

    /// Converts to the dtype of the scores, since a literal or a narrower score also counts as a
    /// score.
    Tile as_score(const Operand& score, const Node& node) const {
        if (!has_score()) user_error("mask", "expected a mask but `{}` is a score", node.text);
        const Operand current(arguments_[0], std::source_location{});
        return cast(score, lang::Tracer::current("mod").dtype(current));
    }

    Operand comparison(const Node& node) {
        const std::vector<Operand> operands = values(node);
        std::optional<Operand> all;
        for (std::size_t i = 0; i < node.names.size(); ++i) {
            const Operand one = apply_binary(node.names[i], operands[i], operands[i + 1]);
            all = all ? apply_binary("and", *all, one) : one;
        }
        return *all;
    }

    Operand conditional(const Node& node) {
        const Operand condition = value(node.children[1]);
        if (condition.kind() == Operand::Kind::truth) {
            return value(node.children[condition.integer() != 0 ? 0 : 2]);
        }
        const Operand chosen = value(node.children[0]);
        return where(condition, chosen, value(node.children[2]));
    }

    const Text& text_;
    std::span<const Tile> arguments_;
};

/// The dtype of the text's value, found by tracing it once.
DType result_dtype(const Text& text, bool with_score) {
    lang::Tracer tracer("text");
    CaptureTable table(tracer);
    std::vector<Tile> arguments;
    if (with_score) {
        arguments.push_back(tracer.wrap(tracer.function().add_parameter(ir::Type{f32, {}}, "s")));
    }
    for (const char* name : {"b", "h", "q", "kv"}) {
        arguments.push_back(tracer.wrap(tracer.function().add_parameter(ir::Type{i64, {}}, name)));
    }
    return tracer.dtype(evaluate(text, arguments));
}

bool is_identifier(const std::string& name) {
    const auto letter = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
        return letter(c) || (c >= '0' && c <= '9');
    });
}

}  // namespace

void resolve(Text& text) {
    Resolver(text).run();
}

bool uses_score(const Node& node) {
    if (node.mod.defined() && node.mod.kind() == Mod::Kind::score) return true;
    if (node.kind == Node::Kind::name && node.text == "score") return true;
    return std::any_of(node.children.begin(), node.children.end(), uses_score);
}

Operand evaluate(const Text& text, std::span<const Tile> arguments) {
    return Evaluation(text, arguments).value(text.root);
}

}  // namespace mod

Mod parse_mod(std::string_view text, const Bindings& arrays, std::optional<Mod::Kind> kind) {
    using mod::Node;
    const auto parsed = std::make_shared<mod::Text>();
    parsed->source = std::string(text);
    for (const auto& [name, tensor] : arrays) {
        const bool reserved = mod::is_position(name) || name == "score" || name == "inf" ||
                              name == "and" || name == "or" || name == "not" || name == "if" ||
                              name == "else" || name == "True" || name == "False" ||
                              mod::find_function(name) != nullptr;
        if (reserved || !mod::is_identifier(name)) {
            user_error("parse_mod", "expected {} for an array but got `{}`",
                       reserved ? "a name that is not taken" : "letters, digits and _", name);
        }
        parsed->arrays.emplace(name, capture(tensor, name));
    }
    parsed->root = mod::parse_text(parsed->source);
    mod::resolve(*parsed);

    const bool with_score = kind ? *kind == Mod::Kind::score : mod::uses_score(parsed->root);
    const DType dtype = mod::result_dtype(*parsed, with_score);
    const bool is_mask = kind ? *kind == Mod::Kind::mask : !with_score && dtype == boolean;
    if (is_mask != (dtype == boolean)) {
        mod::text_error(parsed->source, parsed->root.place,
                        is_mask
                            ? fmt::format("expected a mask, that is a bool as `q >= kv` gives, "
                                          "but got {}",
                                          name(dtype))
                            : "expected a score but got a bool; write `score if ... else -inf`");
    }
    return Mod::make(
        is_mask ? Mod::Kind::mask : Mod::Kind::score, {},
        [parsed](std::span<const Tile> x) -> Operand { return mod::evaluate(*parsed, x); });
}

}  // namespace tilewright
