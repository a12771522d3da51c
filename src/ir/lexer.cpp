// Tokens of the IR text.
#include "ir/lexer.h"

#include <cctype>

#include "support/check.h"

namespace tilewright::ir {
namespace {

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

[[noreturn]] void fail(const Token& at, const std::string& message) {
    user_error("parse", "line {}, column {}: {}", at.line, at.column, message);
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

}  // namespace

char Lexer::take() {
    const char c = text_[position_++];
    if (c == '\n') {
        ++line_;
        column_ = 1;
    } else {
        ++column_;
    }
    return c;
}

void Lexer::skip_space() {
    while (position_ < text_.size()) {
        if (std::isspace(static_cast<unsigned char>(peek()))) {
            take();
        } else if (peek() == '/' && peek(1) == '/') {
            while (position_ < text_.size() && peek() != '\n') take();
        } else {
            return;
        }
    }
}

// A number may have a sign in its exponent: 1e-05.
std::string Lexer::word() {
    std::string result;
    if (peek() == '-') result += take();
    const bool number = std::isdigit(static_cast<unsigned char>(peek())) != 0;
    while (is_word(peek())) {
        const char c = take();
        result += c;
        const bool exponent = number && (c == 'e' || c == 'E');
        if (exponent && (peek() == '-' || peek() == '+')) result += take();
    }
    return result;
}

std::string Lexer::quoted(const Token& start) {
    std::string result;
    take();
    for (;;) {
        if (position_ >= text_.size()) fail(start, "expected a closing quote but the text ended");
        const char c = take();
        if (c == '"') return result;
        if (c != '\\') {
            result += c;
            continue;
        }
        const char escape = position_ < text_.size() ? take() : '\0';
        if (escape == '"' || escape == '\\') {
            result += escape;
        } else if (escape == 'n') {
            result += '\n';
        } else if (escape == 't') {
            result += '\t';
        } else if (escape == 'x' && hex_digit(peek()) >= 0 && hex_digit(peek(1)) >= 0) {
            const int high = hex_digit(take());
            result += static_cast<char>(16 * high + hex_digit(take()));
        } else {
            fail(start, "expected an escape \\\" \\\\ \\n \\t or \\xHH in the string");
        }
    }
}

Token Lexer::next() {
    skip_space();
    Token token;
    token.line = line_;
    token.column = column_;
    if (position_ >= text_.size()) return token;
    const char c = peek();
    if (c == '"') {
        token.kind = Token::Kind::text;
        token.text = quoted(token);
    } else if (c == '%') {
        take();
        token.kind = Token::Kind::value;
        token.text = word();
        if (token.text.empty() || token.text[0] == '-') fail(token, "expected a name after %");
    } else if (is_word(c) || (c == '-' && is_word(peek(1)))) {
        token.kind = Token::Kind::word;
        token.text = word();
    } else if (std::string_view("{}()[]<>,:=?@").find(c) != std::string_view::npos) {
        token.kind = Token::Kind::symbol;
        token.text = std::string(1, take());
    } else {
        fail(token, fmt::format("expected a token but got character 0x{:02x}",
                                static_cast<unsigned char>(c)));
    }
    return token;
}

}  // namespace tilewright::ir
