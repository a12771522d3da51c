// TILEWRIGHT_DEBUG=1: which choices were made, and which slow paths taken.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tilewright {

/// True when TILEWRIGHT_DEBUG is set to anything but 0 and the empty text.
bool debug_log_on();

/// Writes "[tilewright] operation: text" to standard error.
void write_debug_line(std::string_view operation, std::string_view text);

/// Writes a line when the log is on; a slow path begins with "slow path: ".
template <typename... Args>
void debug_log(std::string_view operation, fmt::format_string<Args...> format, Args&&... args) {
    if (!debug_log_on()) return;
    write_debug_line(operation, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tilewright
