// Computes i64 values as i32.
#pragma once

#include <map>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

struct NarrowReport {
    int instructions = 0;  ///< that take or return i32 in place of i64
    bool changed() const { return instructions > 0; }
};

/// Computes i64 as i32 where operands and result fit, as a mod's positions do: 64-bit sums,
/// products and conversions to floats take several instructions on GPUs and on AVX2. `ranges` holds
/// what is known of parameters; others may have any value. Results are the same, bit for bit.
NarrowReport narrow(Function& function, const std::map<Value, Interval>& ranges);

}  // namespace tilewright::ir
