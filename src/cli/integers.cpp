// Lists of integers as values of options.
#include <charconv>

#include "cli/command.h"
#include "support/check.h"

namespace tilewright::cli {

std::vector<std::int64_t> parse_integers(const char* op, const char* form, const std::string& text,
                                         std::size_t least, std::size_t most) {
    std::vector<std::int64_t> values;
    const char* at = text.data();
    const char* const end = at + text.size();
    bool sound = true, more = true;
    while (sound && more) {
        while (at < end && *at == ' ') ++at;
        const auto [rest, error] = std::from_chars(at, end, values.emplace_back());
        more = rest < end && *rest == ',';
        sound = error == std::errc() && (more || rest == end);
        at = rest + 1;
    }
    if (!sound || values.size() < least || values.size() > most)
        user_error(op, "expected {} but got \"{}\"", form, text);
    return values;
}

}  // namespace tilewright::cli
