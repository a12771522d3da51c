// The scalar reference machine: programs, control flow and memory accesses.
#include "cpu/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>

#include "cpu/arguments.h"
#include "cpu/checker.h"
#include "cpu/memory.h"
#include "cpu/tile_value.h"
#include "ir/access.h"
#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

using ir::Instruction;
using ir::Op;
using ir::Value;

/// Values of one activation of a function.
struct Frame {
    explicit Frame(const ir::Function& f)
        : function(&f), tiles(f.num_values()), memories(f.num_values(), nullptr) {}

    const TileValue& tile(Value value) const { return tiles[value.id]; }
    TileValue& tile(Value value) { return tiles[value.id]; }
    Memory& memory(Value ref) const { return *memories[ref.id]; }

    const ir::Function* function;
    std::vector<TileValue> tiles;   ///< by value id
    std::vector<Memory*> memories;  ///< by value id, null for tiles
};

class Interpreter {
  public:
    Interpreter(const ir::Function& kernel, const ir::Arguments& arguments,
                const CheckOptions* options);
    void run();

  private:
    void bind_parameters();
    void begin_program(std::int64_t number);

    void run_block(const ir::Block& block, Frame& frame);
    void step(const Instruction& instruction, Frame& frame);
    TileValue& result_of(const Instruction& instruction, Frame& frame);

    void for_loop(const Instruction& instruction, Frame& frame);
    void while_loop(const Instruction& instruction, Frame& frame);
    void if_else(const Instruction& instruction, Frame& frame);
    void call(const Instruction& instruction, Frame& frame);
    void associative_scan(const Instruction& instruction, Frame& frame);

    void load(const Instruction& instruction, Frame& frame);
    void write(const Instruction& instruction, Frame& frame);
    std::uint64_t stored_bits(const Instruction& instruction, const Frame& frame,
                              const ir::Access& operands, std::size_t lane,
                              std::uint64_t old) const;
    void debug_print(const Instruction& instruction, const Frame& frame) const;

    const ir::Function& kernel_;
    const ir::Arguments& arguments_;
    std::deque<Memory> memories_;  ///< of the kernel's Refs; addresses stay valid
    std::vector<Memory*> scratch_;
    Frame frame_;
    std::vector<std::int64_t> program_;  ///< coordinates of the running program
    std::optional<Checker> checker_;
};

std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> extents) {
    std::vector<std::int64_t> strides(extents.size());
    std::int64_t stride = 1;
    for (std::size_t d = extents.size(); d-- > 0; stride *= extents[d]) strides[d] = stride;
    return strides;
}

Interpreter::Interpreter(const ir::Function& kernel, const ir::Arguments& arguments,
                         const CheckOptions* options)
    : kernel_(kernel), arguments_(arguments), frame_(kernel) {
    check_arguments(kernel, arguments);
    bind_parameters();
    if (options != nullptr) {
        std::vector<const Memory*> refs;
        for (const Memory& memory : memories_) {
            if (memory.argument >= 0) refs.push_back(&memory);
        }
        checker_.emplace(kernel, arguments, refs, *options);
        checker_->poison_outputs();
    }
}

void Interpreter::bind_parameters() {
    std::size_t next_ref = 0, next_scalar = 0;
    for (Value parameter : kernel_.parameters()) {
        if (!kernel_.is_ref(parameter)) {
            TileValue& scalar = frame_.tile(parameter);
            scalar.reset(kernel_.type(parameter));
            const DType dtype = scalar.type.dtype;
            scalar.bits[0] = from_constant(dtype, arguments_.scalars[next_scalar++]);
            continue;
        }
        const ir::RefType& type = kernel_.ref_type(parameter);
        Memory& memory = memories_.emplace_back();
        memory.name = kernel_.value_name(parameter);
        memory.dtype = type.dtype;
        const std::size_t rank = type.rank();
        if (type.space == ir::Space::scratch) {
            memory.extents = type.extents;
            memory.strides = row_major_strides(type.extents);
            std::size_t elements = 1;
            for (std::int64_t extent : type.extents) elements *= static_cast<std::size_t>(extent);
            memory.storage.resize(elements * static_cast<std::size_t>(size_of(type.dtype)));
            memory.data = memory.storage.data();
            scratch_.push_back(&memory);
        } else {
            const ir::RefArgument& argument = arguments_.refs[next_ref];
            memory.argument = static_cast<int>(next_ref++);
            memory.extents.assign(argument.extents.begin(), argument.extents.begin() + rank);
            memory.strides.assign(argument.strides.begin(), argument.strides.begin() + rank);
            memory.data = static_cast<std::byte*>(argument.data);
        }
        if (memory.name.empty()) memory.name = fmt::format("ref{}", memories_.size() - 1);
        frame_.memories[parameter.id] = &memory;
    }
}

