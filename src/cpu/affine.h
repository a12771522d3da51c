// Finds integer operands of strips that are affine in the row and the lane.
#pragma once

#include <map>
#include <optional>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// The ops that write each buffer, as long as there is only one.
using Makers = std::map<std::uint32_t, StripOp>;

/// `source` as a function of row and lane, when it is built from scalars and iotas by additions,
/// subtractions and multiplications by constants. Positions are assumed not to overflow their type.
std::optional<Affine> affine_form(const StripSource& source, const Makers& makers,
                                  const Program& program);

/// An integer comparison as a form that is >= 0 where it holds; nullopt for eq and ne.
std::optional<Affine> affine_condition(const StripOp& comparison, const Makers& makers,
                                       const Program& program);

/// a + factor * b.
Affine combined(Affine a, const Affine& b, std::int64_t factor);

}  // namespace tilewright::cpu
