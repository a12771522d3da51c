// Scalar superinstructions: the definition of each.
#include <cmath>
#include <cstddef>

#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

float operand(const Strip& s, int i, std::int64_t row, std::int64_t lane) {
    return *element<float>(s.in[i], row, lane);
}

// Stores f(row, lane), rounded to dtype.
template <DType dtype = DType::f32, typename F>
void store_tile(const Strip& s, F&& f) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            auto* const out =
                static_cast<std::byte*>(s.out) + (row * s.out_row_stride + lane) * size_of(dtype);
            ir::write_element(dtype, out, ir::encode(dtype, f(row, lane)));
        }
    }
}

float exp2_of(const Strip& s, std::int64_t row, std::int64_t lane) {
    const float c =
        s.in[2].data != nullptr ? operand(s, 2, row, lane) : static_cast<float>(s.immediate[0]);
    const float x = std::fma(operand(s, 0, row, lane), c, -operand(s, 1, row, lane));
    const float p = x < -126.0f ? 0.0f : std::exp2(x);
    if (s.accumulator != nullptr) static_cast<float*>(s.accumulator)[lane] += p;
    return p;
}

template <DType dtype = DType::f32>
void exp2_sum(const Strip& s) {
    store_tile<dtype>(s, [&](auto row, auto lane) { return exp2_of(s, row, lane); });
}

void exp2_sum_pairs(const Strip& s) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            auto* const pair =
                static_cast<std::byte*>(s.out) + (row / 2 * s.out_row_stride + lane) * 4;
            ir::write_element(DType::bf16, pair + row % 2 * 2,
                              ir::encode(DType::bf16, exp2_of(s, row, lane)));
        }
    }
}

void affine_select(const Strip& s) {
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const auto value = static_cast<float>(s.immediate[3]);
    store_tile(s, [&](auto row, auto lane) {
        return base + a * row + b * lane >= 0 ? operand(s, 0, row, lane) : value;
    });
}

void affine_add(const Strip& s) {
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const auto factor = static_cast<float>(s.immediate[3]);
    auto* maxima = static_cast<float*>(s.accumulator);
    store_tile(s, [&](auto row, auto lane) {
        const float x =
            std::fma(operand(s, 1, row, lane), static_cast<float>(base + a * row + b * lane),
                     operand(s, 0, row, lane) * factor);
        if (maxima != nullptr) maxima[lane] = apply<ir::Op::max>(maxima[lane], x);
        return x;
    });
}

void softcap(const Strip& s) {
    const auto outer = static_cast<float>(s.immediate[0]);
    const auto inner = static_cast<float>(s.immediate[1]);
    store_tile(s, [&](auto row, auto lane) {
        return outer * std::tanh(operand(s, 0, row, lane) * inner);
    });
}

template <DType dtype = DType::f32>
void mul_sub_mul(const Strip& s) {
    const auto c = static_cast<float>(s.immediate[0]);
    store_tile<dtype>(s, [&](auto row, auto lane) {
        return operand(s, 0, row, lane) * (operand(s, 1, row, lane) - operand(s, 2, row, lane)) * c;
    });
}

}  // namespace

const Superinstructions& scalar_superinstructions() {
    static constexpr Superinstructions kSuper = {
        .exp2_sum = exp2_sum,
        .exp2_sum_bf16 = exp2_sum<DType::bf16>,
        .exp2_sum_f16 = exp2_sum<DType::f16>,
        .exp2_sum_pairs = exp2_sum_pairs,
        .affine_select = affine_select,
        .affine_add = affine_add,
        .softcap = softcap,
        .mul_sub_mul = mul_sub_mul,
        .mul_sub_mul_bf16 = mul_sub_mul<DType::bf16>,
        .mul_sub_mul_f16 = mul_sub_mul<DType::f16>,
    };
    return kSuper;
}

}  // namespace tilewright::cpu
