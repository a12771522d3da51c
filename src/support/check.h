// Throws errors: user_error for bad input, TW_ASSERT for internal invariants.
#pragma once

#include <fmt/format.h>

#include "tilewright/error.h"

namespace tilewright {

/// Throws UserError with the text "[operation] message".
template <typename... Args>
[[noreturn]] void user_error(std::string_view operation, fmt::format_string<Args...> format,
                             Args&&... args) {
    throw UserError(
        fmt::format("[{}] {}", operation, fmt::format(format, std::forward<Args>(args)...)));
}

/// Throws OutOfMemory with the text "[operation] message".
template <typename... Args>
[[noreturn]] void out_of_memory(std::string_view operation, fmt::format_string<Args...> format,
                                Args&&... args) {
    throw OutOfMemory(
        fmt::format("[{}] {}", operation, fmt::format(format, std::forward<Args>(args)...)));
}

namespace detail {
[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line,
                                          const std::string& message) {
    throw InternalError(fmt::format("{}:{}: `{}` does not hold{}{}", file, line, condition,
                                    message.empty() ? "" : ": ", message));
}
}  // namespace detail

}  // namespace tilewright

/// TW_ASSERT(condition) or TW_ASSERT(condition, "format {}", args...): throws InternalError.
#define TW_ASSERT(condition, ...)                                                  \
    do {                                                                           \
        if (!(condition)) {                                                        \
            ::tilewright::detail::assertion_failed(#condition, __FILE__, __LINE__, \
                                                   ::fmt::format("" __VA_ARGS__)); \
        }                                                                          \
    } while (false)
