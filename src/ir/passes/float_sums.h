// Casts to f32 moved before integer sums.
#pragma once

#include <map>

#include "ir/function.h"
#include "ir/passes/intervals.h"

namespace tilewright::ir {

struct FloatSumsReport {
    int casts = 0;  ///< replaced by sums of terms that are cast first
    bool changed() const { return casts > 0; }
};

/// If an integer sum is only cast to f32 and each term depends on fewer parameters than the sum, as
/// in f32(kv - q), casts the terms and adds those: a row and a column are then cast in place of
/// every pair. `min`, `max` and `abs` count as sums. `ranges` holds what is known of parameters;
/// f32 must hold every intermediate number exactly. Results are the same, bit for bit.
FloatSumsReport float_sums(Function& function, const std::map<Value, Interval>& ranges);

}  // namespace tilewright::ir
