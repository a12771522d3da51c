// Reads tokens of the IR text one after the other, and the types that they spell.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/lexer.h"
#include "ir/type.h"
#include "support/check.h"

namespace tilewright::ir {

/// The current token, and functions that take it if it is what they want; those that need it say
/// what was expected, with the place.
class TokenReader {
  public:
    explicit TokenReader(std::string_view text) : lexer_(text) { advance(); }

  protected:
    template <typename... Args>
    [[noreturn]] void fail(const Token& at, fmt::format_string<Args...> format,
                           Args&&... args) const {
        user_error("parse", "line {}, column {}: {}", at.line, at.column,
                   fmt::format(format, std::forward<Args>(args)...));
    }

    [[noreturn]] void unexpected(std::string_view wanted) const {
        if (token_.kind == Token::Kind::end) fail(token_, "expected {} but the text ended", wanted);
        const std::string_view sigil = token_.kind == Token::Kind::value ? "%" : "";
        fail(token_, "expected {} but got `{}{}`", wanted, sigil, token_.text);
    }

    // Adds the place in the text to errors of typing and of the verifier.
    template <typename Action>
    void located(const Token& at, Action&& action) const {
        try {
            action();
        } catch (const UserError& error) {
            fail(at, "{}", error.what());
        }
    }

    void advance() { token_ = lexer_.next(); }

    bool is_symbol(char c) const {
        return token_.kind == Token::Kind::symbol && token_.text[0] == c;
    }
    bool is_word(std::string_view text) const {
        return token_.kind == Token::Kind::word && token_.text == text;
    }
    bool accept(char c) {
        if (!is_symbol(c)) return false;
        advance();
        return true;
    }
    bool accept(std::string_view text) {
        if (!is_word(text)) return false;
        advance();
        return true;
    }
    void expect(char c) {
        if (!accept(c)) unexpected(fmt::format("`{}`", c));
    }
    void expect(std::string_view text) {
        if (!accept(text)) unexpected(fmt::format("`{}`", text));
    }

    std::string take(Token::Kind kind, std::string_view wanted) {
        if (token_.kind != kind) unexpected(wanted);
        std::string text = std::move(token_.text);
        advance();
        return text;
    }

    template <typename T>
    std::optional<T> number(const std::string& text) const {
        T value{};
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc{} || stop != end) return std::nullopt;
        return value;
    }

    std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
        if (token_.kind != Token::Kind::word) unexpected("an integer");
        const auto value = number<std::int64_t>(token_.text);
        if (!value || *value < low || *value > high) {
            unexpected(low <= high && high < std::numeric_limits<std::int64_t>::max()
                           ? fmt::format("an integer in [{}, {}]", low, high)
                           : "an integer");
        }
        advance();
        return *value;
    }

    std::int64_t extent() {
        if (accept('?')) return kDynamic;
        return integer(0);
    }

    template <typename Item>
    void bracketed(char open, char close, Item&& item) {
        expect(open);
        if (accept(close)) return;
        do item();
        while (accept(','));
        expect(close);
    }

    std::vector<std::int64_t> integers() {
        std::vector<std::int64_t> result;
        bracketed('[', ']', [&] { result.push_back(integer()); });
        return result;
    }

    DType dtype() {
        if (token_.kind != Token::Kind::word) unexpected("a type");
        const auto type = parse_dtype(token_.text);
        if (!type) unexpected("a type");
        advance();
        return *type;
    }

    Type type() {
        const Token start = token_;
        const DType element = dtype();
        std::vector<std::int64_t> dims;
        if (is_symbol('[')) bracketed('[', ']', [&] { dims.push_back(integer(0)); });
        Type result{element, {}};
        located(start, [&] { result.shape = Shape(dims); });
        return result;
    }

    RefType ref_type() {
        RefType result;
        result.space = accept("scratch") ? Space::scratch : Space::global;
        if (result.space == Space::global) expect("ref");
        expect('<');
        result.dtype = dtype();
        if (is_symbol('[')) bracketed('[', ']', [&] { result.extents.push_back(extent()); });
        expect('>');
        if (accept("alias")) {
            result.alias_group = static_cast<int>(integer(0, std::numeric_limits<int>::max()));
        }
        return result;
    }

    Token token_;

  private:
    Lexer lexer_;
};

}  // namespace tilewright::ir
