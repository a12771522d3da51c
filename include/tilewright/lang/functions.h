// The elementwise functions of floats as a table, for front ends that bind all of them.
#pragma once

#include <span>
#include <string_view>

#include "tilewright/compiler.h"
#include "tilewright/lang/tile.h"

namespace TW_API tilewright {

/// One function of lang/ops.h: an operation of the tile IR, or a composition of operations.
struct ElementwiseFunction {
    std::string_view name;     ///< in C++, in texts of mods and in Python
    std::string_view op;       ///< its operation in the tile IR; "": a composition
    int operands;              ///< 1 or 2
    bool approx;               ///< takes `approx`: has an approximate form
    bool depends_on_format;    ///< on narrow floats it differs from the rounded f32 result
    std::string_view meaning;  ///< in words, of x and y
    std::string_view numpy;    ///< the ufunc of NumPy; "": none
    std::string_view jax;      ///< the primitive of JAX; "": none, or one with other parameters
    std::string_view torch;    ///< operators of aten and prims, separated by spaces; "": none

    double (*value)(double x, double y);               ///< on numbers; y is ignored by unary ones
    Tile (*trace)(Operand x, Operand y, bool approx);  ///< on traced values; likewise
};

/// The operations in the order of docs/reference/ops.md, then the compositions.
std::span<const ElementwiseFunction> elementwise_functions();

}  // namespace tilewright
