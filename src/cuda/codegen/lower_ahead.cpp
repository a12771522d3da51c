// Loads that are issued ahead of their use: copied to shared memory for dots, or prefetched
// iterations ahead in loops.
#include "cuda/codegen/lower_ahead.h"

#include <algorithm>
#include <array>

#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

bool is_renewable(const Lowering& cx, Value value, int depth = 0) {
    constexpr int kMostOperations = 4;
    const Instruction* made = cx.facts.definition(value);
    if (made == nullptr || depth > kMostOperations) return false;
    if (cx.packed.count(value) != 0 || cx.plan.loads.repeated.count(value) != 0 ||
        cx.facts.is_index_math(value)) {
        return true;
    }
    if (ir::is_view(made->op)) {
        return made->op == Op::broadcast || is_renewable(cx, made->operands[0], depth + 1);
    }
    switch (made->op) {
        case Op::add:
        case Op::sub:
        case Op::mul:
        case Op::neg:
        case Op::fma:
        case Op::cast:
            break;
        default:
            return false;
    }
    return is_float(cx.type(value).dtype) &&
           std::all_of(made->operands.begin(), made->operands.end(), [&](Value operand) {
               return cx.type(operand).is_scalar() || is_renewable(cx, operand, depth + 1);
           });
}

/// A scalar of a loop in the iteration at `at`.
schedule::Value recompute(Lowering& cx, Value value, const std::set<Value>& inside, Value induction,
                          schedule::Value at) {
    if (value == induction) return at;
    const Instruction* made = cx.facts.definition(value);
    if (inside.count(value) == 0 || !ir::is_elementwise(made->op)) return scalar_of(cx, value);
    schedule::Instruction same = schedule::tile_instruction(cx.function, *made);
    for (Value operand : made->operands) {
        same.operands.push_back(recompute(cx, operand, inside, induction, at));
    }
    const std::string name = cx.fresh("n");
    return cx.result_of(cx.append(std::move(same)), name, cx.scalar_layout(), cx.type(value).dtype)
        .value;
}

}  // namespace

