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

/// Is an iteration so long that the copies before the first one may be a loop? Its text takes less
/// time to compile, but loops of forward passes, with two products, then lose 1%.
bool has_many_dots(const ir::Block& body) {
    constexpr int kMany = 3;
    return std::count_if(body.body.begin(), body.body.end(),
                         [](const Instruction& made) { return made.op == ir::Op::dot; }) >= kMany;
}

}  // namespace

void lower_for(Lowering& cx, const Instruction& made) {
    const ir::Block& body = made.blocks[0];
    const Value induction = body.arguments[0];
    const std::span<const Value> arguments = std::span(body.arguments).subspan(1);
    const schedule::Value low = index_of(cx, made.operands[0]),
                          high = index_of(cx, made.operands[1]),
                          step = index_of(cx, made.operands[2]);
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
    const auto followed_by = [&](schedule::Op op, schedule::Value at) {
        schedule::Instruction next = schedule::make(op, {at, step});
        if (may_wrap) next.operands.push_back(high);
        return next;
    };
    const std::set<Value> inside = Analysis::values_inside(made);
    const std::string tag = cx.fresh("l");
    std::vector<SharedTile> tiles;
    const auto number = [&](std::uint64_t bits) {
        schedule::Instruction& made_constant = cx.append(schedule::make(ir::Op::constant, {}));
        made_constant.attributes.push_back(schedule::element_attribute(DType::i32, bits));
        return cx.result_of(made_constant, "", cx.scalar_layout(), DType::i32).value;
    };
    Held next, slot;  // the iteration that is copied, and the slot that is read
    const auto copy_iteration = [&](schedule::Value to) {
        for (std::size_t i = 0; i < streamed.size(); ++i) {
            std::vector<schedule::Value> indices;
            for (Value operand : ir::access(*streamed[i]).indices) {
                indices.push_back(recompute(cx, operand, inside, induction, next.value));
            }
            copy_to_shared(cx, *streamed[i], tiles[i], std::move(indices), to);
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
        next = cx.declare(tag + "_next", cx.scalar_layout(), DType::i64, low);
        const auto copy_stage = [&](schedule::Value to) {
            cx.open(schedule::make(schedule::Op::scope, {next.value, high}));
            copy_iteration(to);
            cx.close();
            cx.append(schedule::Op::commit_copies);
            cx.append(followed_by(schedule::Op::advance, next.value));
        };
        if (stages > 2 && has_many_dots(body)) {
            // The slot is 0 again after the loop.
            slot = cx.declare(tag + "_slot", cx.scalar_layout(), DType::i32, number(0));
            const auto bound = [&](std::int64_t value) {
                schedule::Instruction& made_bound = cx.append(schedule::make(ir::Op::constant, {}));
                made_bound.attributes.push_back(
                    schedule::element_attribute(DType::i64, static_cast<std::uint64_t>(value)));
                return cx.result_of(made_bound, "", cx.scalar_layout(), DType::i64).value;
            };
            schedule::Instruction first =
                schedule::make(schedule::Op::loop, {bound(0), bound(stages - 1), bound(1)});
            first.flag("rises");
            const schedule::Value stage = cx.add(cx.fresh("stage"), cx.scalar_layout(), DType::i64);
            cx.open(std::move(first)).arguments = {stage};
            copy_stage(slot.value);
            cx.append(schedule::make(schedule::Op::next_slot, {slot.value}))
                .with("slots", stages - 1);
            cx.close();
        } else {
            for (int stage = 0; stage + 1 < stages; ++stage) {
                copy_stage(number(static_cast<std::uint64_t>(stage)));
            }
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
        schedule::Instruction& zero = cx.append(schedule::Op::declare).flag("zero");
        if (in_words) zero.flag("words");
        const std::string name = fmt::format("{}_raw{}", tag, load->result().id);
        cx.prefetched[load->result()] = {
            &made, in_words, cx.result_of(zero, name, layout, dtype), {}};
    }
    if (!ahead.empty()) prefetch(cx, ahead, low);
    const Instruction* step_made = cx.facts.constant(made.operands[2]);
    const bool positive =
        step_made != nullptr &&
        static_cast<std::int64_t>(step_made->get<ir::ConstantAttributes>().bits) > 0;
    if (!streamed.empty() && !slot.value) {
        slot = cx.declare(tag + "_slot", cx.scalar_layout(), DType::i32, number(0));
    }
    schedule::Instruction loop = schedule::make(schedule::Op::loop, {low, high, step});
    if (positive) loop.flag("rises");
    if (may_wrap) loop.flag("stops");
    const Held iv{cx.scalar_layout(),
                  cx.add(fmt::format("v{}", induction.id), cx.scalar_layout(), DType::i64)};
    cx.open(std::move(loop)).arguments = {iv.value};
    cx.begin_operation(name(made.op));
    cx.hold(induction, iv);
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
        schedule::Instruction& following =
            cx.append(followed_by(schedule::Op::following, iv.value));
        prefetch(cx, ahead, cx.result_of(following, "", iv.layout, DType::i64).value);
    }
    if (!streamed.empty()) {
        cx.append(schedule::Op::wait_copies).with("pending", stages - 2);
        cx.append(schedule::Op::barrier);
        for (const Instruction* load : streamed) cx.access_global(load->operands[0], false);
        cx.open(schedule::make(schedule::Op::scope, {next.value, high}));
        schedule::Instruction& before = cx.append(schedule::Op::before).with("slots", stages);
        before.operands = {slot.value};
        copy_iteration(
            cx.result_of(before, cx.fresh("slot"), cx.scalar_layout(), DType::i32).value);
        cx.close();
        cx.append(schedule::Op::commit_copies);
        cx.append(followed_by(schedule::Op::advance, next.value));
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
    if (!streamed.empty()) {
        cx.append(schedule::make(schedule::Op::next_slot, {slot.value})).with("slots", stages);
    }
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
    cx.open(schedule::make(schedule::Op::loop, {}));
    cx.begin_operation(name(made.op));
    for (std::size_t i = 0; i < carries.size(); ++i) {
        cx.hold(condition.arguments[i], carries[i]);
        cx.hold(body.arguments[i], carries[i]);
    }
    lower_block(cx, condition);
    cx.settle_copies();
    const schedule::Value holds = scalar_of(cx, condition.terminator().operands[0]);
    cx.append(schedule::Op::leave).operands = {holds};
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
    const schedule::Value condition = scalar_of(cx, made.operands[0]);
    for (std::size_t branch = 0; branch < 2; ++branch) {
        const ir::Block& body = made.blocks[branch];
        if (branch == 0) {
            cx.open(schedule::make(schedule::Op::branch, {condition}));
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
