// Lines along an axis of a tile, in words.
#include "cuda/schedule/sort_lines.h"

#include <bit>

#include "support/integer.h"

namespace tilewright::cuda::schedule {

SortedLines::SortedLines(const ir::Shape& shape, int axis)
    : elements(cover(shape[axis]).size()),
      length(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(elements)))),
      words(covered(shape).size() / elements * length) {}

SortedLines lines_of(const Program& program, const Instruction& made) {
    return {program.type(made.result()).type.shape, static_cast<int>(made.number("axis"))};
}

std::int64_t bytes_of_word(DType dtype, bool with_places) {
    return size_of(dtype) == 8 ? 16 : with_places || is_float(dtype) ? 8 : 4;
}

std::int64_t bytes_of_lines(const SortedLines& lines, std::int64_t word) {
    constexpr std::int64_t kLeast = 32;  // slots of fewer words may lie anywhere among so many
    return ceil_div(lines.words, kLeast) * kLeast * word;
}

}  // namespace tilewright::cuda::schedule