void Interpreter::run() {
    const auto& grid = arguments_.grid;
    if (std::find(grid.begin(), grid.end(), 0) != grid.end()) return;
    program_.assign(grid.size(), 0);
    for (std::int64_t number = 0;; ++number) {
        begin_program(number);
        run_block(kernel_.body, frame_);
        std::size_t axis = grid.size();
        while (axis > 0 && ++program_[axis - 1] == grid[axis - 1]) program_[--axis] = 0;
        if (axis == 0) return;
    }
}

void Interpreter::begin_program(std::int64_t number) {
    for (Memory* scratch : scratch_) {
        std::fill(scratch->storage.begin(), scratch->storage.end(), std::byte{0});
    }
    if (checker_) checker_->begin_program(number, scratch_);
}

void Interpreter::run_block(const ir::Block& block, Frame& frame) {
    for (const Instruction& instruction : block.body) step(instruction, frame);
}

TileValue& Interpreter::result_of(const Instruction& instruction, Frame& frame) {
    TileValue& result = frame.tile(instruction.result());
    result.reset(frame.function->type(instruction.result()));
    return result;
}

void Interpreter::step(const Instruction& instruction, Frame& frame) {
    const Op op = instruction.op;
    const auto scalar_result = [&](std::int64_t value) {
        result_of(instruction, frame).bits[0] = static_cast<std::uint64_t>(value);
    };
    const auto axis = [&] {
        return static_cast<std::size_t>(instruction.get<ir::AxisAttributes>().axis);
    };
    const auto operand = [&](std::size_t i) -> const TileValue& {
        return frame.tile(instruction.operands[i]);
    };
    switch (op) {
        case Op::yield:
            return;
        case Op::constant: {
            TileValue& result = result_of(instruction, frame);
            const std::uint64_t constant = instruction.get<ir::ConstantAttributes>().bits;
            std::fill(result.bits.begin(), result.bits.end(),
                      from_constant(result.type.dtype, constant));
            return;
        }
        case Op::iota:
            return apply_iota(static_cast<int>(axis()), result_of(instruction, frame));
        case Op::program_id:
            return scalar_result(program_[axis()]);
        case Op::num_programs:
            return scalar_result(arguments_.grid[axis()]);
        case Op::extent:
            return scalar_result(frame.memory(instruction.operands[0]).extents[axis()]);
        case Op::load:
            return load(instruction, frame);
        case Op::store:
        case Op::atomic_add:
        case Op::atomic_max:
        case Op::atomic_min:
        case Op::atomic_xchg:
        case Op::atomic_cas:
            return write(instruction, frame);
        case Op::reduce:
            return apply_reduce(instruction.get<ir::ReduceAttributes>(), operand(0),
                                result_of(instruction, frame));
        case Op::scan:
            return apply_scan(instruction.get<ir::ReduceAttributes>(), operand(0),
                              result_of(instruction, frame));
        case Op::sort:
        case Op::argsort:
            return apply_sort(op, instruction.get<ir::SortAttributes>(), operand(0),
                              result_of(instruction, frame));
        case Op::dot:
            return apply_dot(instruction.get<ir::DotAttributes>(), operand(0), operand(1),
                             instruction.operands.size() > 2 ? &operand(2) : nullptr,
                             result_of(instruction, frame));
        case Op::random_bits:
            return apply_random_bits(operand(0), operand(1), result_of(instruction, frame));
        case Op::debug_print:
            return debug_print(instruction, frame);
        case Op::debug_check:
            if (checker_) checker_->debug_check(instruction, operand(0));
            return;
        case Op::for_loop:
            return for_loop(instruction, frame);
        case Op::while_loop:
            return while_loop(instruction, frame);
        case Op::if_else:
            return if_else(instruction, frame);
        case Op::call:
            return call(instruction, frame);
        case Op::associative_scan:
            return associative_scan(instruction, frame);
        default:
            break;
    }
    std::vector<const TileValue*> operands;
    for (Value value : instruction.operands) operands.push_back(&frame.tile(value));
    TileValue& result = result_of(instruction, frame);
    if (ir::is_elementwise(op)) {
        apply_elementwise(instruction, operands, result);
    } else {
        apply_movement(instruction, operands, result);
    }
}

// ---- Control flow.

