// Parses texts to syntax trees: Python's expressions by recursive descent, one function per level.
#include <algorithm>
#include <array>
#include <limits>

#include "mod/text.h"
#include "support/check.h"

namespace tilewright::mod {
namespace {

/// Limits the depth of the tree and of nested parentheses and signs, since both take recursion.
constexpr int kDeepest = 256;

constexpr std::array<std::string_view, 7> kReserved{"and",  "or",   "not",  "if",
                                                    "else", "True", "False"};

class Parser {
  public:
    explicit Parser(const std::string& text) : text_(text), tokens_(tokenize(text)) {}

    Node run() {
        if (now().kind == Token::Kind::end) expected("an expression");
        Node root = conditional();
        if (now().kind != Token::Kind::end) {
            expected(now().is("=") ? "`==` to compare" : "an operator or the end");
        }
        return root;
    }

  private:
    /// Counts the levels of recursion during its lifetime.
    struct Level {
        explicit Level(Parser& owner) : parser(owner) {
            if (++parser.level_ > kDeepest) parser.too_deep(parser.now().place);
        }
        ~Level() { --parser.level_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        Parser& parser;
    };

    const Token& now() const { return tokens_[place_]; }

    [[noreturn]] void expected(std::string_view what) const {
        const Token& token = now();
        text_error(text_, token.place,
                   token.kind == Token::Kind::end
                       ? fmt::format("expected {} but the text ends", what)
                       : fmt::format("expected {} but got `{}`", what, token.text));
    }
    [[noreturn]] void too_deep(std::size_t place) const {
        text_error(text_, place,
                   fmt::format("expected an expression at most {} operations deep", kDeepest));
    }

    bool take(std::string_view symbol) {
        if (!now().is(symbol)) return false;
        ++place_;
        return true;
    }
    void want(std::string_view symbol) {
        if (!take(symbol)) expected(fmt::format("`{}`", symbol));
    }

    Node make(Node::Kind kind, std::string text, std::size_t place, std::vector<Node> children) {
        Node node;
        node.kind = kind;
        node.text = std::move(text);
        node.place = place;
        node.children = std::move(children);
        for (const Node& child : node.children) node.depth = std::max(node.depth, child.depth + 1);
        if (node.depth > kDeepest) too_deep(place);
        return node;
    }
    template <typename... Children>
    static std::vector<Node> list(Children... children) {
        std::vector<Node> nodes;
        (nodes.push_back(std::move(children)), ...);
        return nodes;
    }

    /// value if condition else otherwise
    Node conditional() {
        const Level level(*this);
        Node value = disjunction();
        const std::size_t place = now().place;
        if (!take("if")) return value;
        Node condition = disjunction();
        want("else");
        Node otherwise = conditional();
        return make(Node::Kind::conditional, "if", place,
                    list(std::move(value), std::move(condition), std::move(otherwise)));
    }

    template <typename Next>
    Node left(std::initializer_list<std::string_view> operators, Next next) {
        Node node = (this->*next)();
        for (;;) {
            const Token token = now();
            const bool found = std::any_of(operators.begin(), operators.end(),
                                           [&](std::string_view op) { return token.is(op); });
            if (!found) return node;
            ++place_;
            node = make(Node::Kind::binary, token.text, token.place,
                        list(std::move(node), (this->*next)()));
        }
    }

    Node disjunction() { return left({"or"}, &Parser::conjunction); }
    Node conjunction() { return left({"and"}, &Parser::negation); }
    Node negation() {
        const Level level(*this);
        const std::size_t place = now().place;
        if (!take("not")) return comparison();
        return make(Node::Kind::unary, "not", place, list(negation()));
    }

