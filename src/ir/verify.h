// The verifier: what makes a function well-formed, as a list of rules.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

inline constexpr int kMaxBlockDepth = 64;  ///< nesting of blocks, including the body

/// Called with the faulty instruction (nullptr: the function) and what is wrong with it.
using Report = std::function<void(const Instruction*, const std::string&)>;

/// A rule, which may rely on those before it in the list.
struct Rule {
    std::string_view name;
    std::string_view statement;  ///< a sentence that holds for every well-formed function
    void (*check)(const Function&, const Report&);
};

/// Every rule, in the order in which they are checked.
std::span<const Rule> rules();

/// Checks every rule in the function and the mods it calls. UserError names the first broken rule,
/// the instruction and its operands.
void verify(const Function& function);

}  // namespace tilewright::ir