/// Copies values all at once: a yield may permute its targets.
void assign(std::span<const Value> from, std::span<const Value> to, Frame& frame) {
    std::vector<TileValue> copies;
    for (Value value : from) copies.push_back(frame.tile(value));
    for (std::size_t i = 0; i < to.size(); ++i) frame.tile(to[i]) = std::move(copies[i]);
}

std::span<const Value> yielded(const ir::Block& block) {
    return block.terminator().operands;
}

void Interpreter::for_loop(const Instruction& instruction, Frame& frame) {
    const std::span<const Value> operands = instruction.operands;
    if (checker_) {
        for (std::size_t i = 0; i < 3; ++i) {
            checker_->require_defined(frame.tile(operands[i]).poison_at(0), instruction,
                                      "the bounds of the for_loop");
        }
    }
    const std::int64_t low = frame.tile(operands[0]).scalar();
    const std::int64_t high = frame.tile(operands[1]).scalar();
    const std::int64_t step = frame.tile(operands[2]).scalar();
    if (checker_ && step <= 0) checker_->bad_step(instruction, step);

    const ir::Block& body = instruction.blocks[0];
    const Value iv = body.arguments[0];
    const std::span<const Value> carries = std::span(body.arguments).subspan(1);
    assign(operands.subspan(3), carries, frame);
    std::int64_t i = low;
    while (step > 0 && i < high) {
        frame.tile(iv).reset(frame.function->type(iv));
        frame.tile(iv).bits[0] = static_cast<std::uint64_t>(i);
        run_block(body, frame);
        assign(yielded(body), carries, frame);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    assign(carries, instruction.results, frame);
}

void Interpreter::while_loop(const Instruction& instruction, Frame& frame) {
    const ir::Block& condition = instruction.blocks[0];
    const ir::Block& body = instruction.blocks[1];
    assign(instruction.operands, condition.arguments, frame);
    for (;;) {
        run_block(condition, frame);
        const TileValue& go_on = frame.tile(yielded(condition)[0]);
        if (checker_) {
            checker_->require_defined(go_on.poison_at(0), instruction,
                                      "the condition of the while_loop");
        }
        if (go_on.bits[0] == 0) break;
        assign(condition.arguments, body.arguments, frame);
        run_block(body, frame);
        assign(yielded(body), condition.arguments, frame);
    }
    assign(condition.arguments, instruction.results, frame);
}

void Interpreter::if_else(const Instruction& instruction, Frame& frame) {
    const TileValue& condition = frame.tile(instruction.operands[0]);
    if (checker_) {
        checker_->require_defined(condition.poison_at(0), instruction,
                                  "the condition of the if_else");
    }
    const ir::Block& taken = instruction.blocks[condition.bits[0] != 0 ? 0 : 1];
    run_block(taken, frame);
    assign(yielded(taken), instruction.results, frame);
}

void Interpreter::call(const Instruction& instruction, Frame& frame) {
    const ir::Function& callee = *instruction.get<ir::CallAttributes>().callee;
    const std::vector<Value>& parameters = callee.parameters();
    Frame inner(callee);
    std::vector<TileValue> arguments;  // broadcast to the shape of the results
    const ir::Shape shape = frame.function->type(instruction.results.at(0)).shape;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
        TileValue& argument = arguments.emplace_back();
        if (callee.is_ref(parameters[p])) {
            inner.memories[parameters[p].id] = &frame.memory(instruction.operands[p]);
            continue;
        }
        const TileValue& operand = frame.tile(instruction.operands[p]);
        const TileValue* const only = &operand;
        argument.reset({operand.type.dtype, shape});
        Instruction broadcast;
        broadcast.op = Op::broadcast;
        apply_movement(broadcast, {&only, 1}, argument);
    }
    for (Value result : instruction.results) {
        frame.tile(result).reset(frame.function->type(result));
    }
    const std::size_t size = shape.size();
    for (std::size_t lane = 0; lane < size; ++lane) {
        for (std::size_t p = 0; p < parameters.size(); ++p) {
            if (callee.is_ref(parameters[p])) continue;
            TileValue& parameter = inner.tile(parameters[p]);
            parameter.reset(callee.type(parameters[p]));
            parameter.bits[0] = arguments[p].bits[lane];
            parameter.set_poison(0, arguments[p].poison_at(lane));
        }
        run_block(callee.body, inner);
        const std::span<const Value> values = yielded(callee.body);
        for (std::size_t r = 0; r < values.size(); ++r) {
            const TileValue& value = inner.tile(values[r]);
            TileValue& result = frame.tile(instruction.results[r]);
            result.bits[lane] = value.bits[0];
            result.set_poison(lane, value.poison_at(0));
        }
    }
}

