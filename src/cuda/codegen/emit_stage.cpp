// Loads that are issued ahead of their use: copied to shared memory for dots, or prefetched
// iterations ahead in loops.
#include <algorithm>
#include <array>

#include "cuda/codegen/emitter.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Op;

std::string Emitter::why_not_staged(const Instruction& load) const {
    if (load.op != Op::load) return "it is no load";
    const ir::Access access = ir::access(load);
    const auto& attributes = load.get<ir::AccessAttributes>();
    const ir::Type& tile = type(load.result());
    if (tile.shape.rank() < 2 || tile.shape.rank() > 3) return "the tile has not 2 or 3 axes";
    if (attributes.has_mask) return "it has a mask";
    if (f_.ref_type(access.ref).space != ir::Space::global) return "it reads scratch";
    if (tile.shape.size() == 0) return "the tile is empty";
    if (access.other && !analysis_.is_constant(access.other, 0)) return "its `other` is not 0";
    for (const ir::Index& index : attributes.indices) {
        if (index.kind == ir::Index::Kind::tile) return "it gathers by an index tile";
    }
    int axis = -1;
    const int vector = contiguous_vector(load, &axis);
    if (vector * size_of(tile.dtype) != 16 || axis != tile.shape.rank() - 1)
        return "its rows are not made of aligned pieces of 16 bytes";
    // All readers are dots, perhaps of a transpose that the dot absorbs.
    const std::function<bool(Value)> only_dots = [&](Value value) {
        const auto& users = analysis_.users(value);
        return !users.empty() &&
               std::all_of(users.begin(), users.end(), [&](const Instruction* user) {
                   if (user->op == Op::transpose) return only_dots(user->result());
                   if (user->op != Op::dot) return false;
                   const DotPlan& plan = plans_.at(user);
                   return (user->operands.size() < 3 || user->operands[2] != value) &&
                          plan.operand == tile.dtype && plan.unit != DotPlan::Unit::fma &&
                          (operand_of(*user, 0).value == load.result() ||
                           operand_of(*user, 1).value == load.result());
               });
    };
    if (!only_dots(load.result()))
        return "what reads it is no product of tensor cores, or a cast stands between";
    return {};
}

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
        const bool proved = stays_inside(load, d);
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
                  (window.empty() || analysis_.non_negative(access.indices[d]));
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
    line("ptx::cp_async_commit();");
    access_shared("copies", {tile.buffer});
    scopes_.back().shared[result] = tile;
}

// ---- Values of a later iteration of a loop.

bool Emitter::computable(Value value, const std::set<Value>& inside, Value induction) const {
    if (value == induction || inside.count(value) == 0) return true;
    const Instruction* made = analysis_.definition(value);
    if (made == nullptr || !type(value).is_scalar()) return false;
    if (made->op == Op::constant || made->op == Op::program_id || made->op == Op::extent)
        return true;
    return ir::is_elementwise(made->op) &&
           std::all_of(made->operands.begin(), made->operands.end(),
                       [&](Value operand) { return computable(operand, inside, induction); });
}

