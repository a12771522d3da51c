// Lowers tile IR to bytecode: control flow, scalars and bookkeeping.
#include "cpu/lower.h"

#include <utility>

#include "cpu/chains.h"
#include "cpu/direct_gathers.h"
#include "cpu/divided_atomics.h"
#include "cpu/private_arrays.h"
#include "ir/access.h"
#include "ir/evaluate.h"
#include "ir/passes/effects.h"
#include "support/check.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

std::uint64_t element_bits(DType dtype, std::uint64_t widened) {
    std::uint64_t bits = 0;
    ir::write_element(dtype, &bits, widened);
    return bits;
}

Lowering::Lowering(const ir::Function& function, Program& program)
    : function_(function),
      program_(program),
      definitions_(function),
      lanes_(assign_lanes(function)),
      places_(function.num_values()),
      users_(users_of(function)),
      varies_(function.num_values()) {
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        const bool writes = ir::is_access(instruction.op) && instruction.op != Op::load;
        if (writes) written_.insert(instruction.operands[0]);
    });
}

void Lowering::run() {
    program_.kernels = &kernels();
    Region body;
    regions_.push_back(&body);
    std::int64_t argument = 0;
    for (const Value parameter : function_.parameters()) {
        if (function_.is_ref(parameter)) {
            const ir::RefType& type = function_.ref_type(parameter);
            refs_[parameter.id] = static_cast<std::uint32_t>(program_.refs.size());
            const bool global = type.space == ir::Space::global;
            program_.refs.push_back(
                {function_.value_name(parameter), type, global ? argument++ : -1, 0});
        } else {
            const DType dtype = function_.type(parameter).dtype;
            const std::uint32_t slot = new_slot();
            program_.scalars.push_back({dtype, slot});
            set_place(parameter, scalar_tile(slot, dtype));
        }
    }
    std::set<Value> read;
    ir::walk(function_.body, [&](const ir::Instruction& instruction) {
        if (!ir::is_access(instruction.op) || instruction.op == Op::store) return;
        read.insert(instruction.operands[0]);
    });
    for (const auto& [id, slot] : refs_) {
        // may_write tells whether a Ref of a set may share memory with this one.
        program_.refs[slot].is_read = ir::may_write(function_, read, Value{id});
    }
    program_.private_refs = private_refs(function_);
    lower_block(function_.body);
    regions_.pop_back();
    form_chains(body, program_);
    gather_into_arrays(body, program_);
    sum_gathers(body, program_);
    flatten(body);
    append(Halt{}, 0);
    program_.divided = divided_atomics(function_, program_);
}

void Lowering::lower_block(const ir::Block& block) {
    const ir::Block* const outer = std::exchange(block_, &block);
    for (const ir::Instruction& instruction : block.body) {
        if (instruction.op == Op::yield) continue;
        const std::uint32_t line = std::exchange(line_, line_of(instruction.location));
        lower(instruction);
        line_ = line;
    }
    block_ = outer;
}

void Lowering::lower(const ir::Instruction& instruction) {
    bool varies = instruction.op == Op::program_id;
    for (const Value operand : instruction.operands) varies = varies || varies_[operand.id];
    for (const Value result : instruction.results) varies_[result.id] = varies;
    switch (instruction.op) {
        case Op::constant:
            return lower_constant(instruction);
        case Op::iota:
            return lower_iota(instruction);
        case Op::program_id:
        case Op::num_programs:
        case Op::extent:
            return lower_query(instruction);
        case Op::load:
            return lower_load(instruction);
        case Op::store:
            return lower_store(instruction);
        case Op::atomic_add:
        case Op::atomic_max:
        case Op::atomic_min:
        case Op::atomic_xchg:
        case Op::atomic_cas:
            return lower_atomic(instruction);
        case Op::broadcast:
        case Op::transpose:
        case Op::expand_dims:
        case Op::slice:
            return lower_shape(instruction);
        case Op::reshape:
            return lower_reshape(instruction);
        case Op::concatenate:
            return lower_concatenate(instruction);
        case Op::reduce:
            return lower_reduce(instruction);
        case Op::scan:
            return lower_scan(instruction);
        case Op::associative_scan:
            return lower_associative_scan(instruction);
        case Op::sort:
        case Op::argsort:
            return lower_sort(instruction);
        case Op::dot:
            return lower_dot(instruction);
        case Op::debug_print: {
            Print print{instruction.get<ir::TextAttributes>().text, {}};
            for (const Value operand : instruction.operands)
                print.operands.push_back(tile(operand));
            return emit(print);
        }
        case Op::debug_check:
            return;  // only the checked mode checks it
        case Op::for_loop:
            return lower_for(instruction);
        case Op::while_loop:
            return lower_while(instruction);
        case Op::if_else:
            return lower_if(instruction);
        case Op::call:
        case Op::yield:
            break;
        default:
            if (function_.type(instruction.result()).is_scalar()) return lower_scalar(instruction);
            return lower_elementwise(instruction);
    }
    TW_ASSERT(false, "op {} reached the lowering", ir::name(instruction.op));
}