/// One element after the other along the axis: the first stays as it is.
void Interpreter::associative_scan(const Instruction& instruction, Frame& frame) {
    const auto& [combine, axis, reverse] = instruction.get<ir::CombineAttributes>();
    const std::size_t n = instruction.results.size();
    const std::vector<Value>& parameters = combine->parameters();
    Frame inner(*combine);
    const auto set = [&](std::size_t parameter, const TileValue& from, std::size_t at) {
        TileValue& to = inner.tile(parameters[parameter]);
        to.reset(combine->type(parameters[parameter]));
        to.bits[0] = from.bits[at];
        to.set_poison(0, from.poison_at(at));
    };
    const ir::Shape shape = frame.function->type(instruction.result()).shape;
    for (std::size_t i = 0; i < n; ++i) {
        frame.tile(instruction.results[i]).reset(frame.function->type(instruction.results[i]));
    }
    const Lines lines(shape, axis);
    for (std::size_t line = 0; line < lines.outer * lines.inner; ++line) {
        std::size_t before = 0;
        for (std::size_t step = 0; step < lines.length; ++step) {
            const std::size_t at = lines.at(
                line / lines.inner, reverse ? lines.length - 1 - step : step, line % lines.inner);
            const std::span<const Value> values =
                step > 0 ? yielded(combine->body) : std::span<const Value>();
            if (step > 0) {
                for (std::size_t i = 0; i < n; ++i) {
                    set(i, frame.tile(instruction.results[i]), before);
                    set(n + i, frame.tile(instruction.operands[i]), at);
                }
                for (std::size_t i = n; i < instruction.operands.size(); ++i)
                    set(n + i, frame.tile(instruction.operands[i]), 0);
                run_block(combine->body, inner);
            }
            for (std::size_t i = 0; i < n; ++i) {
                const TileValue& from =
                    step > 0 ? inner.tile(values[i]) : frame.tile(instruction.operands[i]);
                TileValue& to = frame.tile(instruction.results[i]);
                to.bits[at] = from.bits[step > 0 ? 0 : at];
                to.set_poison(at, from.poison_at(step > 0 ? 0 : at));
            }
            before = at;
        }
    }
}

// ---- Memory.

std::vector<const TileValue*> tiles_of(std::span<const Value> values, const Frame& frame) {
    std::vector<const TileValue*> tiles;
    for (Value value : values) tiles.push_back(&frame.tile(value));
    return tiles;
}

/// An element of a tile; a scalar stands for every lane.
std::size_t element_at(const TileValue& tile, std::size_t lane) {
    return tile.type.is_scalar() ? 0 : lane;
}

/// Whether a lane takes part in its access, and the poison of that condition.
struct Active {
    bool active = true;
    Poison poison = 0;
};

Active active_lane(Value mask, const Frame& frame, std::size_t lane) {
    if (!mask) return {};
    const TileValue& tile = frame.tile(mask);
    const std::size_t at = element_at(tile, lane);
    return {tile.bits[at] != 0, tile.poison_at(at)};
}

Poison first_of(Poison a, Poison b) {
    return a != 0 ? a : b;
}

void Interpreter::load(const Instruction& instruction, Frame& frame) {
    const ir::Access operands = ir::access(instruction);
    const bool proved = instruction.get<ir::AccessAttributes>().in_bounds;
    const Memory& memory = frame.memory(operands.ref);
    const Lanes lanes(*frame.function, instruction, memory, tiles_of(operands.indices, frame));
    std::optional<Checker::Access> check;
    if (checker_) check = checker_->begin_access(instruction, memory, lanes);

    TileValue& result = result_of(instruction, frame);
    for (std::size_t i = 0; i < result.bits.size(); ++i) {
        const auto number = static_cast<std::int64_t>(i);
        const Active mask = active_lane(operands.mask, frame, i);
        Poison poison = mask.poison;
        Lanes::Lane lane;
        if (mask.active) {
            lane = lanes.lane(number);
            poison = first_of(poison, lane.poison);
            if (proved && !lane.inside && check) checker_->claimed_inside(*check, lane);
            TW_ASSERT(lane.inside || !proved, "an access proved in bounds leaves {}", memory.name);
        }
        if (mask.active && lane.inside) {
            result.bits[i] = read_bits(memory.element(lane.offset), memory.dtype);
            if (check) poison = first_of(poison, checker_->read(*check, number, lane));
        } else if (operands.other) {
            const TileValue& other = frame.tile(operands.other);
            const std::size_t at = element_at(other, i);
            result.bits[i] = other.bits[at];
            poison = first_of(poison, other.poison_at(at));
        } else if (mask.active && check) {
            const Poison outside = checker_->read_outside(*check, number);
            if (outside != 0) result.bits[i] = Checker::undefined_bits(memory.dtype);
            poison = first_of(poison, outside);
        }
        result.set_poison(i, poison);
    }
}

