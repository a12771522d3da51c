// Tokens of texts, and errors that point into a text.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "mod/text.h"
#include "support/check.h"

namespace tilewright::mod {
namespace {

constexpr std::size_t kLongestText = 1 << 16;

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// The number of characters in UTF-8 text.
std::size_t characters(std::string_view text) {
    std::size_t count = 0;
    for (char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return count;
}

class Tokenizer {
  public:
    explicit Tokenizer(const std::string& text) : text_(text) {}

    std::vector<Token> run() {
        if (text_.size() > kLongestText) {
            user_error("parse_mod", "expected a text of at most {} bytes but got {}", kLongestText,
                       text_.size());
        }
        for (;;) {
            while (place_ < text_.size() && std::isspace(static_cast<unsigned char>(peek()))) {
                ++place_;
            }
            start_ = place_;
            if (place_ == text_.size()) break;
            next();
        }
        add(Token::Kind::end);
        return std::move(tokens_);
    }

  private:
    char peek(std::size_t ahead = 0) const {
        return place_ + ahead < text_.size() ? text_[place_ + ahead] : '\0';
    }

    Token& add(Token::Kind kind) {
        Token token;
        token.kind = kind;
        token.text = text_.substr(start_, place_ - start_);
        token.place = start_;
        tokens_.push_back(std::move(token));
        return tokens_.back();
    }

    void next() {
        if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1)))) return number();
        if (starts_name(peek())) {
            while (starts_name(peek()) || is_digit(peek())) ++place_;
            add(Token::Kind::name);
            return;
        }
        static constexpr std::array<std::string_view, 27> kSymbols{
            "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+", "-", "*", "/", "%", "&",
            "|",  "^",  "~",  "<",  ">",  "(",  ")",  "[",  "]", ",", "=", ".", "!"};
        for (std::string_view symbol : kSymbols) {
            if (std::string_view(text_).substr(place_, symbol.size()) != symbol) continue;
            place_ += symbol.size();
            add(Token::Kind::symbol);
            return;
        }
        std::size_t end = place_ + 1;  // includes the whole UTF-8 character
        while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80) ++end;
        const std::string_view bytes = std::string_view(text_).substr(place_, end - place_);
        const bool printable = static_cast<unsigned char>(bytes[0]) > 0x20 && bytes[0] != 0x7f;
        text_error(text_, place_,
                   printable ? fmt::format("expected an expression but got `{}`", bytes)
                             : "expected an expression but got a control character");
    }

    void number() {
        bool is_real = false;
        std::string digits;
        const auto take_digits = [&] {
            while (is_digit(peek()) || (peek() == '_' && is_digit(peek(1)))) {
                if (peek() != '_') digits += peek();
                ++place_;
            }
        };
        take_digits();
        if (peek() == '.') {
            is_real = true;
            digits += text_[place_++];
            take_digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
            if (is_digit(peek(1 + sign))) {
                is_real = true;
                for (std::size_t i = 0; i <= sign; ++i) digits += text_[place_++];
                take_digits();
            }
        }
        if (starts_name(peek())) {
            text_error(text_, place_, fmt::format("expected an operator but got `{}`", peek()));
        }
        Token& token = add(is_real ? Token::Kind::real : Token::Kind::integer);
        if (is_real) {
            token.real = std::strtod(digits.c_str(), nullptr);
            return;
        }
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
        if (error != std::errc()) {
            text_error(text_, start_, "expected an integer below 2^63 but got " + token.text);
        }
    }

    const std::string& text_;
    std::size_t place_ = 0, start_ = 0;
    std::vector<Token> tokens_;
};

}  // namespace

void text_error(const std::string& text, std::size_t place, const std::string& message) {
    place = std::min(place, text.size());
    const std::size_t before = place == 0 ? std::string::npos : text.rfind('\n', place - 1);
    const std::size_t line_start = before == std::string::npos ? 0 : before + 1;
    const std::size_t line_end = std::min(text.find('\n', place), text.size());
    const auto line = std::count(text.begin(), text.begin() + place, '\n');
    const std::size_t column =
        characters(std::string_view(text).substr(line_start, place - line_start));
    std::string shown = text.substr(line_start, line_end - line_start);
    for (char& c : shown) {
        if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    user_error("parse_mod", "{} at {}column {}\n    {}\n    {}^", message,
               line == 0 ? "" : fmt::format("line {}, ", line + 1), column + 1, shown,
               std::string(column, ' '));
}

std::vector<Token> tokenize(const std::string& text) {
    return Tokenizer(text).run();
}

}  // namespace tilewright::mod
