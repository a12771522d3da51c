// The derivative of a scan with a function.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/passes/derivatives.h"

namespace tilewright::ir {

/// A scan y_i = f(y_{i-1}, x_i) along an axis, from the end if `reverse`.
struct FunctionScan {
    std::shared_ptr<const Function> combine;  ///< as of an associative_scan
    int axis = 0;
    bool reverse = false;
    std::vector<Value> elements;  ///< x
    std::vector<Value> captured;  ///< scalars that f takes as well
    std::vector<Value> results;   ///< y
};

struct ScanCotangents {
    std::vector<Cotangent> operands;  ///< those of the elements, then those of what is captured
    std::string refusal;              ///< why there are none
};

/// The most results of f that may depend on each other's predecessors: a derivative of m of them
/// scans m * m + m tiles.
inline constexpr int kMostCoupledResults = 4;

/// Appends the derivative: with A_i the derivative of f by its first argument at (y_{i-1}, x_i) and
/// g the cotangents of y, s_i = g_i + A_{i+1}' s_{i+1} is a scan of affine maps in the other
/// direction; the cotangents of x_i are those of f's second argument for s_i. Partial derivatives
/// that are 0 or 1 everywhere are recognised: results that do not depend on each other are scanned
/// by themselves, and those that hand on their predecessor unchanged by a sum.
ScanCotangents scan_cotangents(Builder& builder, const FunctionScan& scan,
                               std::span<const Cotangent> results);

}  // namespace tilewright::ir
