// Loops and branches.
#include "cuda/codegen/lower_loops.h"

#include <algorithm>

#include "cuda/codegen/lower_ahead.h"
#include "cuda/codegen/lower_dots.h"
#include "cuda/codegen/lower_lanes.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

using ir::Instruction;
using ir::Value;

/// Variables for the carries of a loop, with their initial values.
std::vector<Held> declare_carries(Lowering& cx, std::span<const Value> init,
                                  std::span<const Value> arguments) {
    std::vector<Held> carries;
    for (std::size_t i = 0; i < init.size(); ++i) {
        const Layout layout = cx.home(arguments[i]);
        carries.push_back(cx.declare(fmt::format("v{}", arguments[i].id), layout,
                                     cx.type(arguments[i]).dtype, value_in(cx, init[i], layout)));
    }
    return carries;
}

void assign_carries(Lowering& cx, std::span<const Value> targets, const std::vector<Held>& carries,
                    std::span<const Value> values) {
    std::vector<schedule::Value> next;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        next.push_back(value_in(cx, values[i], cx.home(targets[i])));
    }
    cx.assign(carries, next);
}

}  // namespace

void lower_for(Lowering& cx, const Instruction& made) {
    const ir::Block& body = made.blocks[0];
    const Value induction = body.arguments[0];
    const std::span<const Value> arguments = std::span(body.arguments).subspan(1);
    const std::string low = index_text(cx, made.operands[0]),
                      high = index_text(cx, made.operands[1]),
                      step = index_text(cx, made.operands[2]);
    const bool marked = cx.target.mark_lines && made.location.line > 0;
    cx.comment("{}for_loop over {} carries", marked ? fmt::format("@{} ", made.location.line) : "",
               arguments.size());
    const std::vector<Held> carries =
        declare_carries(cx, std::span(made.operands).subspan(3), arguments);
    const auto deferred = cx.plan.sums.find(&made);
    const std::vector<const Instruction*> sums =
        deferred == cx.plan.sums.end() ? std::vector<const Instruction*>(arguments.size())
                                       : deferred->second;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (sums[i] == nullptr) continue;
        // The first of the lanes that share a sum starts from its initial value, the others from 0.
        cx.comment("v{} is summed between lanes after the loop", arguments[i].id);
        keep_first_lane(cx, *sums[i], carries[i]);
    }
    const auto staged = cx.plan.staged.loops.find(&made);
    const StagedLoop none;
    const auto& [streamed, stages] = staged == cx.plan.staged.loops.end() ? none : staged->second;
    // Where the induction variable might wrap after the last iteration, it stops at the end
    // instead. Copies are issued before the loop even if its step then turns out not to be
    // positive.
    const ir::Interval steps = cx.facts.range(made.operands[2]);
    std::int64_t most = 0;
    const bool may_wrap =
        __builtin_add_overflow(cx.facts.range(made.operands[1]).high, steps.high, &most) ||
        (!streamed.empty() && steps.low < 1);
    const auto after = [&](const std::string& at) {
        return may_wrap ? fmt::format("next_index({}, {}, {})", at, high, step)
                        : fmt::format("({} + {})", at, step);
    };
    const auto advance = [&](const std::string& at) {
        return may_wrap ? fmt::format("{} = {}", at, after(at)) : fmt::format("{} += {}", at, step);
    };
    const std::set<Value> inside = Analysis::values_inside(made);
    const std::string iv = fmt::format("v{}", induction.id), tag = cx.fresh("l");
    std::vector<SharedTile> tiles;
    const auto copy_iteration = [&](const std::string& text, const std::string& slot_text) {
        const schedule::Value at = cx.named(cx.scalar_layout(), DType::i64, {text}).value,
                              slot = cx.named(cx.scalar_layout(), DType::i32, {slot_text}).value;
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            std::vector<schedule::Value> indices;
            for (Value operand : ir::access(*streamed[i]).indices) {
                indices.push_back(recompute(cx, operand, inside, induction, at));
            }
            copy_to_shared(cx, *streamed[i], tiles[i], std::move(indices), slot);
        }
    };
    if (!streamed.empty()) {
        for (const Instruction* load : streamed) cx.access_global(load->operands[0], false);
        cx.buffers_for = fmt::format("{} stages of a `load`", stages);
        for (const Instruction* load : streamed) {
            tiles.push_back(shared_tile(cx, cx.type(load->result()).shape,
                                        cx.type(load->result()).dtype, true, stages));
        }
        schedule::Instruction& written = cx.append(schedule::Op::access);
        for (const SharedTile& tile : tiles) {
            written.with_symbol("writes", buffer_name(tile.buffer));
        }
        cx.comment("the first {} of {} stages", stages - 1, stages);
        cx.line("i64 {}_next = {};", tag, low);
        for (int stage = 0; stage + 1 < stages; ++stage) {
            cx.open(fmt::format("if ({}_next < {})", tag, high));
            copy_iteration(tag + "_next", fmt::format("{}", stage));
            cx.close();
            cx.append(schedule::Op::commit_copies);
            cx.line("{};", advance(tag + "_next"));
        }
        cx.settle_copies(stages - 1);
    } else {
        cx.settle_copies();
    }
    hoist_fragments(cx, made);
    const auto found = cx.plan.loads.ahead.find(&made);
    const std::vector<const Instruction*> ahead =
        found == cx.plan.loads.ahead.end() ? std::vector<const Instruction*>() : found->second;
    for (const Instruction* load : ahead) {
        cx.access_global(load->operands[0], false);
        const Layout layout = cx.home(load->result());
        const DType dtype = cx.type(load->result()).dtype;
        const bool in_words = cx.facts.access_vector(*load, layout) * size_of(dtype) == 16;
        schedule::Instruction& next = cx.append(schedule::Op::declare).flag("zero");
        if (in_words) next.flag("words");
        const std::string name = fmt::format("{}_raw{}", tag, load->result().id);
        cx.prefetched[load->result()] = {
            &made, in_words, cx.result_of(next, name, layout, dtype), {}};
    }
    if (!ahead.empty()) prefetch(cx, ahead, low);
    const Instruction* step_made = cx.facts.constant(made.operands[2]);
    const bool positive =
        step_made != nullptr &&
        static_cast<std::int64_t>(step_made->get<ir::ConstantAttributes>().bits) > 0;
    if (!streamed.empty()) cx.line("int {}_slot = 0;", tag);
    cx.line("#pragma unroll 1");
    cx.open(fmt::format("for (i64 {0} = {1}; {0} < {2}{3}; {4})", iv, low, high,
                        positive ? "" : fmt::format(" && {} > 0", step), advance(iv)),
            schedule::Op::loop);
    cx.begin_operation(name(made.op));
    cx.hold(induction, cx.variables(iv, cx.scalar_layout(), DType::i64));
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        cx.hold(arguments[i], carries[i]);
    }
    const std::set<const Instruction*> outer = cx.streamed;
    if (!ahead.empty()) {
        for (const Instruction* load : ahead) {
            Prefetched& entry = cx.prefetched.at(load->result());
            schedule::Instruction& now = cx.append(schedule::Op::copy);
            now.operands = {entry.next.value};
            entry.now = cx.result_of(now, fmt::format("{}_now{}", tag, load->result().id),
                                     entry.next.layout, cx.type(load->result()).dtype);
        }
        cx.comment("the next iteration's");
        prefetch(cx, ahead, after(iv));
    }
    if (!streamed.empty()) {
        cx.append(schedule::Op::wait_copies).with("pending", stages - 2);
        cx.append(schedule::Op::barrier);
        for (const Instruction* load : streamed) cx.access_global(load->operands[0], false);
        cx.open(fmt::format("if ({}_next < {})", tag, high));
        cx.line("const int slot = {0}_slot == 0 ? {1} : {0}_slot - 1;", tag, stages - 1);
        copy_iteration(tag + "_next", "slot");
        cx.close();
        cx.append(schedule::Op::commit_copies);
        cx.line("{};", advance(tag + "_next"));
        const Held slot = cx.named(cx.scalar_layout(), DType::i32, {tag + "_slot"});
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            SharedTile tile = tiles[i];
            hold_copied(cx, tile, slot.value);
            cx.streamed.insert(streamed[i]);
            cx.scopes.back().shared[streamed[i]->result()] = tile;
        }
    }
    lower_block(cx, body);
    cx.settle_copies();
    assign_carries(cx, arguments, carries, body.terminator().operands);
    if (!streamed.empty())
        cx.line("{0}_slot = {0}_slot == {1} ? 0 : {0}_slot + 1;", tag, stages - 1);
    cx.close();
    cx.streamed = outer;
    if (!streamed.empty()) cx.append(schedule::Op::wait_copies).with("pending", 0);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        cx.hold(made.results[i],
                sums[i] != nullptr ? join_lanes(cx, *sums[i], carries[i]) : carries[i]);
    }
}

