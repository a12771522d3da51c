// tanh where its relative error does not matter, as in a soft cap of scores.
#pragma once

#include "ir/function.h"

namespace tilewright::ir {

struct SoftCapsReport {
    int functions = 0;  ///< replaced
    bool changed() const { return functions > 0; }
};

/// Replaces tanh(x) of f32 by 2 logistic(2 x) - 1 with the approximate logistic function, which
/// takes fewer instructions on a GPU. The absolute error is below 2^-20; near 0 the relative one
/// has no bound. So every reader must multiply by a constant of at most 128 or by tanh(x) itself,
/// or add a constant.
///
/// A function that changes has its derivatives 1 - t^2 of such a tanh t as one multiply-add,
/// multiplications by reciprocals in place of divisions of f32 by constants, and the constant
/// factors of its products of f32 joined: each takes an error of at most 2^-23 of itself.
SoftCapsReport soft_caps(Function& function);

}  // namespace tilewright::ir
