// Runs the bytecode of one program of the grid: control flow and scalars.
#include "cpu/execute.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "hwy/cache_control.h"
#include "support/check.h"

namespace tilewright::cpu {

ResolvedTile resolve(const Frame& frame, const Tile& tile) {
    ResolvedTile result;
    result.dtype = tile.dtype;
    result.element = size_of(tile.dtype);
    result.data = frame.address(tile.home, tile.index) + tile.offset * result.element;
    result.stride = tile.stride;
    result.lane_axis = tile.lane_axis;
    result.width = tile.width;
    result.panel_stride = tile.panel_stride;
    if (tile.home == Home::view) {
        const View& view = frame.views[tile.index];
        result.width = view.width;
        result.panel_stride = view.panel_stride;
        result.lane_axis = -1;
        for (std::size_t axis = 0; axis < tile.view_axis.size(); ++axis) {
            const int from = tile.view_axis[axis];
            result.stride[axis] = from < 0 ? 0 : view.stride[from];
            if (from >= 0 && from == view.lane_axis) result.lane_axis = static_cast<int>(axis);
            if (from != tile.unit_axis) result.stride[axis] /= tile.group;
        }
    }
    return result;
}

namespace {

/// i64 arithmetic of loop bounds and indices, the most frequent scalar ops.
bool execute_integer(Frame& frame, const ScalarOp& op) {
    const std::uint64_t a = frame.slots[op.in[0]];
    const std::uint64_t b = frame.slots[op.in[1]];
    const auto sa = static_cast<std::int64_t>(a);
    const auto sb = static_cast<std::int64_t>(b);
    std::uint64_t& out = frame.slots[op.out];
    switch (op.op) {
        case ir::Op::add:
            out = a + b;
            return true;
        case ir::Op::sub:
            out = a - b;
            return true;
        case ir::Op::mul:
            out = a * b;
            return true;
        case ir::Op::min:
            out = sa < sb ? a : b;
            return true;
        case ir::Op::max:
            out = sa > sb ? a : b;
            return true;
        case ir::Op::lt:
            out = sa < sb;
            return true;
        case ir::Op::le:
            out = sa <= sb;
            return true;
        case ir::Op::gt:
            out = sa > sb;
            return true;
        case ir::Op::ge:
            out = sa >= sb;
            return true;
        case ir::Op::eq:
            out = a == b;
            return true;
        case ir::Op::ne:
            out = a != b;
            return true;
        default:
            return false;
    }
}

/// Float ops with one correct IEEE 754 result, computed as the kernels of strips do.
template <typename T, typename Bits>
bool execute_float(Frame& frame, const ScalarOp& op) {
    const auto in = [&](std::size_t i) {
        return std::bit_cast<T>(static_cast<Bits>(frame.slots[op.in[i]]));
    };
    T out;
    switch (op.op) {
        case ir::Op::add:
            out = in(0) + in(1);
            break;
        case ir::Op::sub:
            out = in(0) - in(1);
            break;
        case ir::Op::mul:
            out = in(0) * in(1);
            break;
        case ir::Op::div:
            out = in(0) / in(1);
            break;
        case ir::Op::rsqrt:
            out = 1 / std::sqrt(in(0));
            break;
        default:
            return false;
    }
    frame.slots[op.out] = std::bit_cast<Bits>(out);
    return true;
}

void execute_scalar(Frame& frame, const ScalarOp& op) {
    if (op.dtype == DType::i64 && op.num_inputs == 2 && execute_integer(frame, op)) return;
    if (op.dtype == DType::f32 && execute_float<float, std::uint32_t>(frame, op)) return;
    if (op.dtype == DType::f64 && execute_float<double, std::uint64_t>(frame, op)) return;
    Strip strip;
    strip.rows = strip.lanes = 1;
    for (int i = 0; i < op.num_inputs; ++i) {
        strip.in[i] = {frame.slots + op.in[i], 0, 0};
    }
    std::uint64_t out = 0;
    strip.out = &out;
    op.function(strip);
    frame.slots[op.out] = out;
}

void execute_query(Frame& frame, const ScalarQuery& query) {
    const std::size_t axis = query.axis;
    std::int64_t value = 0;
    switch (query.op) {
        case ir::Op::program_id:
            value = frame.id[axis];
            break;
        case ir::Op::num_programs:
            value = frame.grid[axis];
            break;
        default:
            value = frame.refs[query.ref].extents[axis];
            break;
    }
    frame.slots[query.out] = static_cast<std::uint64_t>(value);
}

bool is_true(const Frame& frame, std::uint32_t slot) {
    return (frame.slots[slot] & 0xff) != 0;
}

/// Where an instruction stands in the variant, and with it in a table of jumps.
template <typename T, std::size_t kAt = 0>
constexpr std::size_t place_of() {
    if constexpr (std::is_same_v<std::variant_alternative_t<kAt, Instruction>, T>)
        return kAt;
    else
        return place_of<T, kAt + 1>();
}

/// Scalars and jumps, shared by running and estimating. Returns false for other instructions.
inline bool execute_control(Frame& frame, const Instruction& instruction, std::size_t& next) {
    const auto as = [&]<typename T>(std::type_identity<T>) -> const T& {
        return *std::get_if<T>(&instruction);
    };
    switch (instruction.index()) {
        case place_of<ScalarOp>():
            execute_scalar(frame, as(std::type_identity<ScalarOp>()));
            return true;
        case place_of<ScalarMove>(): {
            const auto& move = as(std::type_identity<ScalarMove>());
            frame.slots[move.to] = frame.slots[move.from];
            return true;
        }
        case place_of<ScalarQuery>():
            execute_query(frame, as(std::type_identity<ScalarQuery>()));
            return true;
        case place_of<Jump>():
            next = as(std::type_identity<Jump>()).target;
            return true;
        case place_of<JumpUnless>(): {
            const auto& branch = as(std::type_identity<JumpUnless>());
            if (!is_true(frame, branch.condition)) next = branch.target;
            return true;
        }
        case place_of<LoopTest>(): {
            const auto& test = as(std::type_identity<LoopTest>());
            const std::int64_t step = frame.integer(test.step);
            if (step <= 0) user_error("for_loop", "expected step > 0 but got {}", step);
            if (frame.integer(test.iv) >= frame.integer(test.hi)) next = test.target;
            return true;
        }
        case place_of<LoopNext>(): {
            const auto& step = as(std::type_identity<LoopNext>());
            // An overflow ends the loop: no index is greater than the largest.
            std::int64_t value = 0;
            if (__builtin_add_overflow(frame.integer(step.iv), frame.integer(step.step), &value)) {
                next = std::get<LoopTest>(frame.program->code[step.target]).target;
            } else {
                frame.slots[step.iv] = static_cast<std::uint64_t>(value);
                next = step.target;
            }
            return true;
        }
        default:
            return false;
    }
}

void execute(const Frame& frame, const MachineCode& code) {
    code.function(frame.arena, frame.slots, frame.program->constants.data(), frame.views);
}

struct TileExecutor {
    Frame& frame;
    template <typename InstructionType>
    void operator()(const InstructionType& instruction) const {
        if constexpr (requires { execute(frame, instruction); }) execute(frame, instruction);
    }
};

/// Runs all instructions; `around(at, body)` runs the body of the one at `at`, which is on tiles.
template <typename Around>
void execute_all(Frame& frame, const Around& around) {
    const std::vector<Instruction>& code = frame.program->code;
    std::size_t at = 0;
    while (!std::holds_alternative<Halt>(code[at])) {
        std::size_t next = at + 1;
        if (!execute_control(frame, code[at], next)) {
            around(at, [&] { std::visit(TileExecutor{frame}, code[at]); });
            if (const auto* machine = std::get_if<MachineCode>(&code[at])) next += machine->count;
        }
        at = next;
    }
    finish_stores(frame);
}

}  // namespace

void execute(Frame& frame) {
    execute_all(frame, [](std::size_t, const auto& body) { body(); });
}

void execute(Frame& frame, Stopwatch& stopwatch) {
    stopwatch.start();
    execute_all(frame, [&](std::size_t at, const auto& body) {
        stopwatch.begin();
        body();
        stopwatch.end(at);
        const auto* view = std::get_if<LoadView>(&frame.program->code[at]);
        if (view && !frame.views[view->view].in_array) stopwatch.copied(at);
    });
    stopwatch.stop();
}

void execute_before(Frame& frame, std::size_t end) {
    for (std::size_t at = 0; at < end; ++at) {
        const Instruction& instruction = frame.program->code[at];
        std::size_t next = at + 1;
        if (!execute_control(frame, instruction, next))
            std::visit(TileExecutor{frame}, instruction);
        if (const auto* machine = std::get_if<MachineCode>(&instruction)) at += machine->count;
    }
}

void finish_stores(const Frame& frame) {
    if (frame.streamed) hwy::FlushStream();
}

std::int64_t estimate_cost(Frame& frame) {
    const std::vector<Instruction>& code = frame.program->code;
    std::int64_t cost = 0;
    std::size_t at = 0;
    while (!std::holds_alternative<Halt>(code[at])) {
        std::size_t next = at + 1;
        if (const auto* test = std::get_if<LoopTest>(&code[at])) {
            const std::int64_t span = frame.integer(test->hi) - frame.integer(test->iv);
            if (span > 0) cost += span / std::max<std::int64_t>(frame.integer(test->step), 1);
            next = test->target;
        } else if (const auto* jump = std::get_if<Jump>(&code[at])) {
            // Backwards only at the end of a while loop, whose trip count cannot be predicted.
            if (jump->target > at) next = jump->target;
        } else {
            execute_control(frame, code[at], next);
        }
        at = next;
    }
    return cost;
}

}  // namespace tilewright::cpu