void lower_while(Lowering& cx, const Instruction& made) {
    const ir::Block &condition = made.blocks[0], &body = made.blocks[1];
    cx.comment("while_loop");
    const std::vector<Held> carries = declare_carries(cx, made.operands, body.arguments);
    cx.settle_copies();
    hoist_fragments(cx, made);
    cx.open("while (true)", schedule::Op::loop);
    cx.begin_operation(name(made.op));
    for (std::size_t i = 0; i < carries.size(); ++i) {
        cx.hold(condition.arguments[i], carries[i]);
        cx.hold(body.arguments[i], carries[i]);
    }
    lower_block(cx, condition);
    cx.settle_copies();
    cx.line("if (!({})) break;", scalar_text(cx, condition.terminator().operands[0]));
    lower_block(cx, body);
    cx.settle_copies();
    assign_carries(cx, body.arguments, carries, body.terminator().operands);
    cx.close();
    for (std::size_t i = 0; i < carries.size(); ++i) {
        cx.hold(made.results[i], carries[i]);
    }
}

void lower_branch(Lowering& cx, const Instruction& made) {
    cx.comment("if_else");
    std::vector<Held> results;
    for (Value result : made.results) {
        results.push_back(
            cx.declare(fmt::format("v{}", result.id), cx.home(result), cx.type(result).dtype));
    }
    cx.settle_copies();
    const std::string condition = scalar_text(cx, made.operands[0]);
    for (std::size_t branch = 0; branch < 2; ++branch) {
        const ir::Block& body = made.blocks[branch];
        if (branch == 0) {
            cx.open(fmt::format("if ({})", condition), schedule::Op::branch);
        } else {
            cx.open_else();
        }
        lower_block(cx, body);
        cx.settle_copies();
        assign_carries(cx, made.results, results, body.terminator().operands);
        cx.close();
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        cx.hold(made.results[i], results[i]);
    }
}

}  // namespace tilewright::cuda
