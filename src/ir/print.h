// The text form of functions. docs/reference/ir.md section 8 is its grammar; parse.h reads it back.
#pragma once

#include <string>

#include "ir/function.h"

namespace tilewright::ir {

/// The function as text, after the mods it calls: print(parse(print(f))) == print(f).
/// With `lines` it also says where instructions were written, but not in the mods.
std::string print(const Function& function, bool lines = false);

/// One instruction on one line, nested blocks left out; for messages. Never throws on broken IR.
std::string describe(const Function& function, const Instruction& instruction);

/// One element as it stands in the text: shortest decimal, inf, nan, true.
std::string print_element(DType dtype, std::uint64_t bits);

/// True when both do the same in the same way: equal structure, types, attributes, grid and hints.
/// Value handles, value names and locations do not count.
bool equal(const Function& a, const Function& b);

}  // namespace tilewright::ir
