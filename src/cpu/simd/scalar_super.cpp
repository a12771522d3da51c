// Scalar superinstructions: what each one means.
#include <cmath>

#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "cpu/simd/strip_access.h"

namespace tilewright::cpu {
namespace {

float operand(const Strip& s, int i, std::int64_t row, std::int64_t lane) {
    return *element<float>(s.in[i], row, lane);
}

// Stores f(row, lane), of f32, in the form.
template <TileForm form, typename F>
void store_tile(const Strip& s, F&& f) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.lanes; ++lane) {
            const float x = f(row, lane);
            if constexpr (form == TileForm::f32) {
                static_cast<float*>(s.out)[row * s.out_row_stride + lane] = x;
            } else if constexpr (form == TileForm::bf16) {
                static_cast<std::uint16_t*>(s.out)[row * s.out_row_stride + lane] = f32_to_bf16(x);
            } else {
                std::uint16_t* pair =
                    static_cast<std::uint16_t*>(s.out) + (row / 2 * s.out_row_stride + lane) * 2;
                pair[row % 2] = f32_to_bf16(x);
                if (row % 2 == 0) pair[1] = 0;
            }
        }
    }
}

template <TileForm form>
void exp2_sum(const Strip& s) {
    const auto c = static_cast<float>(s.immediate[0]);
    auto* sums = static_cast<float*>(s.accumulator);
    store_tile<form>(s, [&](auto row, auto lane) {
        const float x = std::fma(operand(s, 0, row, lane), c, -operand(s, 1, row, lane));
        const float p = x < -126.0f ? 0.0f : std::exp2(x);
        if (sums != nullptr) sums[lane] += p;
        return p;
    });
}

void affine_select(const Strip& s) {
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const auto value = static_cast<float>(s.immediate[3]);
    store_tile<TileForm::f32>(s, [&](auto row, auto lane) {
        return base + a * row + b * lane >= 0 ? operand(s, 0, row, lane) : value;
    });
}

void affine_add(const Strip& s) {
    const auto base = static_cast<std::int64_t>(s.immediate[0]);
    const auto a = static_cast<std::int64_t>(s.immediate[1]);
    const auto b = static_cast<std::int64_t>(s.immediate[2]);
    const auto factor = static_cast<float>(s.immediate[3]);
    auto* maxima = static_cast<float*>(s.accumulator);
    store_tile<TileForm::f32>(s, [&](auto row, auto lane) {
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
    store_tile<TileForm::f32>(s, [&](auto row, auto lane) {
        return outer * std::tanh(operand(s, 0, row, lane) * inner);
    });
}

void scale_max(const Strip& s) {
    const auto c = static_cast<float>(s.immediate[0]);
    auto* maxima = static_cast<float*>(s.accumulator);
    store_tile<TileForm::f32>(s, [&](auto row, auto lane) {
        const float x = operand(s, 0, row, lane) * c;
        maxima[lane] = apply<ir::Op::max>(maxima[lane], x);
        return x;
    });
}

template <TileForm form>
void mul_sub_mul(const Strip& s) {
    const auto c = static_cast<float>(s.immediate[0]);
    store_tile<form>(s, [&](auto row, auto lane) {
        return operand(s, 0, row, lane) * (operand(s, 1, row, lane) - operand(s, 2, row, lane)) * c;
    });
}

}  // namespace

const Superinstructions& scalar_superinstructions() {
    static constexpr Superinstructions kSuper = {
        .exp2_sum = [](TileForm form) -> StripFunction {
            if (form == TileForm::bf16) return exp2_sum<TileForm::bf16>;
            if (form == TileForm::bf16_pairs) return exp2_sum<TileForm::bf16_pairs>;
            return exp2_sum<TileForm::f32>;
        },
        .affine_select = affine_select,
        .affine_add = affine_add,
        .softcap = softcap,
        .scale_max = scale_max,
        .mul_sub_mul = [](TileForm form) -> StripFunction {
            if (form == TileForm::bf16) return mul_sub_mul<TileForm::bf16>;
            if (form == TileForm::bf16_pairs) return mul_sub_mul<TileForm::bf16_pairs>;
            return mul_sub_mul<TileForm::f32>;
        },
    };
    return kSuper;
}

}  // namespace tilewright::cpu
