// Loops and branches, and loads that go past the registers: staged in shared memory, and in loops
// fetched several rounds ahead.
#include <algorithm>
#include <array>

#include "cuda/codegen/emitter.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Op;

namespace {

constexpr std::int64_t kStreamBytes = 64 * 1024;  // leaves room for two blocks on a multiprocessor
constexpr int kMaxStages = 4;

}  // namespace

bool Emitter::is_staged(const Instruction& load) const {
    if (load.op != Op::load) return false;
    const ir::Access access = ir::access(load);
    const auto& attributes = load.get<ir::AccessAttributes>();
    const ir::Type& tile = type(load.result());
    if (tile.shape.rank() < 2 || tile.shape.rank() > 3 || attributes.has_mask ||
        f_.ref_type(access.ref).space != ir::Space::global || tile.shape.size() == 0) {
        return false;
    }
    if (access.other && !analysis_.is_constant(access.other, 0)) return false;
    for (const ir::Index& index : attributes.indices) {
        if (index.kind == ir::Index::Kind::tile) return false;
    }
    int axis = -1;
    const int vector = contiguous_vector(load, &axis);
    if (vector * size_of(tile.dtype) != 16 || axis != tile.shape.rank() - 1) return false;
    // All readers are dots, perhaps behind a transpose that the dot absorbs.
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
    return only_dots(load.result());
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
    // Rows whose swizzle repeats: a thread's pieces lie at one distance from each other, in both
    // memories.
    bool regular =
        rank == 2 && threads % pieces_per_row == 0 && step % 8 == 0 && pieces % threads == 0;

    open("");
    std::string pointer = ref_name(access.ref) + ".data", uniform, inside, row_offset, row_stride,
                valid, rows_inside;
    std::array<std::string, 2> windows;  // of rows, of columns
    for (int dim = 0; dim < array.rank(); ++dim) {
        const auto d = static_cast<std::size_t>(dim);
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
        // Rows count from 0 where the tile cannot begin before the array.
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
    before_shared_write(tile.buffer);
    Names indices;
    for (Value operand : ir::access(load).indices) indices.push_back(index(operand));
    line("// staged in shared memory, rows of {} bytes", tile.row_bytes);
    copy_to_shared(load, tile, indices);
    line("ptx::cp_async_commit();");
    copies_.insert(tile.buffer);
    touch(tile.buffer);
    scopes_.back().shared[result] = tile;
}

// ---- Values of a later round of a loop.

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
    constexpr int kMaxWords = 36;     // registers of carries and of loads that wait
    constexpr int kMaxElements = 32;  // of one load: more fill the registers by themselves
    std::vector<const Instruction*> loads;
    if (stages_ == 1) return loads;
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
    for (const Instruction& each : loop.blocks[0].body) {
        if (!plain || each.op != Op::load || is_staged(each)) continue;
        const ir::Access access = ir::access(each);
        const ir::Type& tile = type(each.result());
        const auto& attributes = each.get<ir::AccessAttributes>();
        const bool whole = std::none_of(
            attributes.indices.begin(), attributes.indices.end(),
            [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
        if (tile.is_scalar() || access.mask || !whole ||
            written.count(analysis_.root(access.ref)) != 0 ||
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
        int axis = -1;
        const Layout layout = home(each.result());
        const int vector = contiguous_vector(each, &axis);
        if (vector * size_of(tile.dtype) != 16 || vector_length(layout, axis) < vector ||
            layout.registers() > kMaxElements) {
            continue;
        }
        // Vectors that the array's edge may cut are loaded when they are wanted.
        const auto& last = attributes.indices.back();
        const std::int64_t extent = f_.ref_type(access.ref).extents.back();
        if (layout.has_phantoms() || last.size % vector != 0 ||
            (!attributes.in_bounds && (extent == ir::kDynamic || extent % vector != 0))) {
            continue;
        }
        words += layout.registers() * size_of(tile.dtype) / 4;
        if (words > kMaxWords) break;
        loads.push_back(&each);
    }
    return loads;
}

void Emitter::prefetch(const Instruction& load, const std::string& at) {
    const Prefetched& ahead = prefetched_.at(load.result());
    const std::set<Value> inside = Analysis::values_inside(*ahead.loop);
    const Layout layout = home(load.result());
    open(fmt::format("if ({} < {})", at, index(ahead.loop->operands[1])));
    Names indices;
    for (Value operand : ir::access(load).indices) {
        const std::string text = recompute(operand, inside, ahead.loop->blocks[0].arguments[0], at);
        indices.push_back(
            type(operand).dtype == DType::i64 ? text : fmt::format("static_cast<i64>({})", text));
    }
    const AccessText text = access_text(load, layout, &indices);
    TW_ASSERT(text.vector * static_cast<int>(ahead.raw.size()) == layout.registers());
    for (std::size_t i = 0; i < ahead.raw.size(); ++i) {
        const std::size_t r = i * static_cast<std::size_t>(text.vector);
        const std::string& inside_text = text.inside[r];
        if (!inside_text.empty()) line("{} = uint4{{}};", ahead.raw[i]);
        line("{}load_raw({}{}, {});",
             inside_text.empty() ? "" : fmt::format("if ({}) ", inside_text), text.pointer,
             text.offset[r].empty() ? "" : " + " + text.offset[r], ahead.raw[i]);
    }
    close();
}

// ---- Control flow.

std::vector<Names> Emitter::declare_carries(std::span<const Value> init,
                                            std::span<const Value> arguments) {
    std::vector<Names> carries;
    for (std::size_t i = 0; i < init.size(); ++i) {
        const Layout layout = home(arguments[i]);
        const Names from = get(init[i], layout);
        carries.push_back(numbered(fmt::format("v{}", arguments[i].id), layout.registers()));
        for (std::size_t r = 0; r < from.size(); ++r) {
            line("{} {} = {};", register_type(type(arguments[i]).dtype), carries.back()[r],
                 from[r]);
        }
    }
    return carries;
}

void Emitter::assign_carries(std::span<const Value> targets, const std::vector<Names>& names,
                             std::span<const Value> values) {
    std::vector<Names> next;
    std::set<std::string> assigned;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        next.push_back(get(values[i], home(targets[i])));
        assigned.insert(names[i].begin(), names[i].end());
    }
    // A value that is itself a carry must be read before that carry is assigned.
    for (std::size_t i = 0; i < targets.size(); ++i) {
        for (std::size_t r = 0; r < next[i].size(); ++r) {
            std::string& value = next[i][r];
            if (value == names[i][r]) continue;
            const bool mentions = std::any_of(
                assigned.begin(), assigned.end(),
                [&](const std::string& name) { return value.find(name) != std::string::npos; });
            if (!mentions) continue;
            const std::string copy = fresh("y");
            line("const {} {} = {};", register_type(type(targets[i]).dtype), copy, value);
            value = copy;
        }
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
        for (std::size_t r = 0; r < next[i].size(); ++r) {
            if (next[i][r] != names[i][r]) line("{} = {};", names[i][r], next[i][r]);
        }
    }
}

const ir::Instruction* Emitter::deferred_sum(const Instruction& loop, std::size_t carry) const {
    const ir::Block& body = loop.blocks[0];
    const Value argument = body.arguments[carry + 1];
    const Value next = body.terminator().operands[carry];
    const Instruction* update = analysis_.definition(next);
    if (update == nullptr || type(argument).is_scalar() || type(argument).dtype != DType::f32 ||
        analysis_.users(argument) != std::vector<const Instruction*>{update} ||
        analysis_.users(next).size() != 1) {
        return nullptr;
    }
    const auto is_exponential = [&](Value value) {
        const Instruction* made = analysis_.definition(value);
        return made != nullptr && (made->op == Op::exp || made->op == Op::exp2);
    };
    Value added;
    if (update->op == Op::add) {
        added = update->operands[update->operands[0] == argument ? 1 : 0];
    } else if (update->op == Op::fma && update->operands[2] != argument &&
               is_exponential(update->operands[update->operands[0] == argument ? 1 : 0])) {
        added = update->operands[2];
    } else {
        return nullptr;
    }
    const Instruction* sum = analysis_.definition(added);
    if (sum == nullptr || sum->op != Op::reduce || analysis_.users(added).size() != 1 ||
        sum->get<ir::ReduceAttributes>().kind != ir::Reduction::sum) {
        return nullptr;
    }
    const bool inside = std::any_of(body.body.begin(), body.body.end(),
                                    [&](const Instruction& each) { return &each == sum; });
    const int axis = sum->get<ir::ReduceAttributes>().axis;
    const Layout from = home(sum->operands[0]), to = from.without(axis);
    const bool in_warp = std::none_of(from.warp.begin(), from.warp.end(), [&](std::uint64_t basis) {
        return from.unpack(basis)[static_cast<std::size_t>(axis)] != 0;
    });
    return inside && in_warp && to == home(argument) && to == home(next) && to == home(added)
               ? sum
               : nullptr;
}

void Emitter::for_loop(const Instruction& made) {
    const ir::Block& body = made.blocks[0];
    const Value induction = body.arguments[0];
    const std::span<const Value> arguments = std::span(body.arguments).subspan(1);
    const std::string low = index(made.operands[0]), high = index(made.operands[1]),
                      step = index(made.operands[2]);
    line("// for_loop over {} carries", arguments.size());
    const std::vector<Names> carries =
        declare_carries(std::span(made.operands).subspan(3), arguments);
    std::vector<const Instruction*> sums;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        sums.push_back(deferred_sum(made, i));
        if (sums[i] == nullptr) continue;
        deferred_.insert(sums[i]);
        // The first of the lanes that share a sum goes on from where it stands.
        const Layout from = home(sums[i]->operands[0]);
        const auto axis = static_cast<std::size_t>(sums[i]->get<ir::ReduceAttributes>().axis);
        int others = 0;
        for (std::size_t bit = 0; bit < from.lane.size(); ++bit) {
            if (from.unpack(from.lane[bit])[axis] != 0) others |= 1 << bit;
        }
        line("// v{} is summed between lanes behind the loop", arguments[i].id);
        for (const std::string& name : carries[i]) {
            line("if ((lane & {}) != 0) {} = 0.0f;", others, name);
        }
    }
    const std::vector<const Instruction*> streamed = streamed_loads(made);
    const std::set<Value> inside = Analysis::values_inside(made);
    const std::string iv = fmt::format("v{}", induction.id), tag = fresh("l");
    int stages = stages_;
    std::vector<SharedTile> tiles;
    const auto copy_round = [&](const std::string& at, const std::string& slot) {
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            Names indices;
            for (Value operand : ir::access(*streamed[i]).indices) {
                const std::string text = recompute(operand, inside, induction, at);
                indices.push_back(type(operand).dtype == DType::i64
                                      ? text
                                      : fmt::format("static_cast<i64>({})", text));
            }
            SharedTile tile = tiles[i];
            tile.offset += fmt::format(" + {} * {}u", slot, tile.rows() * tile.row_bytes);
            copy_to_shared(*streamed[i], tile, indices);
        }
    };
    if (!streamed.empty()) {
        std::int64_t bytes = 0;
        for (const Instruction* load : streamed) {
            before_global(load->operands[0], false);
            const SharedTile form =
                tile_form(type(load->result()).shape, type(load->result()).dtype, true);
            bytes += form.rows() * form.row_bytes;
        }
        if (stages == 0) {
            stages =
                static_cast<int>(std::clamp<std::int64_t>(kStreamBytes / bytes, 2, kMaxStages));
        }
        for (const Instruction* load : streamed) {
            tiles.push_back(
                shared_tile(type(load->result()).shape, type(load->result()).dtype, true, stages));
        }
        if (any_read_ || any_written_ ||
            std::any_of(tiles.begin(), tiles.end(), [&](const SharedTile& tile) {
                return may_overlap_any(tile.buffer, shared_read_) ||
                       may_overlap_any(tile.buffer, shared_written_);
            })) {
            barrier();
        }
        line("// the first {} of {} stages", stages - 1, stages);
        line("i64 {}_next = {};", tag, low);
        for (int stage = 0; stage + 1 < stages; ++stage) {
            open(fmt::format("if ({}_next < {})", tag, high));
            copy_round(tag + "_next", fmt::format("{}", stage));
            close();
            line("ptx::cp_async_commit();");
            line("{}_next += {};", tag, step);
        }
        for (const SharedTile& tile : tiles) touch(tile.buffer);
        if (!copies_.empty()) {
            line("ptx::cp_async_wait<{}>();", stages - 1);
            shared_written_.merge(copies_);
            copies_.clear();
        }
    } else {
        settle_copies();
    }
    hoist_fragments(made);
    const std::vector<const Instruction*> ahead =
        streamed.empty() ? prefetched_loads(made) : std::vector<const Instruction*>();
    for (const Instruction* load : ahead) {
        before_global(load->operands[0], false);
        const Layout layout = home(load->result());
        const int raw = layout.registers() * size_of(type(load->result()).dtype) / 16;
        Prefetched& entry = prefetched_[load->result()];
        entry = {&made, numbered(fmt::format("{}_raw{}", tag, load->result().id), raw),
                 fmt::format("({} + {})", iv, step)};
        line("uint4 {} = {{}};", fmt::join(entry.raw, " = {}, "));
        prefetch(*load, low);
    }
    forget_order(made);
    loops_.emplace_back(step_ + 1, std::set<int>{});
    const Instruction* step_made = analysis_.constant(made.operands[2]);
    const bool positive =
        step_made != nullptr &&
        static_cast<std::int64_t>(step_made->get<ir::ConstantAttributes>().bits) > 0;
    if (!streamed.empty()) line("int {}_slot = 0;", tag);
    line("#pragma unroll 1");
    open(fmt::format("for (i64 {0} = {1}; {0} < {2}{3}; {0} += {4})", iv, low, high,
                     positive ? "" : fmt::format(" && {} > 0", step), step));
    ++step_;
    hold(induction, scalar_layout(), {iv});
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        hold(arguments[i], home(arguments[i]), carries[i]);
    }
    const std::map<Value, SharedTile> outer = streamed_;
    if (!streamed.empty()) {
        line("ptx::cp_async_wait<{}>();", stages - 2);
        barrier();
        open(fmt::format("if ({}_next < {})", tag, high));
        line("const int slot = {0}_slot == 0 ? {1} : {0}_slot - 1;", tag, stages - 1);
        copy_round(tag + "_next", "slot");
        close();
        line("ptx::cp_async_commit();");
        line("{}_next += {};", tag, step);
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            SharedTile tile = tiles[i];
            const std::string base = fresh("k");
            line("const u32 {} = {} + {}_slot * {}u;", base, tile.offset, tag,
                 tile.rows() * tile.row_bytes);
            tile.offset = base;
            streamed_[streamed[i]->result()] = tile;
            scopes_.back().shared[streamed[i]->result()] = tile;
            touch(tile.buffer);
        }
    }
    block(body);
    settle_copies();
    assign_carries(arguments, carries, body.terminator().operands);
    if (!streamed.empty()) line("{0}_slot = {0}_slot == {1} ? 0 : {0}_slot + 1;", tag, stages - 1);
    ++step_;
    const std::set<int> used = loops_.back().second;
    loops_.pop_back();
    for (int id : used) touch(id);
    for (const SharedTile& tile : tiles) touch(tile.buffer);
    close();
    streamed_ = outer;
    if (!streamed.empty()) line("ptx::cp_async_wait<0>();");
    forget_order(made);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (sums[i] != nullptr) join_lanes(*sums[i], carries[i]);
        hold(made.results[i], home(arguments[i]), carries[i]);
    }
}

