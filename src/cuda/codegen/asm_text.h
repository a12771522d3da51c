// Lists of operands in the text of generated asm statements.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace tilewright::cuda {

/// text(0), text(1) and so on, `in_a_line` of them per line.
std::string list(int count, int in_a_line, std::string_view new_line, auto text) {
    std::string result;
    for (int i = 0; i < count; ++i) {
        if (i > 0) result += i % in_a_line == 0 ? fmt::format(",{}", new_line) : std::string(", ");
        result += text(i);
    }
    return result;
}

}  // namespace tilewright::cuda
