// Sums of integers that become floats.
#pragma once

#include <map>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

struct FloatSumsReport {
    int casts = 0;  ///< replaced by sums of what was cast before
    bool changed() const { return casts > 0; }
};

/// Where an integer sum is only cast to f32, casts its terms instead and adds those, if each of
/// them depends on fewer parameters than the sum does, as in f32(kv - q): a row and a column are
/// then cast in place of every pair. `min`, `max` and `abs` on the way count as sums. `ranges`:
/// what is known of parameters; every number on the way must be one that f32 holds. Results are the
/// same, bit for bit.
FloatSumsReport float_sums(Function& function, const std::map<Value, Interval>& ranges);

}  // namespace tilewright::ir
