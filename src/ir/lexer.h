// Tokens of the IR text.
#pragma once

#include <string>
#include <string_view>

namespace tilewright::ir {

struct Token {
    enum class Kind {
        word,    ///< a name or number: letters, digits, `_`, `.`, a leading `-`
        value,   ///< %name; text without the %
        symbol,  ///< one punctuation character
        text,    ///< a quoted string with its escapes resolved
        end,
    };
    Kind kind = Kind::end;
    std::string text;
    int line = 1;
    int column = 1;
};

/// Splits a text into tokens, skipping white space and `//` comments.
class Lexer {
  public:
    explicit Lexer(std::string_view text) : text_(text) {}

    /// UserError for characters that start no token and for unterminated strings.
    Token next();

  private:
    char peek(std::size_t ahead = 0) const {
        return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
    }
    char take();
    void skip_space();
    std::string word();
    std::string quoted(const Token& start);

    std::string_view text_;
    std::size_t position_ = 0;
    int line_ = 1;
    int column_ = 1;
};

}  // namespace tilewright::ir
