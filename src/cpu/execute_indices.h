// Accesses whose elements may be anywhere in their array: gathers and scatters.
#pragma once

#include "cpu/execute.h"

namespace tilewright::cpu {

/// Loads the elements of an access into a tile; those outside the array take `other`, or zero.
/// `streams`: rows are stored non-temporally.
void gather(const Frame& frame, const Access& access, const Tile& other, const ResolvedTile& out,
            bool streams);

/// Sums of gathered elements times factors, as a Load with a factor asks for.
void sum_gathered(const Frame& frame, const Load& load);

/// Stores with index tiles or a mask. Of several elements stored to one address, the last one wins.
void scatter(const Frame& frame, const Store& store);

/// Copies elements of `element` bytes; strides are in elements.
void copy_line(std::byte* out, std::int64_t out_stride, const std::byte* in, std::int64_t in_stride,
               std::int64_t count, int element);

}  // namespace tilewright::cpu
