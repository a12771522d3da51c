// Writes the lines of TILEWRIGHT_DEBUG.
#include "support/debug_log.h"

#include <cstdio>
#include <cstdlib>

namespace tilewright {

bool debug_log_on() {
    const char* const text = std::getenv("TILEWRIGHT_DEBUG");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

void write_debug_line(std::string_view operation, std::string_view text) {
    // A single write, so that lines of different threads do not mix.
    const std::string line = fmt::format("[tilewright] {}: {}\n", operation, text);
    std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace tilewright
