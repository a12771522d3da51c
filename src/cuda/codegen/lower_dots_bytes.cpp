// Matrix products of bytes by the tensor cores.
#include <set>

#include "cuda/codegen/lower_dots.h"

namespace tilewright::cuda {

// Where k is contiguous in shared memory, a fragment's word is four bytes of a row, and ldmatrix
// loads it as it loads pairs of 16-bit elements. Otherwise the bytes are loaded one by one:
// ldmatrix cannot transpose elements of less than 16 bits.
void multiply_bytes(Lowering& cx, const ir::Instruction& made, const DotPlan& plan, Names& c) {
    const DotOperand left = cx.facts.operand_of(made, 0), right = cx.facts.operand_of(made, 1);
    const SharedTile left_tile = operand_tile(cx, plan, left),
                     right_tile = operand_tile(cx, plan, right);
    copy_operands_ahead(cx, made);
    cx.access_shared("reads", {left_tile.buffer, right_tile.buffer});
    const Layout& acc = plan.accumulator;
    const int rank = acc.shape.rank(), m_axis = rank - 2, n_axis = rank - 1;
    const auto m_at = static_cast<std::size_t>(m_axis), n_at = static_cast<std::size_t>(n_axis);
    const bool has_upper = cover(plan.m).size() >= 16;
    std::set<std::int64_t> batches, rows, columns;
    for (int r = 0; r < acc.registers(); ++r) {
        const Coordinates at = acc.register_coordinates(r);
        batches.insert(rank == 3 ? at[0] : 0);
        rows.insert(at[m_at] & ~std::int64_t{15});
        columns.insert(at[n_at] & ~std::int64_t{7});
    }
    // Offset of one byte of an operand at register parts (b, outer, k) of its fragment layout.
    const auto offset = [&](const SharedTile& tile, const Layout& layout, bool stored_k_first,
                            int outer_axis, int k_axis, std::int64_t b, std::int64_t outer,
                            std::int64_t k) {
        const std::string o = cx.coordinate(layout, outer_axis, outer),
                          inner = cx.coordinate(layout, k_axis, k);
        std::string row = stored_k_first ? inner : o;
        if (rank == 3) {
            row = fmt::format("{} + ({}) * {}", row, cx.coordinate(layout, 0, b),
                              cover(layout.shape[stored_k_first ? k_axis : outer_axis]).size());
        }
        return fmt::format("{} + swizzled<{}, {}>({}, {})", tile.offset, tile.row_bytes, tile.group,
                           row, stored_k_first ? o : inner);
    };
    const auto word = [&](const SharedTile& tile, const Layout& layout, bool stored_k_first,
                          int outer_axis, int k_axis, std::int64_t b, std::int64_t outer,
                          std::int64_t k) {
        const auto at = [&](std::int64_t i) {
            return offset(tile, layout, stored_k_first, outer_axis, k_axis, b, outer, k + i);
        };
        return stored_k_first
                   ? fmt::format("shared_bytes(memory, {}, {}, {}, {})", at(0), at(1), at(2), at(3))
                   : fmt::format("shared_element<u32>(memory, {})", at(0));
    };
    const auto tag = [](const SharedTile& tile) { return tile.dtype == DType::i8 ? "S8" : "U8"; };
    for (const std::int64_t b : batches) {
        for (std::int64_t k = 0; k < cover(plan.k).size(); k += plan.step) {
            cx.comment("k {}", k);
            std::vector<Names> a;
            for (const std::int64_t m : rows) {
                if (!left.transposed) {
                    Coordinates at{};
                    if (rank == 3) at[0] = b;
                    at[m_at] = m;
                    a.push_back(left_words(cx, plan, left, at, k));
                    continue;
                }
                Names words = numbered(cx.fresh("a"), 4);
                for (std::size_t i = 0; i < words.size(); ++i) {
                    cx.line("const u32 {} = {};", words[i],
                            word(left_tile, plan.a, true, m_axis, n_axis, b,
                                 m + (has_upper && i % 2 != 0 ? 8 : 0), k + (i >= 2 ? 16 : 0)));
                }
                a.push_back(std::move(words));
            }
            for (const std::int64_t n : columns) {
                const Names words = numbered(cx.fresh("b"), 2);
                for (std::size_t i = 0; i < words.size(); ++i) {
                    cx.line("const u32 {} = {};", words[i],
                            word(right_tile, plan.b, !right.transposed, n_axis, m_axis, b, n,
                                 k + (i == 1 ? 16 : 0)));
                }
                std::size_t row = 0;
                for (const std::int64_t m : rows) {
                    Names d;
                    for (int e = 0; e < 4; ++e) {
                        Coordinates at{};
                        if (rank == 3) at[0] = b;
                        at[m_at] = m + (has_upper ? e / 2 * 8 : 0);
                        at[n_at] = n + e % 2;
                        d.push_back(!has_upper && e >= 2 ? fmt::format("unused{}", e)
                                                         : c[acc.find_register(at)]);
                    }
                    const std::string call =
                        fmt::format("ptx::mma_m16n8k32({}{{}}, {}{{}}, {}, {}, {});",
                                    tag(left_tile), tag(right_tile), fmt::join(d, ", "),
                                    fmt::join(a[row++], ", "), fmt::join(words, ", "));
                    if (has_upper)
                        cx.line("{}", call);
                    else
                        cx.line("{{ int unused2 = 0, unused3 = 0; {} }}", call);
                }
            }
        }
    }
}

}  // namespace tilewright::cuda