// ---- Scalars.

void Lowering::lower_query(const ir::Instruction& instruction) {
    ScalarQuery query{instruction.op, instruction.get<ir::AxisAttributes>().axis, 0, new_slot()};
    if (instruction.op == Op::extent) query.ref = refs_.at(instruction.operands[0].id);
    set_place(instruction.result(), scalar_tile(query.out, DType::i64));
    emit(query);
}

void Lowering::lower_scalar(const ir::Instruction& instruction) {
    const DType in = function_.type(instruction.operands.back()).dtype;
    const DType out = function_.type(instruction.result()).dtype;
    ScalarOp op;
    op.op = instruction.op;
    op.dtype = in;
    const auto* math = std::get_if<ir::MathAttributes>(&instruction.attributes);
    op.function = kernels().elementwise(instruction.op, in, out, math && math->approx);
    if (!op.function) {
        user_error(ir::name(instruction.op), "expected types the CPU can compute but got {} -> {}",
                   name(in), name(out));
    }
    for (const Value operand : instruction.operands) {
        op.in[op.num_inputs++] = tile(operand).index;
    }
    op.out = new_slot();
    set_place(instruction.result(), scalar_tile(op.out, out));
    emit(op);
}

std::uint32_t Lowering::integer_slot(Value value) {
    const DType dtype = function_.type(value).dtype;
    const std::uint32_t slot = tile(value).index;
    if (dtype == DType::i64 || dtype == DType::u64) return slot;
    ScalarOp op;
    op.op = Op::cast;
    op.dtype = dtype;
    op.function = kernels().elementwise(Op::cast, dtype, DType::i64, false);
    op.in[0] = slot;
    op.num_inputs = 1;
    op.out = new_slot();
    emit(op);
    return op.out;
}

std::uint32_t Lowering::new_slot(std::uint64_t bits) {
    program_.initial_slots.push_back(bits);
    return static_cast<std::uint32_t>(program_.initial_slots.size() - 1);
}

std::uint32_t Lowering::constant_slot(DType dtype, std::uint64_t element) {
    const auto [found, inserted] =
        constant_slots_.try_emplace({static_cast<int>(dtype), element}, 0);
    if (inserted) {
        found->second = new_slot(element);
        program_.constant_slots.insert(found->second);
    }
    return found->second;
}

// ---- Control flow.

std::vector<Tile> Lowering::begin_carries(const std::vector<Value>& init,
                                          const std::vector<Value>& arguments) {
    std::vector<Tile> carries;
    for (std::size_t i = 0; i < init.size(); ++i) {
        carries.push_back(new_result(arguments[i]));
        copy(tile(init[i]), carries.back());
    }
    return carries;
}

void Lowering::end_carries(const std::vector<Value>& yielded, const std::vector<Tile>& carries) {
    // All carries change at once: a value that is stored in another carry is saved first.
    std::vector<Tile> next;
    for (std::size_t i = 0; i < carries.size(); ++i) {
        Tile value = tile(yielded[i]);
        for (std::size_t j = 0; j < carries.size(); ++j) {
            if (value.home != carries[j].home || value.index != carries[j].index) continue;
            const bool unchanged =
                i == j && value.stride == carries[i].stride && value.offset == carries[i].offset;
            if (unchanged) continue;
            Tile saved = value;
            if (value.home == Home::slot) {
                saved.index = new_slot();
                emit(ScalarMove{value.index, saved.index});
            } else {
                saved = new_tile(value.dtype, value.shape, lanes_[yielded[i].id]);
                copy(value, saved);
            }
            value = saved;
            break;
        }
        next.push_back(value);
    }
    for (std::size_t i = 0; i < carries.size(); ++i) {
        if (next[i].home == carries[i].home && next[i].index == carries[i].index) continue;
        copy(next[i], carries[i]);
    }
}

