// Contraction of multiplications into additions.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct ContractReport {
    int multiplications = 0;  ///< merged into an fma
    bool changed() const { return multiplications > 0; }
};

/// Turns add(mul(a, b), c) on tiles of f32 and f64 into fma(a, b, c) if both are in one block and
/// nothing else reads the product.
ContractReport contract(Function& function);

}  // namespace tilewright::ir