void Emitter::while_loop(const Instruction& made) {
    const ir::Block &condition = made.blocks[0], &body = made.blocks[1];
    line("// while_loop");
    const std::vector<Names> carries = declare_carries(made.operands, body.arguments);
    settle_copies();
    hoist_fragments(made);
    forget_order(made);
    loops_.emplace_back(step_ + 1, std::set<int>{});
    open("while (true)");
    ++step_;
    for (std::size_t i = 0; i < carries.size(); ++i) {
        hold(condition.arguments[i], home(body.arguments[i]), carries[i]);
        hold(body.arguments[i], home(body.arguments[i]), carries[i]);
    }
    block(condition);
    settle_copies();
    line("if (!({})) break;", scalar(condition.terminator().operands[0]));
    block(body);
    settle_copies();
    assign_carries(body.arguments, carries, body.terminator().operands);
    ++step_;
    const std::set<int> used = loops_.back().second;
    loops_.pop_back();
    for (int id : used) touch(id);
    close();
    forget_order(made);
    for (std::size_t i = 0; i < carries.size(); ++i) {
        hold(made.results[i], home(body.arguments[i]), carries[i]);
    }
}

void Emitter::if_else(const Instruction& made) {
    line("// if_else");
    std::vector<Names> results;
    for (Value result : made.results) {
        results.push_back(numbered(fmt::format("v{}", result.id), home(result).registers()));
        line("{} {};", register_type(type(result).dtype), fmt::join(results.back(), ", "));
    }
    settle_copies();
    const std::string condition = scalar(made.operands[0]);
    for (std::size_t branch = 0; branch < 2; ++branch) {
        const ir::Block& body = made.blocks[branch];
        forget_order(made);
        open(branch == 0 ? fmt::format("if ({})", condition) : "else");
        block(body);
        settle_copies();
        assign_carries(made.results, results, body.terminator().operands);
        close();
    }
    forget_order(made);
    for (std::size_t i = 0; i < results.size(); ++i) {
        hold(made.results[i], home(made.results[i]), results[i]);
    }
}

}  // namespace tilewright::cuda
