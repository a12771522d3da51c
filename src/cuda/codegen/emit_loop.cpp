// Loops and branches.
#include <algorithm>

#include "cuda/codegen/emitter.h"
#include "support/check.h"

namespace tilewright::cuda {

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
    // A value that is itself a carry must be read before that carry is assigned. Where the text of
    // an element is an expression, that is of constants, of what was loaded or of the thread.
    for (std::size_t i = 0; i < targets.size(); ++i) {
        for (std::size_t r = 0; r < next[i].size(); ++r) {
            std::string& value = next[i][r];
            if (value == names[i][r]) continue;
            if (assigned.count(value) == 0) continue;
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

void Emitter::for_loop(const Instruction& made) {
    const ir::Block& body = made.blocks[0];
    const Value induction = body.arguments[0];
    const std::span<const Value> arguments = std::span(body.arguments).subspan(1);
    const std::string low = index(made.operands[0]), high = index(made.operands[1]),
                      step = index(made.operands[2]);
    const bool marked = target_.mark_lines && made.location.line > 0;
    line("// {}for_loop over {} carries", marked ? fmt::format("@{} ", made.location.line) : "",
         arguments.size());
    const std::vector<Names> carries =
        declare_carries(std::span(made.operands).subspan(3), arguments);
    const auto deferred = plan_.sums.find(&made);
    const std::vector<const Instruction*> sums =
        deferred == plan_.sums.end() ? std::vector<const Instruction*>(arguments.size())
                                     : deferred->second;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (sums[i] == nullptr) continue;
        // The first of the lanes that share a sum starts from its initial value, the others from 0.
        const Layout from = home(sums[i]->operands[0]);
        const std::size_t axis = sums[i]->get<ir::ReduceAttributes>().axis;
        int others = 0;
        for (std::size_t bit = 0; bit < from.lane.size(); ++bit) {
            if (from.unpack(from.lane[bit])[axis] != 0) others |= 1 << bit;
        }
        line("// v{} is summed between lanes after the loop", arguments[i].id);
        for (const std::string& name : carries[i]) {
            line("if ((lane & {}) != 0) {} = 0.0f;", others, name);
        }
    }
    const auto staged = plan_.staged.loops.find(&made);
    const StagedLoop none;
    const auto& [streamed, stages] = staged == plan_.staged.loops.end() ? none : staged->second;
    // Where the induction variable might wrap after the last iteration, it stops at the end
    // instead. Copies are issued before the loop even if its step then turns out not to be
    // positive.
    const ir::Interval steps = facts_.range(made.operands[2]);
    std::int64_t most = 0;
    const bool may_wrap =
        __builtin_add_overflow(facts_.range(made.operands[1]).high, steps.high, &most) ||
        (!streamed.empty() && steps.low < 1);
    const auto after = [&](const std::string& at) {
        return may_wrap ? fmt::format("next_index({}, {}, {})", at, high, step)
                        : fmt::format("({} + {})", at, step);
    };
    const auto advance = [&](const std::string& at) {
        return may_wrap ? fmt::format("{} = {}", at, after(at)) : fmt::format("{} += {}", at, step);
    };
    const std::set<Value> inside = Analysis::values_inside(made);
    const std::string iv = fmt::format("v{}", induction.id), tag = fresh("l");
    std::vector<SharedTile> tiles;
    const auto copy_iteration = [&](const std::string& at, const std::string& slot) {
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
        for (const Instruction* load : streamed) access_global(load->operands[0], false);
        buffers_for_ = fmt::format("{} stages of a `load`", stages);
        for (const Instruction* load : streamed) {
            tiles.push_back(
                shared_tile(type(load->result()).shape, type(load->result()).dtype, true, stages));
        }
        schedule::Instruction& written = append(schedule::Op::access);
        for (const SharedTile& tile : tiles) {
            written.with_symbol("writes", buffer_name(tile.buffer));
        }
        line("// the first {} of {} stages", stages - 1, stages);
        line("i64 {}_next = {};", tag, low);
        for (int stage = 0; stage + 1 < stages; ++stage) {
            open(fmt::format("if ({}_next < {})", tag, high));
            copy_iteration(tag + "_next", fmt::format("{}", stage));
            close();
            append(schedule::Op::commit_copies);
            line("{};", advance(tag + "_next"));
        }
        settle_copies(stages - 1);
    } else {
        settle_copies();
    }
    hoist_fragments(made);
    const auto found = plan_.loads.ahead.find(&made);
    const std::vector<const Instruction*> ahead =
        found == plan_.loads.ahead.end() ? std::vector<const Instruction*>() : found->second;
    for (const Instruction* load : ahead) {
        access_global(load->operands[0], false);
        const int registers = home(load->result()).registers();
        const DType dtype = type(load->result()).dtype;
        const bool packed =
            facts_.access_vector(*load, home(load->result())) * size_of(dtype) == 16;
        const int names = packed ? registers * size_of(dtype) / 16 : registers;
        const std::string name = fmt::format("{}_raw{}", tag, load->result().id);
        prefetched_[load->result()] = {&made, packed, numbered(name, names),
                                       numbered(name + "_now", names)};
        line("{} {} = {{}};", packed ? "uint4" : register_type(dtype),
             fmt::join(prefetched_[load->result()].next, " = {}, "));
    }
    if (!ahead.empty()) prefetch(ahead, low);
    const Instruction* step_made = facts_.constant(made.operands[2]);
    const bool positive =
        step_made != nullptr &&
        static_cast<std::int64_t>(step_made->get<ir::ConstantAttributes>().bits) > 0;
    if (!streamed.empty()) line("int {}_slot = 0;", tag);
    line("#pragma unroll 1");
    open(fmt::format("for (i64 {0} = {1}; {0} < {2}{3}; {4})", iv, low, high,
                     positive ? "" : fmt::format(" && {} > 0", step), advance(iv)),
         schedule::Op::loop);
    begin_operation(name(made.op));
    hold(induction, scalar_layout(), {iv});
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        hold(arguments[i], home(arguments[i]), carries[i]);
    }
    const std::set<const Instruction*> outer = streamed_;
    if (!ahead.empty()) {
        for (const Instruction* load : ahead) {
            const Prefetched& entry = prefetched_.at(load->result());
            const std::string word =
                entry.packed ? "uint4" : register_type(type(load->result()).dtype);
            for (std::size_t i = 0; i < entry.now.size(); ++i) {
                line("const {} {} = {};", word, entry.now[i], entry.next[i]);
            }
        }
        line("// the next iteration's");
        prefetch(ahead, after(iv));
    }
    if (!streamed.empty()) {
        append(schedule::Op::wait_copies).with("pending", stages - 2);
        append(schedule::Op::barrier);
        for (const Instruction* load : streamed) access_global(load->operands[0], false);
        open(fmt::format("if ({}_next < {})", tag, high));
        line("const int slot = {0}_slot == 0 ? {1} : {0}_slot - 1;", tag, stages - 1);
        copy_iteration(tag + "_next", "slot");
        close();
        append(schedule::Op::commit_copies);
        line("{};", advance(tag + "_next"));
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            SharedTile tile = tiles[i];
            const std::string base = fresh("k");
            line("const u32 {} = {} + {}_slot * {}u;", base, tile.offset, tag,
                 tile.rows() * tile.row_bytes);
            tile.offset = base;
            streamed_.insert(streamed[i]);
            scopes_.back().shared[streamed[i]->result()] = tile;
            touch(tile.buffer);
        }
    }
    block(body);
    settle_copies();
    assign_carries(arguments, carries, body.terminator().operands);
    if (!streamed.empty()) line("{0}_slot = {0}_slot == {1} ? 0 : {0}_slot + 1;", tag, stages - 1);
    close();
    streamed_ = outer;
    if (!streamed.empty()) append(schedule::Op::wait_copies).with("pending", 0);
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
    open("while (true)", schedule::Op::loop);
    begin_operation(name(made.op));
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
    close();
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
        if (branch == 0) {
            open(fmt::format("if ({})", condition), schedule::Op::branch);
        } else {
            open_else();
        }
        block(body);
        settle_copies();
        assign_carries(made.results, results, body.terminator().operands);
        close();
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        hold(made.results[i], home(made.results[i]), results[i]);
    }
}

}  // namespace tilewright::cuda