void Lowering::lower_for(const ir::Instruction& instruction) {
    const ir::Block& body = instruction.blocks[0];
    const std::vector<Value> init(instruction.operands.begin() + 3, instruction.operands.end());
    const std::vector<Value> arguments(body.arguments.begin() + 1, body.arguments.end());
    if (varies_[instruction.operands[0].id] || varies_[instruction.operands[1].id]) {
        program_.uneven = true;
    }
    Node node;
    node.kind = Node::Kind::for_loop;
    node.line = line_;
    node.iv = new_slot();
    node.hi = integer_slot(instruction.operands[1]);
    node.step = integer_slot(instruction.operands[2]);
    emit(ScalarMove{integer_slot(instruction.operands[0]), node.iv});

    Region region;
    const std::vector<Tile> carries = begin_carries(init, arguments);
    regions_.push_back(&region);
    for (std::size_t i = 0; i < carries.size(); ++i) set_place(arguments[i], carries[i]);
    set_place(body.arguments[0], scalar_tile(node.iv, DType::i64));
    lower_block(body);
    end_carries(body.terminator().operands, carries);
    close_region();
    node.regions.push_back(std::move(region));
    regions_.back()->push_back(std::move(node));
    for (std::size_t i = 0; i < carries.size(); ++i) set_place(instruction.results[i], carries[i]);
}

void Lowering::lower_while(const ir::Instruction& instruction) {
    const ir::Block& condition = instruction.blocks[0];
    const ir::Block& body = instruction.blocks[1];
    const std::vector<Tile> carries = begin_carries(instruction.operands, body.arguments);
    Node node;
    node.kind = Node::Kind::while_loop;
    node.line = line_;
    program_.has_while = true;
    Region test;
    regions_.push_back(&test);
    for (std::size_t i = 0; i < carries.size(); ++i) {
        set_place(condition.arguments[i], carries[i]);
    }
    lower_block(condition);
    node.condition = tile(condition.terminator().operands[0]).index;
    close_region();

    Region region;
    regions_.push_back(&region);
    for (std::size_t i = 0; i < carries.size(); ++i) set_place(body.arguments[i], carries[i]);
    lower_block(body);
    end_carries(body.terminator().operands, carries);
    close_region();
    node.regions.push_back(std::move(test));
    node.regions.push_back(std::move(region));
    regions_.back()->push_back(std::move(node));
    for (std::size_t i = 0; i < carries.size(); ++i) set_place(instruction.results[i], carries[i]);
}

void Lowering::lower_if(const ir::Instruction& instruction) {
    Node node;
    node.kind = Node::Kind::if_else;
    node.line = line_;
    node.condition = tile(instruction.operands[0]).index;
    std::vector<Tile> results;
    for (const Value result : instruction.results) results.push_back(new_result(result));
    for (const ir::Block& block : instruction.blocks) {
        Region region;
        regions_.push_back(&region);
        lower_block(block);
        for (std::size_t i = 0; i < results.size(); ++i) {
            copy(tile(block.terminator().operands[i]), results[i]);
        }
        close_region();
        node.regions.push_back(std::move(region));
    }
    regions_.back()->push_back(std::move(node));
}

