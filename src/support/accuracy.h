// How far a result may be from a reference: the only definition, for attention and norms.
#pragma once

#include "support/array.h"

namespace tilewright {

/// Distance between 1 and the next value of a float dtype.
double epsilon(DType dtype);
/// The smallest normal number of a float dtype, which still has full precision.
double smallest_normal(DType dtype);
/// The dtype with the larger epsilon.
DType coarser(DType a, DType b);

/// Largest absolute difference; infinity for different shapes, NaN on only one side, or unequal
/// infinities.
double largest_error(const Array& a, const Array& b);

/// Largest allowed error relative to `exact`: twice that of `plain`, the same computation done
/// straightforwardly in `dtype`. A few roundings of the largest value are always allowed, because
/// errors of small cases vary and the reference itself rounds to f64. Where the terms of a sum may
/// cancel, `sizes` holds their magnitudes (attn::reference_sizes): half as many roundings of the
/// largest one are allowed.
double allowed_error(const Array& plain, const Array& exact, DType dtype, const Array& sizes = {});

}  // namespace tilewright
