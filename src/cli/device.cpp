// Parses the value of --device.
#include <fmt/ranges.h>

#include "cli/command.h"
#include "support/check.h"
#include "tilewright/system.h"

namespace tilewright::cli {

Device parse_device(const char* op, const std::string& text) {
    if (text == "cpu") return {};
    const std::string full = text == "cuda" ? "cuda:0" : text;
    const std::vector<std::string> known = devices();
    for (std::size_t i = 1; i < known.size(); ++i) {
        if (known[i] == full) return Device::cuda(static_cast<int>(i) - 1);
    }
    user_error(op, "expected --device of {}{} but got {}", fmt::join(known, ", "),
               known.size() > 1 ? "" : " (no GPU was found; `tilewright doctor` says why)", text);
}

}  // namespace tilewright::cli
