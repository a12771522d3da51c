// Reads the text form of functions.
#pragma once

#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

/// The last function in a text as print() writes it; earlier ones are the mods that it may call.
/// The result is verified. UserError "[parse] line L, column C: expected X but got Y" otherwise.
Function parse(std::string_view text);

/// The same, but each instruction's location is its own line of the text, in a file "ir".
Function parse_by_lines(std::string_view text);

}  // namespace tilewright::ir
