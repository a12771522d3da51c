// How what is sorted lies in shared memory.
#pragma once

#include <cstdint>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Lines of a tile along an axis, one after the other, each filled up to a power of two.
struct SortedLines {
    SortedLines(const ir::Shape& shape, int axis);
    std::int64_t elements;  ///< that threads write to a line
    std::int64_t length;    ///< words of a line
    std::int64_t words;     ///< of all lines
};
/// Those of an operation on lines, from the type of its result.
SortedLines lines_of(const Program& program, const Instruction& made);

/// Of each element a word is sorted: its key of 4 bytes; the key with the element's place in its
/// line and the sign of zeros, 8 bytes; or for elements of 8 bytes the same in 16 bytes.
std::int64_t bytes_of_word(DType dtype, bool with_places);
/// The bytes of a buffer for so many words, which it may hold in another order.
std::int64_t bytes_of_lines(const SortedLines& lines, std::int64_t word);

}  // namespace tilewright::cuda::schedule
