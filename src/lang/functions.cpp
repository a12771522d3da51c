// The elementwise functions of ir/ops.inl, and compositions of them, as a table.
#include "tilewright/lang/functions.h"

#include <cmath>
#include <vector>

#include "ir/function_values.h"
#include "ir/op.h"
#include "tilewright/lang/ops.h"

namespace tilewright {

using ir::Op;

std::span<const ElementwiseFunction> elementwise_functions() {
    static const std::vector<ElementwiseFunction> table = [] {
        std::vector<ElementwiseFunction> rows;
        const auto add = [&rows](Op op, double (*value)(double, double),
                                 Tile (*trace)(Operand, Operand, bool)) {
            const ir::FunctionInfo& info = *ir::function_info(op);
            rows.push_back({info.name, ir::name(op), info.operands, ir::info(op).approx,
                            !info.cuda.narrow.empty(), info.meaning, info.numpy, info.jax,
                            info.torch, value, trace});
        };
#define TW_VALUE(value)                               \
    [](double x, [[maybe_unused]] double y) {         \
        using T [[maybe_unused]] = double;            \
        [[maybe_unused]] constexpr DType dtype = f64; \
        return value;                                 \
    }
#define TW_UNARY(op, function, value, ...) \
    add(Op::op, TW_VALUE(value), [](Operand x, Operand, bool) { return function(x); });
#define TW_APPROXIMABLE(op, function, value, ...) \
    add(Op::op, TW_VALUE(value),                  \
        [](Operand x, Operand, bool approx) { return function(x, approx); });
#define TW_BINARY(op, function, value, ...) \
    add(Op::op, TW_VALUE(value), [](Operand x, Operand y, bool) { return function(x, y); });
#include "ir/ops.inl"
#undef TW_VALUE
        const auto compose = [&rows](std::string_view name, std::string_view meaning,
                                     double (*value)(double, double),
                                     Tile (*trace)(Operand, Operand, bool)) {
            rows.push_back({name, "", 1, false, false, meaning, "", "", "", value, trace});
        };
#define TW_COMPOSITION(function, meaning, value)                              \
    compose(                                                                  \
        #function, meaning, [](double x, double) -> double { return value; }, \
        [](Operand x, Operand, bool) { return function(x); })
        TW_COMPOSITION(reciprocal, "the reciprocal, 1 / x", 1 / x);
        TW_COMPOSITION(square, "the square, x * x", x * x);
        TW_COMPOSITION(relu, "the larger of x and 0", x < 0 ? 0 : x);
        TW_COMPOSITION(silu, "the SiLU, x * sigmoid(x)", x / (1 + std::exp(-x)));
        TW_COMPOSITION(softplus, "the softplus, log(1 + exp(x)), without overflow",
                       std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x))));
#undef TW_COMPOSITION
        return rows;
    }();
    return table;
}

}  // namespace tilewright