    Node comparison() {
        std::vector<Node> operands = list(bit_or());
        std::vector<std::string> operators;
        const std::size_t place = now().place;
        for (;;) {
            const Token token = now();
            static constexpr std::array<std::string_view, 6> kComparisons{"<",  "<=", ">",
                                                                          ">=", "==", "!="};
            if (std::none_of(kComparisons.begin(), kComparisons.end(),
                             [&](std::string_view op) { return token.is(op); })) {
                break;
            }
            ++place_;
            operators.push_back(token.text);
            operands.push_back(bit_or());
        }
        if (operators.empty()) return std::move(operands.front());
        Node node = make(Node::Kind::comparison, operators.front(), place, std::move(operands));
        node.names = std::move(operators);
        return node;
    }

    Node bit_or() { return left({"|"}, &Parser::bit_xor); }
    Node bit_xor() { return left({"^"}, &Parser::bit_and); }
    Node bit_and() { return left({"&"}, &Parser::shift); }
    Node shift() { return left({"<<", ">>"}, &Parser::sum); }
    Node sum() { return left({"+", "-"}, &Parser::product); }
    Node product() { return left({"*", "/", "//", "%"}, &Parser::sign); }

    Node sign() {
        const Level level(*this);
        const Token token = now();
        for (std::string_view op : {"-", "+", "~"}) {
            if (!token.is(op)) continue;
            ++place_;
            return make(Node::Kind::unary, token.text, token.place, list(sign()));
        }
        return power();
    }

    Node power() {
        Node base = postfix();
        const Token token = now();
        if (!take("**")) return base;
        return make(Node::Kind::binary, token.text, token.place, list(std::move(base), sign()));
    }

    Node postfix() {
        Node node = atom();
        for (;;) {
            const std::size_t place = now().place;
            if (now().is("(") || now().is("[")) {
                if (node.kind != Node::Kind::name) expected("an operator");
                const bool is_call = take("(");
                if (!is_call) want("[");
                std::vector<Node> arguments;
                std::vector<std::string> names;
                const std::string_view close = is_call ? ")" : "]";
                while (!now().is(close)) {
                    names.push_back(is_call ? keyword() : std::string());
                    arguments.push_back(conditional());
                    if (!take(",") && !now().is(close)) {
                        expected(fmt::format("`,` or `{}`", close));
                    }
                }
                if (!is_call && arguments.empty()) expected("an index");
                want(close);
                node = make(is_call ? Node::Kind::call : Node::Kind::index, node.text, node.place,
                            std::move(arguments));
                node.names = std::move(names);
                continue;
            }
            if (now().is(".")) text_error(text_, place, "expected an operator but got `.`");
            return node;
        }
    }

    /// The `name =` before an argument, or "".
    std::string keyword() {
        if (now().kind != Token::Kind::name || !tokens_[place_ + 1].is("=")) return {};
        std::string name = now().text;
        place_ += 2;
        return name;
    }

    Node atom() {
        const Token token = now();
        if (take("(")) {
            Node inner = conditional();
            want(")");
            return inner;
        }
        const bool reserved =
            std::find(kReserved.begin(), kReserved.end(), token.text) != kReserved.end();
        if (token.kind == Token::Kind::symbol || token.kind == Token::Kind::end ||
            (reserved && token.text != "True" && token.text != "False")) {
            expected("an expression");
        }
        ++place_;
        Node node = make(Node::Kind::name, token.text, token.place, {});
        if (token.kind == Token::Kind::integer) {
            node.kind = Node::Kind::integer;
            node.integer = token.integer;
        } else if (token.kind == Token::Kind::real) {
            node.kind = Node::Kind::real;
            node.real = token.real;
        } else if (token.text == "True" || token.text == "False") {
            node.kind = Node::Kind::truth;
            node.integer = token.text == "True";
        } else if (token.text == "inf") {
            node.kind = Node::Kind::real;
            node.real = std::numeric_limits<double>::infinity();
        }
        return node;
    }

    const std::string& text_;
    std::vector<Token> tokens_;
    std::size_t place_ = 0;
    int level_ = 0;
};

}  // namespace

Node parse_text(const std::string& text) {
    return Parser(text).run();
}

}  // namespace tilewright::mod
