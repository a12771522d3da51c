// Statements, values and buffers of a program without roles.
#include "cuda/codegen/lowering.h"

#include "cuda/codegen/lower_memory.h"
#include "support/integer.h"

namespace tilewright::cuda {

Lowering::Lowering(const KernelFacts& kernel_facts, const Plan& kernel_plan,
                   const Target& kernel_target, bool in_workspace, int shared_by)
    : function(kernel_facts.function()),
      target(kernel_target),
      facts(kernel_facts),
      plan(kernel_plan),
      warps(kernel_facts.warps()),
      workspace(in_workspace) {
    program.name = function.name;
    program.arch = target.arch;
    program.level = schedule::Level::split;
    program.grid = function.grid;
    program.stages = facts.stages();
    program.mark_lines = target.mark_lines;
    program.blocks = shared_by;
    program.roles.push_back({"all", 0, warps, 0, false});
    blocks.push_back(&program.body);
    scopes.emplace_back();
}

// ---- Statements.

schedule::Instruction& Lowering::append(schedule::Op op) {
    schedule::Instruction& made = blocks.back()->body.emplace_back();
    made.op = op;
    return made;
}

schedule::Block& Lowering::open(schedule::Instruction made) {
    await_blocks();
    blocks.push_back(&append(std::move(made)).blocks.emplace_back());
    scopes.emplace_back();
    return *blocks.back();
}

void Lowering::open_else() {
    blocks.push_back(&blocks.back()->body.back().blocks.emplace_back());
    scopes.emplace_back();
}

void Lowering::close() {
    blocks.pop_back();
    scopes.pop_back();
}

void Lowering::begin_operation(std::string_view name) {
    append(schedule::Op::operation).with_symbol("of", std::string(name));
}

// ---- Values.

const Held* Lowering::find(ir::Value value) const {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
        const auto found = scope->held.find(value);
        if (found != scope->held.end()) return &found->second.front();
    }
    return nullptr;
}

const Held* Lowering::find(ir::Value value, const Layout& layout) const {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
        const auto found = scope->held.find(value);
        if (found == scope->held.end()) continue;
        for (const Held& held : found->second) {
            if (held.layout == layout) return &held;
        }
    }
    return nullptr;
}

void Lowering::hold(ir::Value value, Held held) {
    scopes.back().held[value].push_back(std::move(held));
}

Held Lowering::declare(const std::string& name, const Layout& layout, DType dtype,
                       schedule::Value init) {
    schedule::Instruction& made = append(schedule::Op::declare);
    if (init) made.operands = {init};
    return result_of(made, name, layout, dtype);
}

void Lowering::assign(std::span<const Held> variables, std::span<const schedule::Value> values) {
    if (variables.empty()) return;
    schedule::Instruction& made = append(schedule::Op::assign);
    for (const Held& variable : variables) made.operands.push_back(variable.value);
    made.operands.insert(made.operands.end(), values.begin(), values.end());
}

schedule::Value Lowering::add(std::string name, const Layout& layout, DType dtype) {
    schedule::ValueType type{false, {dtype, layout.shape}, {}};
    if (layout.shape.rank() > 0) type.layout = layout;
    return program.add(std::move(type), std::move(name));
}

Held Lowering::result_of(schedule::Instruction& made, std::string name, const Layout& layout,
                         DType dtype) {
    const schedule::Value value = add(std::move(name), layout, dtype);
    made.results = {value};
    return {layout, value};
}

// ---- Memory.

int Lowering::buffer(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 128;
    const int id = static_cast<int>(program.buffers.size());
    schedule::Buffer& made = program.buffers.emplace_back();
    made.name = buffer_name(id);
    made.dtype = DType::u8;
    made.rows = 1;
    made.columns = ceil_div(bytes, kAlignment) * kAlignment;
    made.purpose = buffers_for;
    return id;
}

int Lowering::exchange_buffer(std::int64_t bytes) {
    const int id = buffer(bytes);
    program.buffers.back().rows = 2;
    exchanged.push_back(id);
    return id;
}

void Lowering::await_blocks() {
    if (!std::exchange(blocks_begin, false)) return;
    append(schedule::Op::meet).flag("end");
}

std::string buffer_name(int id) {
    return fmt::format("kBuffer{}", id);
}

void Lowering::access_shared(const char* how, std::initializer_list<int> ids) {
    schedule::Instruction& made = append(schedule::Op::access);
    for (int id : ids) made.with_symbol(how, buffer_name(id));
}

void Lowering::access_global(ir::Value ref, bool write) {
    if (!facts.is_written(ref) || plan.own_scratch.count(ref) != 0) return;
    append(schedule::Op::access)
        .with_symbol(write ? "stores" : "loads", ref_name(*this, facts.root(ref)));
}

void Lowering::settle_copies(int pending) {
    append(schedule::Op::settle_copies).with("pending", pending);
}

}  // namespace tilewright::cuda
