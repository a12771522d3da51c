// Access to elements of strip operands, and the loop over a strip that scalar kernels share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/element.h"
#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

/// Address of element (row, lane) of an operand stored as T.
template <typename T>
const T* element(const StripOperand& operand, std::int64_t row, std::int64_t lane) {
    return static_cast<const T*>(operand.data) + row * operand.row_stride +
           lane * operand.lane_stride;
}

/// Value of element (row, lane) of an operand of the dtype.
template <DType dtype>
auto load_element(const StripOperand& operand, std::int64_t row, std::int64_t lane) {
    return Element<dtype>::load(*element<typename Element<dtype>::Storage>(operand, row, lane));
}

/// out(row, lane) = f(row, lane) for every element of the strip, converted to `dtype`.
template <DType dtype, typename F>
void for_each_element(const Strip& strip, F&& f) {
    using Out = Element<dtype>;
    auto* out = static_cast<typename Out::Storage*>(strip.out);
    for (std::int64_t row = 0; row < strip.rows; ++row) {
        for (std::int64_t lane = 0; lane < strip.lanes; ++lane) {
            out[row * strip.out_row_stride + lane] = Out::store(f(row, lane));
        }
    }
}

}  // namespace tilewright::cpu
