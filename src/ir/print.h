// The text form of functions. docs/reference/ir.md section 8 is its grammar; parse.h reads it back.
#pragma once

#include <string>

#include "ir/function.h"

namespace tilewright::ir {

/// The function as text, after the mods that it calls: print(parse(print(f))) == print(f). `lines`
/// adds the source lines of instructions, except in mods.
std::string print(const Function& function, bool lines = false);

/// One instruction on one line, without nested blocks, for messages. Never throws on broken IR.
std::string describe(const Function& function, const Instruction& instruction);

/// One element as the text writes it: shortest decimal, inf, nan, true.
std::string print_element(DType dtype, std::uint64_t bits);

/// True when structure, types, attributes, grid and hints are equal. Value handles, value names and
/// locations do not count.
bool equal(const Function& a, const Function& b);

}  // namespace tilewright::ir
