// Shapes and fragments of mma.sync (PTX ISA, matrix fragments for mma).
#include "cuda/codegen/mma_fragments.h"

#include <algorithm>
#include <bit>

#include "support/check.h"

namespace tilewright::cuda {
namespace {

/// Bits of the position of an element in its word.
int bits_in_word(DType operand) {
    return size_of(operand) == 1 ? 2 : size_of(operand) == 2 ? 1 : 0;
}

std::uint64_t bit(const Layout& layout, int axis, int number) {
    return number < cover(layout.shape[axis]).bits ? layout.basis(axis, number) : 0;
}

/// Appends the bits of an axis that another layout's bases have, from `first` on.
void append_bits(std::vector<std::uint64_t>& to, const Layout& layout, const Layout& other,
                 int axis, std::int64_t first) {
    for (const std::uint64_t basis : other.reg) {
        const std::int64_t at = other.unpack(basis)[static_cast<std::size_t>(axis)];
        if (at < first) continue;
        to.push_back(layout.basis(axis, std::countr_zero(static_cast<std::uint64_t>(at))));
    }
}

/// `outer`: the axis that the operand has in common with the sums; `unit_bits`: the bits of it
/// that the lanes and the first registers have.
Layout fragments(const Layout& sums, DType operand, std::int64_t k, int outer, int inner,
                 int unit_bits) {
    const MmaUnit& unit = mma_unit(operand);
    ir::Shape shape = sums.shape;
    shape[inner] = k;
    Layout made(shape, sums.warps());
    const int packed = bits_in_word(operand);
    made.lane = {bit(made, inner, packed), bit(made, inner, packed + 1), bit(made, outer, 0),
                 bit(made, outer, 1), bit(made, outer, 2)};
    for (int i = 0; i < packed; ++i) made.reg.push_back(bit(made, inner, i));
    if (unit_bits > 3) made.reg.push_back(bit(made, outer, 3));
    if (unit.step > 4 << packed) made.reg.push_back(bit(made, inner, packed + 2));
    append_bits(made.reg, made, sums, outer, std::int64_t{1} << unit_bits);
    for (int i = std::countr_zero(static_cast<unsigned>(unit.step)); i < cover(k).bits; ++i) {
        made.reg.push_back(bit(made, inner, i));
    }
    if (shape.rank() == 3) append_bits(made.reg, made, sums, 0, 1);
    std::erase(made.reg, 0);
    for (std::size_t warp = 0; warp < sums.warp.size(); ++warp) {
        const Coordinates at = sums.unpack(sums.warp[warp]);
        for (int axis = 0; axis < shape.rank(); ++axis) {
            const auto by = static_cast<std::uint64_t>(at[static_cast<std::size_t>(axis)]);
            if (axis != inner && by != 0) made.warp[warp] = made.basis(axis, std::countr_zero(by));
        }
    }
    return made;
}

}  // namespace

const MmaUnit& mma_unit(DType operand) {
    static constexpr MmaUnit kHalves{"mma_m16n8k16"};
    static constexpr MmaUnit kBytes{"mma_m16n8k32", 16, 32, 4, 2, DType::i32};
    static constexpr MmaUnit kTf32{"mma_m16n8k8", 16, 8};
    static constexpr MmaUnit kDoubles{"mma_m8n8k4", 8, 4, 1, 1, DType::f64};
    switch (size_of(operand)) {
        case 1:
            return kBytes;
        case 2:
            return kHalves;
        case 4:
            return kTf32;
        default:
            TW_ASSERT(operand == DType::f64, "{}", name(operand));
            return kDoubles;
    }
}

bool holds_sums(const Layout& layout, const MmaUnit& unit) {
    const int rank = layout.shape.rank(), row = rank - 2, column = rank - 1;
    if (rank < 2 || cover(layout.shape[column]).bits < 3) return false;
    const std::vector<std::uint64_t> lanes = {bit(layout, column, 1), bit(layout, column, 2),
                                              bit(layout, row, 0), bit(layout, row, 1),
                                              bit(layout, row, 2)};
    if (layout.lane != lanes || layout.reg.empty() || layout.reg[0] != bit(layout, column, 0)) {
        return false;
    }
    const auto lies_outside = [&](const std::vector<std::uint64_t>& bases, std::size_t from) {
        return std::all_of(
            bases.begin() + static_cast<std::ptrdiff_t>(std::min(from, bases.size())), bases.end(),
            [&](std::uint64_t basis) {
                const Coordinates at = layout.unpack(basis);
                const std::int64_t m = at[static_cast<std::size_t>(row)],
                                   n = at[static_cast<std::size_t>(column)];
                return (m == 0 || m >= unit.rows) && (n == 0 || n >= 8) &&
                       std::popcount(basis) <= 1;
            });
    };
    const bool upper = unit.rows == 16 && bit(layout, row, 3) != 0;
    if (upper && (layout.reg.size() < 2 || layout.reg[1] != bit(layout, row, 3))) return false;
    return lies_outside(layout.reg, upper ? 2 : 1) && lies_outside(layout.warp, 0);
}

Layout left_fragments(const Layout& sums, DType operand, std::int64_t k) {
    const int rank = sums.shape.rank();
    return fragments(sums, operand, k, rank - 2, rank - 1, mma_unit(operand).rows == 16 ? 4 : 3);
}

Layout right_fragments(const Layout& sums, DType operand, std::int64_t k) {
    const int rank = sums.shape.rank();
    return fragments(sums, operand, k, rank - 1, rank - 2, 3);
}

int fragment_words(const Layout& left) {
    const bool upper = cover(left.shape[left.shape.rank() - 2]).bits > 3;
    return left.registers() / (upper ? 2 : 1);
}

}  // namespace tilewright::cuda
