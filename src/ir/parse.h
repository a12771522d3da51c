// Reads the text form of functions.
#pragma once

#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

/// The last function of a text as print() writes it; the earlier ones are the mods it may call.
/// The result is verified. UserError "[parse] line L, column C: expected X but got Y" for anything
/// else, whatever the bytes.
Function parse(std::string_view text);

/// The same, where instructions have their own lines of the text as locations, of a file "ir".
Function parse_by_lines(std::string_view text);

}  // namespace tilewright::ir
