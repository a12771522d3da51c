// Texts of masks and scores: tokens, syntax trees, evaluation inside a trace.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/mod.h"

namespace tilewright::mod {

/// Throws the UserError "[parse_mod] message at column N", with the text and a mark below that
/// column. Columns count characters from 1; from the second line on, the message names the line,
/// too.
[[noreturn]] void text_error(const std::string& text, std::size_t place,
                             const std::string& message);

struct Token {
    enum class Kind : std::uint8_t { end, integer, real, name, symbol };
    Kind kind = Kind::end;
    std::string text;
    std::size_t place = 0;  ///< offset in the text, in bytes
    std::int64_t integer = 0;
    double real = 0;

    bool is(std::string_view wanted) const {
        return (kind == Kind::symbol || kind == Kind::name) && text == wanted;
    }
};

/// The tokens of a text, followed by one of kind `end`.
std::vector<Token> tokenize(const std::string& text);

/// A node of the syntax tree.
struct Node {
    enum class Kind : std::uint8_t {
        integer,      ///< literal
        real,         ///< literal, or inf
        truth,        ///< True, False
        name,         ///< variable, array of rank 0, or library name without arguments
        unary,        ///< `text` is the operator: - + ~ not
        binary,       ///< `text` is the operator
        comparison,   ///< a < b <= c: the children; `names` has the operators, one fewer
        conditional,  ///< children: value, condition, otherwise
        call,         ///< `text` is the function; `names` holds each argument's keyword or ""
        index,        ///< `text` is the array
    };
    Kind kind = Kind::integer;
    std::string text;
    std::size_t place = 0;
    std::int64_t integer = 0;
    double real = 0;
    std::vector<Node> children;
    std::vector<std::string> names;
    int depth = 1;
    /// Set by `resolve` if the node is a library name.
    Mod mod;
    int score_argument = -1;  ///< child that replaces the current score; -1: none
};

/// Parses a text with Python's grammar and precedence. UserError with a column.
Node parse_text(const std::string& text);

/// A parsed text with the arrays it reads.
struct Text {
    std::string source;
    Node root;
    std::map<std::string, Capture> arrays;
};

/// Makes the mods of library names; checks names and argument counts. UserError with a column.
void resolve(Text& text);
/// True if the tree reads the current score.
bool uses_score(const Node& node);

/// The value of the text inside a trace, for (b, h, q, kv) or (score, b, h, q, kv). UserError with
/// a column.
Operand evaluate(const Text& text, std::span<const Tile> arguments);

/// A function of the text grammar, such as exp or where.
struct TextFunction {
    std::size_t least, most;  ///< number of arguments
    std::function<Operand(std::span<const Operand> arguments)> apply;
};
/// The function with this name, or null.
const TextFunction* find_function(std::string_view name);

/// Python's operators on traced values and literals; literals are computed as in Python. UserError
/// without a column.
Operand apply_unary(const std::string& op, const Operand& a);
Operand apply_binary(const std::string& op, const Operand& a, const Operand& b);

}  // namespace tilewright::mod
