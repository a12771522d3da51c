// Kernels for accesses by indices of i32: elements and rows of tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::cpu {

/// Elements of a table with one dimension and contiguous elements, chosen by rows of indices.
/// Strides are in elements. An index outside the table stands for an element of `missing`.
struct TableRows {
    const std::int32_t* indices = nullptr;
    std::int64_t rows = 1, lanes = 0, index_row_stride = 0;
    const void* table = nullptr;
    std::uint32_t extent =
        0;  ///< at most 2^31: as unsigned numbers, negative indices are beyond it
    const void* missing = nullptr;
    std::int64_t missing_row_stride = 0, missing_lane_stride = 0;
    void* out = nullptr;
    std::int64_t out_row_stride = 0;
    const float* factor = nullptr;  ///< of `dot`: contiguous lanes
    std::int64_t factor_row_stride = 0;
};

/// Indices of which a thread does some: those in [0, extent) that belong to the sets of which
/// `sets` has a bit (see Ownership).
struct ChosenIndices {
    const std::int32_t* indices = nullptr;
    std::int64_t count = 0;
    std::uint32_t extent = 0;
    std::uint32_t sets = 0;
    int shift = 0;
};

struct IndexKernels {
    /// Elements of the longest vector.
    static constexpr std::size_t kMostLanes = 16;

    /// True when all indices are in [0, extent).
    bool (*all_inside)(const std::int32_t* indices, std::int64_t count, std::uint32_t extent);
    /// out(r, l) = the element of row r and lane l, of 4 bytes.
    void (*gather)(const TableRows& rows);
    /// out[r * out_row_stride] = the sum over lanes of the elements (f32) times the factors, in an
    /// order that depends only on the number of lanes.
    void (*dot)(const TableRows& rows);
    /// Copies a row and prefetches as many bytes from `next` on, which are only read if they are
    /// somewhere. `streams`: whole cache lines are stored non-temporally.
    void (*copy_row)(std::byte* to, const std::byte* from, std::int64_t bytes,
                     const std::byte* next, bool streams);
    /// to[i] += from[i]; prefetches likewise.
    void (*add_row)(float* to, const float* from, std::int64_t count, const float* next);
    /// Writes where the chosen indices are, in order, and returns how many there are. `places` has
    /// room for a vector more than there are indices.
    std::size_t (*choose)(const ChosenIndices& from, std::uint32_t* places);
};

/// Those of the kernel table with vectors of so many bytes.
const IndexKernels& index_kernels(int vector_bytes);

}  // namespace tilewright::cpu
