// TILEWRIGHT_DEBUG=1: logs which choices are made and which slow paths are taken.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tilewright {

/// True if TILEWRIGHT_DEBUG is set, not empty and not 0.
bool debug_log_on();

/// Writes "[tilewright] operation: text" to standard error.
void write_debug_line(std::string_view operation, std::string_view text);

/// Writes a line if the log is on; lines on slow paths start with "slow path: ".
template <typename... Args>
void debug_log(std::string_view operation, fmt::format_string<Args...> format, Args&&... args) {
    if (!debug_log_on()) return;
    write_debug_line(operation, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tilewright
