// How far a result may be from a reference: the one place of the rule for attention and norms.
#pragma once

#include "support/array.h"

namespace tilewright {

/// Distance between 1 and the next value of a float dtype.
double epsilon(DType dtype);
/// The smallest number that a float dtype has to its full precision.
double smallest_normal(DType dtype);
/// The one of the larger epsilon.
DType coarser(DType a, DType b);

/// Largest difference; infinity for different shapes, a NaN on one side alone, or unequal
/// infinities.
double largest_error(const Array& a, const Array& b);

/// Largest error allowed against `exact`: twice that of `plain`, the same computation done plainly
/// in `dtype`. A few roundings of the largest value are always allowed: small cases are a matter of
/// luck, and the reference itself rounds to f64. Where the terms of a sum may cancel, `sizes` says
/// how large they are (attn::reference_sizes): half as many roundings of the largest of those.
double allowed_error(const Array& plain, const Array& exact, DType dtype, const Array& sizes = {});

}  // namespace tilewright
