// Scalar kernels of the ops with two operands, and of comparisons.
#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

template <ir::Op op, DType dtype>
void binary(const Strip& s) {
    for_each_element<dtype>(s, [&](auto row, auto lane) {
        return apply<op>(load_element<dtype>(s.in[0], row, lane),
                         load_element<dtype>(s.in[1], row, lane), dtype);
    });
}

template <ir::Op op, DType dtype>
void comparison(const Strip& s) {
    for_each_element<DType::boolean>(s, [&](auto row, auto lane) {
        return compare<op>(load_element<dtype>(s.in[0], row, lane),
                           load_element<dtype>(s.in[1], row, lane));
    });
}

void scalar_random_bits(const Strip& s) {
    for_each_element<DType::u32>(s, [&](auto row, auto lane) {
        return ir::philox(load_element<DType::u64>(s.in[0], row, lane),
                          load_element<DType::u64>(s.in[1], row, lane));
    });
}

template <ir::Op op>
StripFunction binary_for(DType in) {
    return with_dtype(in, [](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if constexpr (binary_exists<op, typename Element<kIn>::Compute>()) {
            return binary<op, kIn>;
        } else {
            return nullptr;
        }
    });
}

template <ir::Op op>
StripFunction comparison_for(DType in) {
    return with_dtype(
        in, [](auto tag) -> StripFunction { return comparison<op, decltype(tag)::value>; });
}

}  // namespace

StripFunction scalar_binary(ir::Op op, DType in, DType out) {
    using enum ir::Op;
    if (op == random_bits && in == DType::u64 && out == DType::u32) return scalar_random_bits;
    if (in != out) return nullptr;
    switch (op) {
        case add:
            return binary_for<add>(in);
        case sub:
            return binary_for<sub>(in);
        case mul:
            return binary_for<mul>(in);
        case div:
            return binary_for<div>(in);
        case floordiv:
            return binary_for<floordiv>(in);
        case rem:
            return binary_for<rem>(in);
        case floormod:
            return binary_for<floormod>(in);
#define TW_BINARY(row, ...) \
    case row:               \
        return binary_for<row>(in);
#include "ir/ops.inl"
        case min:
            return binary_for<min>(in);
        case max:
            return binary_for<max>(in);
        case bitwise_and:
            return binary_for<bitwise_and>(in);
        case bitwise_or:
            return binary_for<bitwise_or>(in);
        case bitwise_xor:
            return binary_for<bitwise_xor>(in);
        case shift_left:
            return binary_for<shift_left>(in);
        case shift_right:
            return binary_for<shift_right>(in);
        default:
            return nullptr;
    }
}

StripFunction scalar_comparison(ir::Op op, DType in, DType out) {
    using enum ir::Op;
    if (out != DType::boolean) return nullptr;
    switch (op) {
        case eq:
            return comparison_for<eq>(in);
        case ne:
            return comparison_for<ne>(in);
        case lt:
            return comparison_for<lt>(in);
        case le:
            return comparison_for<le>(in);
        case gt:
            return comparison_for<gt>(in);
        case ge:
            return comparison_for<ge>(in);
        default:
            return nullptr;
    }
}

}  // namespace tilewright::cpu
