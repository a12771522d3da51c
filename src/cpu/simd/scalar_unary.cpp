// Scalar kernels of the ops with one operand.
#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"

namespace tilewright::cpu {
namespace {

template <ir::Op op, DType in, DType out>
void unary(const Strip& s) {
    for_each_element<out>(
        s, [&](auto row, auto lane) { return apply<op>(load_element<in>(s.in[0], row, lane)); });
}

template <ir::Op op>
StripFunction for_dtype(DType in, DType out) {
    if (out != (op == ir::Op::isnan ? DType::boolean : in)) return nullptr;
    return with_dtype(in, [](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if constexpr (unary_exists<op, typename Element<kIn>::Compute>()) {
            return unary < op, kIn, op == ir::Op::isnan ? DType::boolean : kIn > ;
        } else {
            return nullptr;
        }
    });
}

}  // namespace

StripFunction scalar_unary(ir::Op op, DType in, DType out) {
    using enum ir::Op;
    switch (op) {
        case neg:
            return for_dtype<neg>(in, out);
        case abs:
            return for_dtype<abs>(in, out);
        case sign:
            return for_dtype<sign>(in, out);
#define TW_UNARY(row, ...) \
    case row:              \
        return for_dtype<row>(in, out);
#define TW_APPROXIMABLE TW_UNARY
#include "ir/ops.inl"
        case isnan:
            return for_dtype<isnan>(in, out);
        case bitwise_not:
            return for_dtype<bitwise_not>(in, out);
        default:
            return nullptr;
    }
}

}  // namespace tilewright::cpu
