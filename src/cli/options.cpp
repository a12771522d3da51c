// Kinds of options that several commands share: sizes, lists of sizes, threads, choices.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/command.h"
#include "support/check.h"
#include "tilewright/system.h"

namespace tilewright::cli {
namespace {

template <typename Value>
CLI::Option* add_size_option(CLI::App& command, const std::string& name, Value& value,
                             const std::string& description) {
    const auto check = [](const std::string& text) -> std::string {
        if (parse_size(text)) return "";
        return "expected an integer, as 4096, 4k (4000) or 4Ki (4096), but got " + text;
    };
    return command
        .add_option_function<std::string>(
            name, [&value](const std::string& text) { value = parse_size(text).value(); },
            description)
        ->type_name("N")
        ->check(CLI::Validator(check, ""));
}

}  // namespace

std::optional<std::int64_t> parse_size(std::string_view text) {
    static constexpr std::pair<std::string_view, std::int64_t> kSuffixes[] = {
        {"", 1},         {"k", 1000},     {"K", 1000},     {"M", 1'000'000}, {"G", 1'000'000'000},
        {"ki", 1 << 10}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
    };
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc()) return std::nullopt;
    const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
    for (const auto& [known, factor] : kSuffixes) {
        if (suffix != known) continue;
        if (__builtin_mul_overflow(value, factor, &value)) return std::nullopt;
        return value;
    }
    return std::nullopt;
}

std::vector<std::int64_t> parse_integers(const char* op, const char* form, const std::string& text,
                                         std::size_t least, std::size_t most) {
    std::vector<std::int64_t> values;
    bool sound = true;
    for (std::string_view left = text; sound;) {
        left.remove_prefix(std::min(left.find_first_not_of(' '), left.size()));
        const std::size_t comma = left.find(',');
        const std::optional<std::int64_t> value = parse_size(left.substr(0, comma));
        sound = value.has_value();
        values.push_back(value.value_or(0));
        if (comma == std::string_view::npos) break;
        left.remove_prefix(comma + 1);
    }
    if (!sound || values.size() < least || values.size() > most)
        user_error(op, "expected {} but got \"{}\"", form, text);
    return values;
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::int64_t& value,
                      const std::string& description) {
    return add_size_option(command, name, value, description);
}

CLI::Option* add_size(CLI::App& command, const std::string& name,
                      std::optional<std::int64_t>& value, const std::string& description) {
    return add_size_option(command, name, value, description);
}

CLI::Option* add_threads(CLI::App& command) {
    return command
        .add_option_function<int>("--threads", set_num_threads,
                                  "threads of the CPU at most [TILEWRIGHT_THREADS, else all cores]")
        ->type_name("N")
        ->check(integer_in(1, 1 << 16));
}

CLI::Validator one_of(std::vector<std::string> texts) {
    return CLI::Validator(
        [texts = std::move(texts)](const std::string& text) -> std::string {
            if (std::find(texts.begin(), texts.end(), text) != texts.end()) return "";
            return fmt::format("expected {}{} but got {}", texts.size() > 1 ? "one of " : "",
                               fmt::join(texts, ", "), text);
        },
        "");
}

CLI::Validator integer_in(std::uint64_t least, std::uint64_t most) {
    return CLI::Validator(
        [least, most](const std::string& text) -> std::string {
            std::uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && rest == end && value >= least && value <= most) return "";
            return fmt::format("expected an integer of {} to {} but got {}", least, most, text);
        },
        "");
}

}  // namespace tilewright::cli
