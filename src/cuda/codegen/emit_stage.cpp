// Loads that are issued ahead of their use: copied to shared memory for dots, or prefetched
// iterations ahead in loops.
#include <algorithm>
#include <array>

#include "cuda/codegen/emitter.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Op;

void Emitter::copy_to_shared(const Instruction& load, const SharedTile& tile,
                             const Names& indices) {
    const ir::Access access = ir::access(load);
    const ir::AccessShape shape = ir::access_shape(f_, load);
    const auto& attributes = load.get<ir::AccessAttributes>();
    const ir::RefType& array = f_.ref_type(access.ref);
    const int bytes = size_of(array.dtype), per_piece = 16 / bytes, rank = tile.shape.rank();
    const std::int64_t pieces_per_row = tile.row_bytes / 16;
    const std::int64_t pieces = tile.rows() * pieces_per_row;
    const int threads = 32 * warps_;
    const int step = static_cast<int>(threads / pieces_per_row);  // rows between a thread's pieces
    // Rows at which the swizzle repeats: a thread's pieces are equally far apart in both memories.
    bool regular =
        rank == 2 && threads % pieces_per_row == 0 && step % 8 == 0 && pieces % threads == 0;

    open("");
    std::string pointer = ref_name(access.ref) + ".data", uniform, inside, row_offset, row_stride,
                valid, rows_inside;
    std::array<std::string, 2> windows;  // of rows, of columns
    for (int dim = 0; dim < array.rank(); ++dim) {
        const std::size_t d = dim;
        const ir::Index& index = attributes.indices[d];
        const std::string stride = stride_text(access.ref, dim),
                          extent = extent_text(access.ref, dim);
        const std::string& start = indices[d];
        pointer += stride == "1" ? " + " + start : fmt::format(" + ({}) * {}", start, stride);
        const bool proved = facts_.stays_inside(load, d);
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
                  (window.empty() || facts_.non_negative(access.indices[d]));
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
    if (!uniform.empty()) line("const bool ok = {};", uniform);
    line("auto* const from = {};", pointer);
    if (!windows[1].empty()) line("{}", windows[1]);
    if (regular) {
        if (!uniform.empty()) {
            rows_inside = fmt::format(
                "ok ? {} : 0", rows_inside.empty() ? fmt::format("{}", tile.rows()) : rows_inside);
        }
        line("const int row = threadIdx.x / {0}, piece = threadIdx.x % {0};", pieces_per_row);
        line("const u32 to = memory_address + {} + swizzled<{}, {}>(row, piece * 16);", tile.offset,
             tile.row_bytes, tile.group);
        line("auto* const rows_from = from + piece * {}{};", per_piece, row_offset);
        if (!valid.empty()) line("const int bytes = {};", valid);
        if (!rows_inside.empty()) line("const int rows = {};", rows_inside);
        for (int i = 0; i < pieces / threads; ++i) {
            const std::string whole = valid.empty() ? "16" : "bytes";
            line("ptx::cp_async_16(to + {}, rows_from + {} * {}, {});", i * step * tile.row_bytes,
                 i * step, row_stride,
                 rows_inside.empty() ? whole
                                     : fmt::format("row < rows - {} ? {} : 0", i * step, whole));
        }
        close();
        return;
    }
    if (!windows[0].empty()) line("{}", windows[0]);
    if (!uniform.empty()) inside = inside.empty() ? "ok" : "ok && " + inside;
    line("#pragma unroll");
    open(fmt::format("for (int i = 0; i < {}; ++i)", (pieces + threads - 1) / threads));
    line("const int at = threadIdx.x + i * {};", threads);
    if (pieces % threads != 0) line("if (at >= {}) break;", pieces);
    line("const int row = at / {0}, piece = at % {0};", pieces_per_row);
    if (rank == 3) {
        line("const int outer = row / {0}, inner = row % {0};", cover(tile.shape[1]).size());
    }
    const std::string size = valid.empty() && inside.empty() ? "16"
                             : valid.empty()                 ? inside + " ? 16 : 0"
                             : inside.empty()                ? valid
                                              : fmt::format("{} ? ({}) : 0", inside, valid);
    line(
        "ptx::cp_async_16(memory_address + {} + swizzled<{}, {}>(row, piece * 16), from + piece * "
        "{}{}, {});",
        tile.offset, tile.row_bytes, tile.group, per_piece, row_offset, size);
    close();
    close();
}

void Emitter::stage(const Instruction& load) {
    const Value result = load.result();
    const SharedTile tile = shared_tile(type(result).shape, type(result).dtype, true);
    access_shared("writes", {tile.buffer});
    Names indices;
    for (Value operand : ir::access(load).indices) indices.push_back(index(operand));
    line("// staged in shared memory, rows of {} bytes", tile.row_bytes);
    copy_to_shared(load, tile, indices);
    append(schedule::Op::commit_copies);
    access_shared("copies", {tile.buffer});
    scopes_.back().shared[result] = tile;
}

// ---- Values of a later iteration of a loop.

std::string Emitter::recompute(Value value, const std::set<Value>& inside, Value induction,
                               const std::string& at) {
    if (value == induction) return at;
    const Instruction* made = facts_.definition(value);
    if (inside.count(value) == 0 || !ir::is_elementwise(made->op)) {
        if (made != nullptr && made->op == Op::program_id) {
            return fmt::format("program{}", made->get<ir::AxisAttributes>().axis);
        }
        if (made != nullptr && made->op == Op::extent) {
            return extent_text(made->operands[0], made->get<ir::AxisAttributes>().axis);
        }
        return scalar(value);
    }
    Names operands;
    for (Value operand : made->operands) {
        operands.push_back(recompute(operand, inside, induction, at));
    }
    const std::string result = fresh("n");
    line("const {} {} = {};", register_type(type(value).dtype), result,
         elementwise_text(*made, operands));
    return result;
}

void Emitter::prefetch(std::span<const Instruction* const> loads, const std::string& at) {
    const Instruction& loop = *prefetched_.at(loads.front()->result()).loop;
    const std::set<Value> inside = Analysis::values_inside(loop);
    open(fmt::format("if ({} < {})", at, index(loop.operands[1])));
    for (const Instruction* load : loads) {
        const Prefetched& ahead = prefetched_.at(load->result());
        Names indices;
        for (Value operand : ir::access(*load).indices) {
            const std::string text = recompute(operand, inside, loop.blocks[0].arguments[0], at);
            indices.push_back(type(operand).dtype == DType::i64
                                  ? text
                                  : fmt::format("static_cast<i64>({})", text));
        }
        const Layout layout = home(load->result());
        AccessText text = access_text(*load, layout, &indices);
        if (type(load->result()).is_scalar()) text.pointer += " + ptx::lane_zero()";
        const std::size_t names = ahead.next.size(),
                          step = ahead.packed ? 1 : static_cast<std::size_t>(text.vector);
        TW_ASSERT(static_cast<std::size_t>(layout.registers()) * step ==
                  names * static_cast<std::size_t>(text.vector));
        for (std::size_t i = 0; i < names; i += step) {
            const std::size_t r = i / step * static_cast<std::size_t>(text.vector);
            const std::string& inside_text = text.inside[r];
            const Names to(ahead.next.begin() + i, ahead.next.begin() + (i + step));
            if (!inside_text.empty()) line("{} = {{}};", fmt::join(to, " = "));
            line("{}{}({}{}, {});", inside_text.empty() ? "" : fmt::format("if ({}) ", inside_text),
                 ahead.packed ? "load_raw" : "load_vector", text.pointer,
                 text.offset[r].empty() ? "" : " + " + text.offset[r], fmt::join(to, ", "));
        }
    }
    close();
}

// ---- Elements that stay packed.

bool Emitter::is_renewable(Value value, int depth) const {
    constexpr int kMostOperations = 4;
    const Instruction* made = facts_.definition(value);
    if (made == nullptr || depth > kMostOperations) return false;
    if (packed_.count(value) != 0 || plan_.loads.repeated.count(value) != 0 ||
        facts_.is_index_math(value)) {
        return true;
    }
    if (ir::is_view(made->op)) {
        return made->op == Op::broadcast || is_renewable(made->operands[0], depth + 1);
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
    return is_float(type(value).dtype) &&
           std::all_of(made->operands.begin(), made->operands.end(), [&](Value operand) {
               return type(operand).is_scalar() || is_renewable(operand, depth + 1);
           });
}

void Emitter::keep_packed() {
    if (!plan_.loads.is_wide) return;
    const auto is_repeated = [&](Value value) { return plan_.loads.repeated.count(value) != 0; };
    for (const auto& [value, packed] : packed_) {
        if (is_repeated(value) || find(value) == nullptr) continue;
        for (const std::string& word : packed) line("ptx::keep_bits({});", word);
    }
    for (Scope& scope : scopes_) {
        for (auto held = scope.held.begin(); held != scope.held.end();) {
            const Value value = held->first;
            const bool tile = !type(value).is_scalar() && facts_.definition(value) != nullptr;
            const bool again =
                tile && (is_repeated(value) || (packed_.count(value) == 0 && is_renewable(value)));
            if (again) forgotten_.insert(value);
            held = again ? scope.held.erase(held) : std::next(held);
        }
    }
}

}  // namespace tilewright::cuda
