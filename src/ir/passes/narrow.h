// Integers computed in half the bits.
#pragma once

#include <map>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

struct NarrowReport {
    int instructions = 0;  ///< that take or give i32 in place of i64
    bool changed() const { return instructions > 0; }
};

/// Computes i64 as i32 where operands and result fit, as positions of a mod do: 64-bit sums,
/// products and conversions to floats take several instructions on GPUs and on AVX2. `ranges`: what
/// is known of parameters; others may be anything of their type. Results are the same, bit for bit.
NarrowReport narrow(Function& function, const std::map<Value, Interval>& ranges);

}  // namespace tilewright::ir
