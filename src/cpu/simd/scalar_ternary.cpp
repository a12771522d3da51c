// Scalar kernels of select, clamp and fma, and the lookup over all elementwise ops.
#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"

namespace tilewright::cpu {
namespace {

// Selection moves elements as bits, whatever they mean (a signalling NaN stays one).
template <DType dtype>
void select(const Strip& s) {
    using Storage = typename Element<dtype>::Storage;
    auto* out = static_cast<Storage*>(s.out);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            const bool condition = load_element<DType::boolean>(s.in[0], row, lane);
            out[row * s.out_row_stride + lane] =
                *element<Storage>(condition ? s.in[1] : s.in[2], row, lane);
        }
    }
}

template <DType dtype>
void clamp(const Strip& s) {
    for_each_element<dtype>(s, [&](auto row, auto lane) {
        return apply<ir::Op::min>(apply<ir::Op::max>(load_element<dtype>(s.in[0], row, lane),
                                                     load_element<dtype>(s.in[1], row, lane)),
                                  load_element<dtype>(s.in[2], row, lane));
    });
}

template <DType dtype>
void fma(const Strip& s) {
    for_each_element<dtype>(s, [&](auto row, auto lane) {
        return fused_multiply_add(load_element<dtype>(s.in[0], row, lane),
                                  load_element<dtype>(s.in[1], row, lane),
                                  load_element<dtype>(s.in[2], row, lane));
    });
}

}  // namespace

StripFunction scalar_ternary(ir::Op op, DType in, DType out) {
    // `in` is the dtype of the values: of in[1] and in[2] for select.
    if (in != out) return nullptr;
    return with_dtype(in, [op](auto tag) -> StripFunction {
        constexpr DType kIn = decltype(tag)::value;
        if (op == ir::Op::select) return select<kIn>;
        if constexpr (kIn != DType::boolean) {
            if (op == ir::Op::clamp) return clamp<kIn>;
            if (op == ir::Op::fma) return fma<kIn>;
        }
        return nullptr;
    });
}

StripFunction scalar_elementwise(ir::Op op, DType in, DType out, bool /*approx*/) {
    if (op == ir::Op::cast) return scalar_cast(in, out);
    if (op == ir::Op::bitcast) return scalar_bitcast(in, out);
    if (StripFunction f = scalar_unary(op, in, out)) return f;
    if (StripFunction f = scalar_binary(op, in, out)) return f;
    if (StripFunction f = scalar_comparison(op, in, out)) return f;
    return scalar_ternary(op, in, out);
}

}  // namespace tilewright::cpu
