// Contraction of multiplications into additions.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct ContractReport {
    int multiplications = 0;  ///< made part of an fma
    bool changed() const { return multiplications > 0; }
};

/// Turns add(mul(a, b), c) on tiles of f32 and f64 into fma(a, b, c) where nobody else reads the
/// product and both stand in one block.
ContractReport contract(Function& function);

}  // namespace tilewright::ir
