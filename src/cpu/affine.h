// Finds integer operands of strips that are affine in the row and the lane.
#pragma once

#include <map>
#include <optional>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// The ops that write each buffer, as long as there is only one.
using Makers = std::map<std::uint32_t, StripOp>;

/// `source` as a function of row and lane, when it is built from scalars and iotas by additions,
/// subtractions and multiplications by constants. It has itself as a word if it is one of 32 bits
/// that may wrap around.
std::optional<Affine> affine_form(const StripSource& source, const Makers& makers,
                                  const Program& program);

/// a - b, with both as words if one may wrap around.
std::optional<Affine> affine_difference(const StripSource& a, const StripSource& b,
                                        const Makers& makers, const Program& program);

/// An integer comparison as a form that is >= 0 where it holds; nullopt for eq and ne.
std::optional<Affine> affine_condition(const StripOp& comparison, const Makers& makers,
                                       const Program& program);

/// The form of a vector for a space that has its elements along rows and lanes with these strides.
Affine along(Affine form, std::int64_t row_stride, std::int64_t lane_stride);

}  // namespace tilewright::cpu
