// The parts of a load, store or atomic operation of a program without roles, and names of arrays in
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// What has to be tested of an index: nothing, as it stays inside of the array; whether it ends
/// inside, as it is not negative; or both ends.
enum class Bound : std::uint8_t { none, end, both };

struct ArrayAccess {
    /// The operands are the indices, then the mask, the values, and what elements outside read.
    ArrayAccess(const Program& program, const Instruction& made);

    const Parameter& array;
    std::span<const Value> indices;  ///< one for each dimension
    Value mask;
    std::span<const Value> values;        ///< stored, added ..; variables to load to; a copy's slot
    Value other;                          ///< none: 0
    std::span<const std::int64_t> sizes;  ///< `index`: of slices, or kGathered, kEmpty, 0
    std::vector<int> axis;  ///< of the tile, by dimension; of index tiles: the first one they span
    int tile_rank = 0;      ///< of the index tiles
    int vector = 1;         ///< neighbours along the last dimension that are accessed at once
    bool cuts_vectors = false;  ///< may the array end between such neighbours?

    std::int64_t step(std::size_t dim) const { return steps_.empty() ? 1 : steps_[dim]; }
    Bound bound(std::size_t dim) const {
        return bounds_.empty() ? Bound::none : static_cast<Bound>(bounds_[dim]);
    }
    bool is_scalar(std::size_t dim) const { return sizes[dim] == 0; }
    bool is_gathered(std::size_t dim) const { return sizes[dim] == kGathered; }
    std::int64_t size(std::size_t dim) const { return sizes[dim] == kEmpty ? 0 : sizes[dim]; }
    /// The axis along which neighbours are accessed; -1: none.
    int vector_axis() const { return vector > 1 ? axis.back() : -1; }

  private:
    std::span<const std::int64_t> steps_, bounds_;
};

/// Is an instruction an access to an array?
bool is_array_access(const Instruction& made);
/// How many values an access has between its mask and `other`.
std::size_t values_of_access(const Instruction& made);
/// The shape of the tile of a `copy_tile`.
ir::Shape copied_shape(const ArrayAccess& access);
/// The layout of an index tile of shape `index` in an access to a tile of layout `tile`, in which
/// index tiles span `rank` axes from `first` on.
Layout index_layout(const Layout& tile, int first, int rank, const ir::Shape& index);

/// The text of an array's extent and stride, and of the address of its first element.
std::string extent_text(const Parameter& array, int dim);
std::string stride_text(const Parameter& array, int dim);
std::string data_text(const Parameter& array);

}  // namespace tilewright::cuda::schedule
