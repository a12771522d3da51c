// Constant factors before and after approximate functions, joined.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct FoldFactorsReport {
    int folded = 0;  ///< multiplications
    bool changed() const { return folded > 0; }
};

/// In f32, where an approximate function rounds anyway: f(x a b) becomes f(x (a b)), f((x a) b + y)
/// becomes f(x (a b) + y), and
/// (f(x) a + b) c + d becomes f(x) (a c) + (b c + d), for constants a, b, c and d, unless there are
/// other readers of f(x) a + b. Soft caps of scaled scores lose three multiplications of four.
FoldFactorsReport fold_factors(Function& function);

}  // namespace tilewright::ir