std::uint64_t Interpreter::stored_bits(const Instruction& instruction, const Frame& frame,
                                       const ir::Access& operands, std::size_t lane,
                                       std::uint64_t old) const {
    const auto value = [&](std::size_t i) {
        const TileValue& tile = frame.tile(operands.values[i]);
        return tile.bits[element_at(tile, lane)];
    };
    const DType dtype = frame.memory(operands.ref).dtype;
    const std::uint64_t pair[] = {to_constant(dtype, old), to_constant(dtype, value(0))};
    const auto combined = [&](Op op) {
        return from_constant(dtype, ir::evaluate(op, dtype, dtype, pair));
    };
    switch (instruction.op) {
        case Op::atomic_add:
            return combined(Op::add);
        case Op::atomic_max:
            return combined(Op::max);
        case Op::atomic_min:
            return combined(Op::min);
        // Compared as bits, as hardware does.
        case Op::atomic_cas:
            return old == value(0) ? value(1) : old;
        default:
            return value(0);
    }
}

void Interpreter::write(const Instruction& instruction, Frame& frame) {
    const ir::Access operands = ir::access(instruction);
    const bool proved = instruction.get<ir::AccessAttributes>().in_bounds;
    const bool atomic = instruction.op != Op::store;
    Memory& memory = frame.memory(operands.ref);
    const Lanes lanes(*frame.function, instruction, memory, tiles_of(operands.indices, frame));
    std::optional<Checker::Access> check;
    if (checker_) check = checker_->begin_access(instruction, memory, lanes);

    TileValue* const old_values = atomic ? &result_of(instruction, frame) : nullptr;
    std::optional<Lanes::Lane> first_outside;
    bool any_inside = false;
    for (std::int64_t number = 0; number < lanes.size(); ++number) {
        const std::size_t i = number;
        const Active mask = active_lane(operands.mask, frame, i);
        if (!mask.active && mask.poison == 0) continue;
        const Lanes::Lane lane = lanes.lane(number);
        if (proved && !lane.inside && check) checker_->claimed_inside(*check, lane);
        TW_ASSERT(lane.inside || !proved, "an access proved in bounds leaves {}", memory.name);
        if (check) {
            // An undefined index could have any value, so even one outside is an error.
            checker_->require_defined(lane.poison, instruction, "an index of the access");
            Poison poison = mask.poison;
            for (Value value : operands.values) {
                const TileValue& tile = frame.tile(value);
                poison = first_of(poison, tile.poison_at(element_at(tile, i)));
            }
            if (lane.inside && atomic) {
                checker_->atomic(*check, memory, number, lane, poison);
            } else if (lane.inside) {
                checker_->write(*check, memory, lane, poison);
            }
        }
        if (!lane.inside && !first_outside) first_outside = lane;
        any_inside = any_inside || lane.inside;
        if (!mask.active || !lane.inside) continue;
        std::byte* const element = memory.element(lane.offset);
        const std::uint64_t old = read_bits(element, memory.dtype);
        if (atomic) old_values->bits[i] = old;
        write_bits(element, memory.dtype, stored_bits(instruction, frame, operands, i, old));
    }
    if (check && first_outside && !any_inside) checker_->all_outside(*check, *first_outside);
}

void Interpreter::debug_print(const Instruction& instruction, const Frame& frame) const {
    const std::string& format = instruction.get<ir::TextAttributes>().text;
    std::string text;
    std::size_t next = 0;
    for (std::size_t i = 0; i < format.size(); ++i) {
        if (format.compare(i, 2, "{}") == 0 && next < instruction.operands.size()) {
            text += to_string(frame.tile(instruction.operands[next++]));
            ++i;
        } else {
            text += format[i];
        }
    }
    fmt::print(stderr, "{}\n", text);
}

}  // namespace

void interpret(const ir::Function& kernel, const ir::Arguments& arguments) {
    Interpreter(kernel, arguments, nullptr).run();
}

void interpret_checked(const ir::Function& kernel, const ir::Arguments& arguments,
                       const CheckOptions& options) {
    Interpreter(kernel, arguments, &options).run();
}

}  // namespace tilewright::cpu