std::string Emitter::recompute(Value value, const std::set<Value>& inside, Value induction,
                               const std::string& at) {
    if (value == induction) return at;
    const Instruction* made = analysis_.definition(value);
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

std::vector<const ir::Instruction*> Emitter::streamed_loads(const Instruction& loop) const {
    std::vector<const Instruction*> loads;
    if (stages_ == 1) return loads;
    const std::set<Value> inside = Analysis::values_inside(loop);
    std::set<Value> written;
    ir::walk(loop.blocks[0], [&](const Instruction& each) {
        if (ir::is_access(each.op) && each.op != Op::load) {
            written.insert(analysis_.root(each.operands[0]));
        }
    });
    for (const Instruction& each : loop.blocks[0].body) {
        if (!is_staged(each) || written.count(analysis_.root(each.operands[0])) != 0) continue;
        const auto indices = ir::access(each).indices;
        if (std::all_of(indices.begin(), indices.end(), [&](Value operand) {
                return computable(operand, inside, loop.blocks[0].arguments[0]);
            })) {
            loads.push_back(&each);
        }
    }
    return loads;
}

std::vector<const ir::Instruction*> Emitter::prefetched_loads(const Instruction& loop) {
    constexpr int kMaxWords = 88;    // registers of carries, of packed tiles and of pending loads
    constexpr int kMaxElements = 4;  // of a load that has no 16-byte pieces
    std::vector<const Instruction*> loads;
    if (stages_ == 1 || is_wide()) return loads;
    const std::set<Value> inside = Analysis::values_inside(loop);
    std::set<Value> written;
    bool plain = true;
    ir::walk(loop.blocks[0], [&](const Instruction& each) {
        plain = plain && each.op != Op::dot && each.blocks.empty();
        if (ir::is_access(each.op) && each.op != Op::load) {
            written.insert(analysis_.root(each.operands[0]));
        }
    });
    int words = 0;
    for (Value argument : loop.blocks[0].arguments) {
        if (!type(argument).is_scalar()) words += home(argument).registers();
    }
    for (const auto& [value, packed] : packed_) {
        if (find(value) != nullptr) words += static_cast<int>(4 * packed.size());
    }
    for (const Instruction& each : loop.blocks[0].body) {
        if (is_tile_load(each)) {
            words += home(each.result()).registers() * size_of(type(each.result()).dtype) / 4;
        }
    }
    for (const Instruction& each : loop.blocks[0].body) {
        if (!plain || each.op != Op::load || is_staged(each)) continue;
        const ir::Access access = ir::access(each);
        const ir::Type& tile = type(each.result());
        const auto& attributes = each.get<ir::AccessAttributes>();
        const bool whole = std::none_of(
            attributes.indices.begin(), attributes.indices.end(),
            [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
        if (access.mask || !whole || written.count(analysis_.root(access.ref)) != 0 ||
            f_.ref_type(access.ref).space != ir::Space::global ||
            (access.other && !analysis_.is_constant(access.other, 0))) {
            continue;
        }
        const auto depends = [&](Value operand) { return inside.count(operand) != 0; };
        if (std::none_of(access.indices.begin(), access.indices.end(), depends) ||
            !std::all_of(access.indices.begin(), access.indices.end(), [&](Value operand) {
                return computable(operand, inside, loop.blocks[0].arguments[0]);
            })) {
            continue;
        }
        const Layout layout = home(each.result());
        if (layout.has_phantoms()) continue;
        const int vector = access_vector(each, layout);
        if (vector * size_of(tile.dtype) != 16 && layout.registers() > kMaxElements) continue;
        // Vectors that may cross the array's edge are loaded at their use.
        if (vector > 1) {
            const auto& last = attributes.indices.back();
            const std::int64_t extent = f_.ref_type(access.ref).extents.back();
            if (last.size % vector != 0 ||
                (!attributes.in_bounds && (extent == ir::kDynamic || extent % vector != 0))) {
                continue;
            }
        }
        words += (layout.registers() * size_of(tile.dtype) + 3) / 4;
        if (words > kMaxWords) break;
        loads.push_back(&each);
    }
    return loads;
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
    const Instruction* made = analysis_.definition(value);
    if (made == nullptr || depth > kMostOperations) return false;
    if (packed_.count(value) != 0 || repeated_.count(value) != 0 ||
        analysis_.is_index_math(value)) {
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
    if (!is_wide()) return;
    const auto is_repeated = [&](Value value) { return repeated_.count(value) != 0; };
    for (const auto& [value, packed] : packed_) {
        if (is_repeated(value) || find(value) == nullptr) continue;
        for (const std::string& word : packed) line("ptx::keep_bits({});", word);
    }
    for (Scope& scope : scopes_) {
        for (auto held = scope.held.begin(); held != scope.held.end();) {
            const Value value = held->first;
            const bool tile = !type(value).is_scalar() && analysis_.definition(value) != nullptr;
            const bool again =
                tile && (is_repeated(value) || (packed_.count(value) == 0 && is_renewable(value)));
            if (again) forgotten_.insert(value);
            held = again ? scope.held.erase(held) : std::next(held);
        }
    }
}

bool Emitter::is_wide() const {
    constexpr int kMany = 64;  // elements of a thread
    int elements = 0;
    const std::function<void(const ir::Block&, bool)> count = [&](const ir::Block& block,
                                                                  bool in_loop) {
        for (const Instruction& each : block.body) {
            for (const ir::Block& inner : each.blocks) {
                count(inner, in_loop || each.op == Op::for_loop);
            }
            if (in_loop && is_tile_load(each)) elements += home(each.result()).registers();
        }
    };
    if (plans_.empty()) count(f_.body, false);
    return elements >= kMany;
}

bool Emitter::is_tile_load(const Instruction& made) const {
    return made.op == Op::load && !type(made.result()).is_scalar() &&
           f_.ref_type(made.operands[0]).space == ir::Space::global;
}

void Emitter::find_repeated_loads() {
    if (!is_wide()) return;
    for (const Instruction& each : f_.body.body) {
        if (!is_tile_load(each)) continue;
        const ir::Access access = ir::access(each);
        if (!access.mask && !analysis_.is_written(access.ref)) repeated_.insert(each.result());
    }
}

bool Emitter::is_private(Value ref) const {
    if (f_.ref_type(ref).space != ir::Space::scratch) return false;
    std::optional<Layout> layout;
    bool result = true;
    ir::walk(f_.body, [&](const Instruction& each) {
        if (!ir::is_access(each.op) || each.operands[0] != ref) return;
        const ir::Access access = ir::access(each);
        const bool load = each.op == Op::load;
        result = result && (load || each.op == Op::store) && !access.mask &&
                 std::all_of(access.indices.begin(), access.indices.end(),
                             [&](Value index) { return analysis_.is_constant(index, 0); });
        if (!result) return;
        const Layout own = home(load ? each.result() : before_rounding(access.values[0]));
        if (!layout) layout = own;
        result = own.shape == layout->shape && own.lane == layout->lane &&
                 own.warp == layout->warp && own.copied_lanes() == 0 && own.copied_warps() == 0;
    });
    return result;
}

}  // namespace tilewright::cuda
