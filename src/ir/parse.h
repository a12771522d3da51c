// Reads the text form of functions.
#pragma once

#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

/// The last function of a text as print() writes it; the earlier ones are the mods it may call.
/// The result is verified. UserError "[parse] line L, column C: expected X but got Y" for anything
/// else, whatever the bytes.
Function parse(std::string_view text);

}  // namespace tilewright::ir
