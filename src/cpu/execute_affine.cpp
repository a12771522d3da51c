// Evaluates affine forms, and words of 32 bits that wrap around.
#include "cpu/execute_affine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

/// A word of the form at an element.
std::int32_t word_at(const Frame& frame, const Affine& word, std::int64_t row, std::int64_t lane) {
    return static_cast<std::int32_t>(base_of(frame, word) + row * word.row + lane * word.lane);
}

template <typename Pointer>
void advance(Pointer& pointer, std::int64_t elements, DType dtype) {
    if (pointer == nullptr) return;
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>,
                                    const std::byte, std::byte>;
    pointer = static_cast<Byte*>(pointer) + elements * size_of(dtype);
}

}  // namespace

std::int64_t base_of(const Frame& frame, const Affine& affine) {
    constexpr double kMost = 0x1p62;
    std::int64_t base = affine.constant;
    double size = static_cast<double>(base);
    for (const Affine::Term& term : affine.terms) {
        const std::uint64_t bits = ir::read_element(term.dtype, frame.slots + term.slot);
        const auto value = static_cast<std::int64_t>(bits);
        // Unsigned: it may wrap around, and is then not returned.
        base = static_cast<std::int64_t>(static_cast<std::uint64_t>(base) +
                                         static_cast<std::uint64_t>(term.coefficient) *
                                             static_cast<std::uint64_t>(value));
        size += static_cast<double>(term.coefficient) * static_cast<double>(value);
    }
    return std::abs(size) < kMost ? base : static_cast<std::int64_t>(std::copysign(kMost, size));
}

bool words_fit(const Frame& frame, const Affine& affine, std::int64_t rows, std::int64_t lanes) {
    using Limits = std::numeric_limits<std::int32_t>;
    return std::all_of(affine.words.begin(), affine.words.end(), [&](const Affine& word) {
        const std::int64_t base = base_of(frame, word), last_row = word.row * (rows - 1),
                           last_lane = word.lane * (lanes - 1);
        const std::int64_t zero = 0;
        return base + std::min(zero, last_row) + std::min(zero, last_lane) >= Limits::min() &&
               base + std::max(zero, last_row) + std::max(zero, last_lane) <= Limits::max();
    });
}

void run_wrapping(const Frame& frame, const StripOp& op, const Strip& strip, std::int64_t row,
                  std::int64_t lane) {
    const std::vector<Affine>& words = op.affine.words;
    for (std::int64_t r = 0; r < strip.rows; ++r) {
        for (std::int64_t l = 0; l < strip.lanes; ++l) {
            Strip one = strip;
            one.rows = one.lanes = 1;
            one.padded = false;
            for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                advance(one.in[k].data, r * one.in[k].row_stride + l * one.in[k].lane_stride,
                        op.in[k].dtype);
            }
            advance(one.out, r * one.out_row_stride + l, op.out.dtype);
            advance(one.accumulator, l, op.sum.dtype);
            const std::int32_t first = word_at(frame, words[0], row + r, lane + l);
            one.immediate[0] = first;
            if (words.size() > 1) {
                const std::int32_t second = word_at(frame, words[1], row + r, lane + l);
                const bool holds = op.affine.strict ? first > second : first >= second;
                one.immediate[0] = holds ? 0 : -1;
            }
            one.immediate[1] = one.immediate[2] = 0;
            op.function(one);
        }
    }
}

}  // namespace tilewright::cpu