void copy_to_shared(Lowering& cx, const Instruction& load, const SharedTile& tile,
                    const Names& indices) {
    const ir::Access access = ir::access(load);
    const ir::AccessShape shape = ir::access_shape(cx.function, load);
    const auto& attributes = load.get<ir::AccessAttributes>();
    const ir::RefType& array = cx.function.ref_type(access.ref);
    const int bytes = size_of(array.dtype), per_piece = 16 / bytes, rank = tile.shape.rank();
    const std::int64_t pieces_per_row = tile.row_bytes / 16;
    const std::int64_t pieces = tile.rows() * pieces_per_row;
    const int threads = 32 * cx.warps;
    const int step = static_cast<int>(threads / pieces_per_row);  // rows between a thread's pieces
    // Rows at which the swizzle repeats: a thread's pieces are equally far apart in both memories.
    bool regular =
        rank == 2 && threads % pieces_per_row == 0 && step % 8 == 0 && pieces % threads == 0;

    cx.open("");
    std::string pointer = ref_name(cx, access.ref) + ".data", uniform, inside, row_offset,
                row_stride, valid, rows_inside;
    std::array<std::string, 2> windows;  // of rows, of columns
    for (int dim = 0; dim < array.rank(); ++dim) {
        const std::size_t d = dim;
        const ir::Index& index = attributes.indices[d];
        const std::string stride = stride_text(cx, access.ref, dim),
                          extent = extent_text(cx, access.ref, dim);
        const std::string& start = indices[d];
        pointer += stride == "1" ? " + " + start : fmt::format(" + ({}) * {}", start, stride);
        const bool proved = cx.facts.stays_inside(load, d);
        if (index.kind == ir::Index::Kind::scalar) {
            if (!proved) {
                uniform += fmt::format("{}static_cast<u64>({}) < {}", uniform.empty() ? "" : " && ",
                                       start, extent);
            }
            continue;
        }
        const int axis = shape.axis[d];
        const std::int64_t known = array.extents[d];
        const bool padded = cover(index.size).size() != index.size;
        const std::string position = axis == rank - 1 ? fmt::format("piece * {}", per_piece)
                                     : rank == 3      ? (axis == 0 ? "outer" : "inner")
                                                      : "row";
        std::string window;
        if (!proved && index.stride == 1) {
            window = fmt::format("w{}", dim);
            windows[axis == rank - 1 ? 1 : 0] += fmt::format(
                "const Window {} = window({}, {}, {});", window, start, extent, index.size);
        }
        if (axis == rank - 1) {
            if (!window.empty() &&
                (known == ir::kDynamic || known % per_piece != 0 || index.size % per_piece != 0)) {
                valid = fmt::format("{}.valid({}, {}) * {}", window, position, per_piece, bytes);
            } else if (!window.empty()) {
                valid = fmt::format("{}.contains({}) ? 16 : 0", window, position);
            } else if (padded) {
                valid = fmt::format("Window{{0, {}}}.valid({}, {}) * {}", index.size, position,
                                    per_piece, bytes);
            }
            continue;
        }
        row_stride = stride;
        row_offset += fmt::format(
            " + {} * {}",
            index.stride == 1 ? position : fmt::format("{} * {}ll", position, index.stride),
            stride);
        // Rows are counted from 0 where the tile cannot begin before the array.
        regular = regular && index.stride == 1 && !padded &&
                  (window.empty() || cx.facts.non_negative(access.indices[d]));
        std::string bound;
        if (!window.empty()) {
            rows_inside = fmt::format("count_inside({}, {}, {})", start, extent, index.size);
            bound = fmt::format("{}.contains({})", window, position);
        } else if (!proved) {
            bound = fmt::format("static_cast<u64>({} + {} * {}ll) < {}{}", start, position,
                                index.stride, extent,
                                padded ? fmt::format(" && {} < {}", position, index.size) : "");
        } else if (padded) {
            bound = fmt::format("{} < {}", position, index.size);
        }
        if (!bound.empty()) inside += (inside.empty() ? "" : " && ") + bound;
    }
    if (!uniform.empty()) cx.line("const bool ok = {};", uniform);
    cx.line("auto* const from = {};", pointer);
    if (!windows[1].empty()) cx.line("{}", windows[1]);
    if (regular) {
        if (!uniform.empty()) {
            rows_inside = fmt::format(
                "ok ? {} : 0", rows_inside.empty() ? fmt::format("{}", tile.rows()) : rows_inside);
        }
        cx.line("const int row = threadIdx.x / {0}, piece = threadIdx.x % {0};", pieces_per_row);
        cx.line("const u32 to = memory_address + {} + swizzled<{}, {}>(row, piece * 16);",
                tile.offset, tile.row_bytes, tile.group);
        cx.line("auto* const rows_from = from + piece * {}{};", per_piece, row_offset);
        if (!valid.empty()) cx.line("const int bytes = {};", valid);
        if (!rows_inside.empty()) cx.line("const int rows = {};", rows_inside);
        for (int i = 0; i < pieces / threads; ++i) {
            const std::string whole = valid.empty() ? "16" : "bytes";
            cx.line("ptx::cp_async_16(to + {}, rows_from + {} * {}, {});",
                    i * step * tile.row_bytes, i * step, row_stride,
                    rows_inside.empty() ? whole
                                        : fmt::format("row < rows - {} ? {} : 0", i * step, whole));
        }
        cx.close();
        return;
    }
    if (!windows[0].empty()) cx.line("{}", windows[0]);
    if (!uniform.empty()) inside = inside.empty() ? "ok" : "ok && " + inside;
    cx.line("#pragma unroll");
    cx.open(fmt::format("for (int i = 0; i < {}; ++i)", (pieces + threads - 1) / threads));
    cx.line("const int at = threadIdx.x + i * {};", threads);
    if (pieces % threads != 0) cx.line("if (at >= {}) break;", pieces);
    cx.line("const int row = at / {0}, piece = at % {0};", pieces_per_row);
    if (rank == 3) {
        cx.line("const int outer = row / {0}, inner = row % {0};", cover(tile.shape[1]).size());
    }
    const std::string size = valid.empty() && inside.empty() ? "16"
                             : valid.empty()                 ? inside + " ? 16 : 0"
                             : inside.empty()                ? valid
                                              : fmt::format("{} ? ({}) : 0", inside, valid);
    cx.line(
        "ptx::cp_async_16(memory_address + {} + swizzled<{}, {}>(row, piece * 16), from + piece * "
        "{}{}, {});",
        tile.offset, tile.row_bytes, tile.group, per_piece, row_offset, size);
    cx.close();
    cx.close();
}

