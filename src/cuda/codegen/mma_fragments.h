// Instructions of mma.sync, and which thread has which elements of their operands and sums.
#pragma once

#include <cstdint>
#include <string_view>

#include "cuda/codegen/layout.h"
#include "tilewright/dtype.h"

namespace tilewright::cuda {

/// An instruction of a warp: sums [rows, 8] += left [rows, step] * right [step, 8].
struct MmaUnit {
    std::string_view function;  ///< in ptx/mma.cuh
    int rows = 16, step = 16;
    int left_words = 4, right_words = 2;  ///< that each thread has of the operands
    DType sum = DType::f32;
};
/// For operands in shared memory of this dtype: f16, bf16, f32 (as tf32), f64, i8 or u8.
const MmaUnit& mma_unit(DType operand);

/// Do the threads have the elements of sums [.., m, n] that these instructions add to?
bool holds_sums(const Layout& layout, const MmaUnit& unit);
/// The layouts in which instructions with such sums read the operands [.., m, k] and [.., k, n].
Layout left_fragments(const Layout& sums, DType operand, std::int64_t k);
Layout right_fragments(const Layout& sums, DType operand, std::int64_t k);
/// Words of a left operand of 16-bit elements that a thread keeps: four for each 16 x 16 elements.
int fragment_words(const Layout& left);

}  // namespace tilewright::cuda
