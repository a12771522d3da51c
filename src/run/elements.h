// Walks strided memory and converts single elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ir/evaluate.h"

namespace tilewright::run {

/// Converts an element as the IR's cast does; equal dtypes copy the bits, including NaN payloads.
inline void convert_element(DType from, const void* source, DType to, void* target) {
    if (from == to) {
        std::memcpy(target, source, static_cast<std::size_t>(size_of(from)));
        return;
    }
    const std::uint64_t bits = ir::read_element(from, source);
    ir::write_element(to, target, ir::evaluate(ir::Op::cast, from, to, &bits));
}

/// Calls visit(offset_a, offset_b), in elements, for every index of `shape` in row-major order.
template <typename Visit>
void for_each_offset(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides_a,
                     std::span<const std::int64_t> strides_b, Visit&& visit) {
    std::int64_t size = 1;
    for (std::int64_t dim : shape) size *= dim;
    std::vector<std::int64_t> index(shape.size(), 0);
    std::int64_t a = 0, b = 0;
    for (std::int64_t i = 0; i < size; ++i) {
        visit(a, b);
        for (std::size_t d = shape.size(); d-- > 0;) {
            a += strides_a[d];
            b += strides_b[d];
            if (++index[d] < shape[d]) break;
            a -= strides_a[d] * shape[d];
            b -= strides_b[d] * shape[d];
            index[d] = 0;
        }
    }
}

}  // namespace tilewright::run
