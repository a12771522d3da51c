// Chooses the kernels for accesses by indices, and has those without vectors.
#include "cpu/simd/index_kernels.h"

#include <cstring>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_indices.h"

namespace tilewright::cpu {
namespace {

bool all_inside(const std::int32_t* indices, std::int64_t count, std::uint32_t extent) {
    bool inside = true;
    for (std::int64_t i = 0; i < count; ++i)
        inside &= static_cast<std::uint32_t>(indices[i]) < extent;
    return inside;
}

template <typename T>
T element(const TableRows& rows, std::int64_t r, std::int64_t l) {
    const std::int32_t at = rows.indices[r * rows.index_row_stride + l];
    if (static_cast<std::uint32_t>(at) < rows.extent) return static_cast<const T*>(rows.table)[at];
    return static_cast<const T*>(
        rows.missing)[r * rows.missing_row_stride + l * rows.missing_lane_stride];
}

void gather(const TableRows& rows) {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
        auto* const out = static_cast<std::uint32_t*>(rows.out) + r * rows.out_row_stride;
        for (std::int64_t l = 0; l < rows.lanes; ++l) out[l] = element<std::uint32_t>(rows, r, l);
    }
}

void dot(const TableRows& rows) {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
        const float* const factor = rows.factor + r * rows.factor_row_stride;
        float sum = 0;
        for (std::int64_t l = 0; l < rows.lanes; ++l) sum += factor[l] * element<float>(rows, r, l);
        static_cast<float*>(rows.out)[r * rows.out_row_stride] = sum;
    }
}

void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes, const std::byte*, bool) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void add_row(float* to, const float* from, std::int64_t count, const float*) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

std::size_t choose(const ChosenIndices& from, std::uint32_t* places) {
    std::size_t n = 0;
    for (std::int64_t i = 0; i < from.count; ++i) {
        const auto index = static_cast<std::uint32_t>(from.indices[i]);
        places[n] = static_cast<std::uint32_t>(i);
        n += index < from.extent ? from.sets >> (index >> from.shift) % 32 & 1 : 0;
    }
    return n;
}

constexpr IndexKernels kScalar = {all_inside, gather, dot, copy_row, add_row, choose};

}  // namespace

const IndexKernels& index_kernels(int vector_bytes) {
#if !TILEWRIGHT_SCALAR
    const IndexKernels* const vectors = vector_bytes == 64   ? vector_index_kernels(Target::avx512)
                                        : vector_bytes == 32 ? vector_index_kernels(Target::avx2)
                                        : vector_bytes == 16 ? vector_index_kernels(Target::neon)
                                                             : nullptr;
    if (vectors != nullptr) return *vectors;
#endif
    (void)vector_bytes;
    return kScalar;
}

}  // namespace tilewright::cpu