void lower_staged(Lowering& cx, const Instruction& load) {
    const Value result = load.result();
    const SharedTile tile = shared_tile(cx, cx.type(result).shape, cx.type(result).dtype, true);
    cx.access_shared("writes", {tile.buffer});
    Names indices;
    for (Value operand : ir::access(load).indices) indices.push_back(index_text(cx, operand));
    cx.comment("staged in shared memory, rows of {} bytes", tile.row_bytes);
    copy_to_shared(cx, load, tile, indices);
    cx.append(schedule::Op::commit_copies);
    cx.access_shared("copies", {tile.buffer});
    cx.scopes.back().shared[result] = tile;
}

// ---- Values of a later iteration of a loop.

std::string index_in(Lowering& cx, Value index, const std::set<Value>& inside, Value induction,
                     schedule::Value at) {
    const std::string& text = cx.registers.of(recompute(cx, index, inside, induction, at)).front();
    return cx.type(index).dtype == DType::i64 ? text : fmt::format("static_cast<i64>({})", text);
}

void prefetch(Lowering& cx, std::span<const Instruction* const> loads, const std::string& at) {
    const Instruction& loop = *cx.prefetched.at(loads.front()->result()).loop;
    const std::set<Value> inside = Analysis::values_inside(loop);
    cx.open(fmt::format("if ({} < {})", at, index_text(cx, loop.operands[1])));
    const schedule::Value begin = cx.named(cx.scalar_layout(), DType::i64, {at}).value;
    for (const Instruction* load : loads) {
        const Prefetched& ahead = cx.prefetched.at(load->result());
        Names indices;
        for (Value operand : ir::access(*load).indices) {
            indices.push_back(index_in(cx, operand, inside, loop.blocks[0].arguments[0], begin));
        }
        const Layout layout = cx.home(load->result());
        AccessText text = access_text(cx, *load, layout, &indices);
        if (cx.type(load->result()).is_scalar()) text.pointer += " + ptx::lane_zero()";
        const std::size_t names = ahead.next.size(),
                          step = ahead.packed ? 1 : static_cast<std::size_t>(text.vector);
        TW_ASSERT(static_cast<std::size_t>(layout.registers()) * step ==
                  names * static_cast<std::size_t>(text.vector));
        for (std::size_t i = 0; i < names; i += step) {
            const std::size_t r = i / step * static_cast<std::size_t>(text.vector);
            const std::string& inside_text = text.inside[r];
            const Names to(ahead.next.begin() + i, ahead.next.begin() + (i + step));
            if (!inside_text.empty()) cx.line("{} = {{}};", fmt::join(to, " = "));
            cx.line("{}{}({}{}, {});",
                    inside_text.empty() ? "" : fmt::format("if ({}) ", inside_text),
                    ahead.packed ? "load_raw" : "load_vector", text.pointer,
                    text.offset[r].empty() ? "" : " + " + text.offset[r], fmt::join(to, ", "));
        }
    }
    cx.close();
}

// ---- Elements that stay packed.

void keep_packed(Lowering& cx) {
    if (!cx.plan.loads.is_wide) return;
    const auto is_repeated = [&](Value value) { return cx.plan.loads.repeated.count(value) != 0; };
    for (const auto& [value, packed] : cx.packed) {
        if (is_repeated(value) || cx.find(value) == nullptr) continue;
        for (const std::string& word : packed) cx.line("ptx::keep_bits({});", word);
    }
    for (Scope& scope : cx.scopes) {
        for (auto held = scope.held.begin(); held != scope.held.end();) {
            const Value value = held->first;
            const bool tile = !cx.type(value).is_scalar() && cx.facts.definition(value) != nullptr;
            const bool again = tile && (is_repeated(value) ||
                                        (cx.packed.count(value) == 0 && is_renewable(cx, value)));
            if (again) cx.forgotten.insert(value);
            held = again ? scope.held.erase(held) : std::next(held);
        }
    }
}

}  // namespace tilewright::cuda