void Lowering::flatten(Region& region, const Node* loop) {
    std::vector<Instruction>& code = program_.code;
    for (Node& node : region) {
        switch (node.kind) {
            case Node::Kind::instruction: {
                const auto* chain = std::get_if<Chain>(&node.instruction);
                if (chain && chain->ops.empty()) break;  // nothing reads its results
                auto* view = std::get_if<LoadView>(&node.instruction);
                if (view && loop) {
                    view->in_loop = true;
                    view->iv = loop->iv;
                    view->hi = loop->hi;
                    view->step = loop->step;
                }
                const std::uint32_t line = chain ? chain->ops.front().line : node.line;
                append(std::move(node.instruction), line);
                break;
            }
            case Node::Kind::for_loop: {
                const std::size_t test = code.size();
                append(LoopTest{node.iv, node.hi, node.step, 0}, node.line);
                flatten(node.regions[0], &node);
                append(LoopNext{node.iv, node.step, test}, node.line);
                std::get<LoopTest>(code[test]).target = code.size();
                break;
            }
            case Node::Kind::while_loop: {
                const std::size_t start = code.size();
                flatten(node.regions[0]);
                const std::size_t test = code.size();
                append(JumpUnless{node.condition, 0}, node.line);
                flatten(node.regions[1]);
                append(Jump{start}, node.line);
                std::get<JumpUnless>(code[test]).target = code.size();
                break;
            }
            case Node::Kind::if_else: {
                const std::size_t test = code.size();
                append(JumpUnless{node.condition, 0}, node.line);
                flatten(node.regions[0]);
                const std::size_t skip = code.size();
                append(Jump{0}, node.line);
                std::get<JumpUnless>(code[test]).target = code.size();
                flatten(node.regions[1]);
                std::get<Jump>(code[skip]).target = code.size();
                break;
            }
        }
    }
}

// ---- Bookkeeping.

void Lowering::append(Instruction instruction, std::uint32_t line) {
    program_.code.push_back(std::move(instruction));
    program_.lines.push_back(line);
}

std::uint32_t Lowering::line_of(const ir::Location& location) {
    if (location.file.empty()) return line_;
    const auto next = static_cast<std::uint32_t>(program_.locations.size());
    const auto [found, inserted] = known_lines_.try_emplace({location.file, location.line}, next);
    if (inserted) program_.locations.push_back(location);
    return found->second;
}

void Lowering::emit(Instruction instruction) {
    emit_at(depth(), std::move(instruction));
}

void Lowering::close_region() {
    regions_.pop_back();
    std::erase_if(packed_, [&](const Packed& packed) { return packed.depth > depth(); });
}

void Lowering::emit_at(int depth, Instruction instruction) {
    Node node;
    node.line = line_;
    node.instruction = std::move(instruction);
    regions_[depth]->push_back(std::move(node));
}

void Lowering::copy(const Tile& from, const Tile& to) {
    if (from.home == Home::slot && to.home == Home::slot && from.shape.rank() == 0) {
        return emit(ScalarMove{from.index, to.index});
    }
    Move move;
    move.box = to.shape;
    move.in = from;
    move.out = to;
    emit(move);
}

Tile Lowering::scalar_tile(std::uint32_t slot, DType dtype, const ir::Shape& shape) const {
    Tile result;
    result.home = Home::slot;
    result.index = slot;
    result.dtype = dtype;
    result.shape = shape;
    return result;
}

Tile Lowering::new_tile(DType dtype, const ir::Shape& shape, LaneChoice choice) {
    Tile result;
    result.home = Home::buffer;
    result.index = static_cast<std::uint32_t>(program_.buffers.size());
    result.dtype = dtype;
    result.shape = shape;
    std::int64_t elements = 0;
    if (is_vector(shape)) {
        const int axis = long_axis(shape);
        if (axis >= 0) result.stride[axis] = 1;
        elements = ceil_div(shape.size(), kPanelLanes) * kPanelLanes;
    } else {
        result.lane_axis = choice.axis;
        result.width = choice.width;
        std::int64_t stride = choice.width;
        for (int axis = shape.rank() - 1; axis >= 0; --axis) {
            if (axis == choice.axis) {
                result.stride[axis] = 1;
                continue;
            }
            result.stride[axis] = stride;
            stride *= shape[axis];
        }
        result.panel_stride = stride;
        elements = stride * ceil_div(shape[choice.axis], choice.width);
    }
    program_.buffers.push_back({elements * size_of(dtype) + 64, 0});
    return result;
}

Tile Lowering::new_result(Value value) {
    const ir::Type& type = function_.type(value);
    set_place(value, type.is_scalar() ? scalar_tile(new_slot(), type.dtype)
                                      : new_tile(type.dtype, type.shape, lanes_[value.id]));
    return tile(value);
}

void Lowering::set_place(Value value, const Tile& tile) {
    places_[value.id] = {tile, depth()};
}

const Tile& Lowering::tile(Value value) const {
    const Tile& result = places_[value.id].tile;
    TW_ASSERT(result.home != Home::none, "value {} has no place", value.id);
    return result;
}

}  // namespace tilewright::cpu
