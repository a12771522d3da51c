// Programs of text as CUDA C++: statements and control flow.
#include "cuda/codegen/element_text.h"
#include "cuda/codegen/mma_steps.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/thread_printer.h"
#include "ir/access.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
void ThreadPrinter::instruction(const Instruction& made) {
    if (!made.results.empty()) names_.define(made);
    switch (made.op) {
        case Op::tile:
            return tile(made);
        case Op::comment:
            return line("// {}", made.symbol("text"));
        case Op::raw:
            return line("{}", made.symbol("text"));
        case Op::position:
            return positions_.add(
                {made.symbol("called"), made.symbol("text"), made.has("address")});
        case Op::declare:
            return declare(made);
        case Op::assign:
            return assign(made);
        case Op::copy_tile:
            return copy_tile(made);
        case Op::copy:
            return copy(made);
        case Op::keep_words:
            for (const std::string& word : names_.words(made.operands[0])) {
                line("ptx::keep_bits({});", word);
            }
            return;
        case Op::targets:
            return targets(made);
        case Op::last_writers:
            return last_writers(made);
        case Op::store_targets:
            return store_targets(made);
        case Op::shuffle:
            return shuffle(made);
        case Op::write_tile:
            return write_tile(made);
        case Op::read_tile:
            return read_tile(made);
        case Op::narrow:
            return narrow(made);
        case Op::write_parts:
            return write_parts(made);
        case Op::join_parts:
            return join_parts(made);
        case Op::write_totals:
            return write_totals(made);
        case Op::join_totals:
            return join_totals(made);
        case Op::join_lanes:
            return join_lanes(made);
        case Op::clear:
            return clear(made);
        case Op::write_operand:
            return write_operand(made);
        case Op::shared_tile:
            return shared_tile(made);
        case Op::read_fragments:
            return read_fragments(made);
        case Op::mma:
            return mma(made);
        case Op::multiply_add:
            return multiply_add(made);
        case Op::scope:
        case Op::loop:
        case Op::branch:
            return blocks(made);
        case Op::barrier:
            return line("__syncthreads();");
        case Op::commit_copies:
            return line("ptx::cp_async_commit();");
        case Op::wait_copies:
            return line("ptx::cp_async_wait<{}>();", made.number("pending"));
        case Op::registers:
        case Op::relabel:
        case Op::operation:
        case Op::access:
            return;
        default:
            TW_ASSERT(false, "`{}` has no text", tilewright::cuda::schedule::name(made.op));
    }
}

void ThreadPrinter::tile(const Instruction& made) {
    if (made.is(ir::Op::reduce)) return reduce(made);
    if (made.is(ir::Op::scan)) return scan(made);
    if (made.is(ir::Op::load)) return load(made);
    if (made.is(ir::Op::store)) return store(made);
    if (ir::is_access(made.tile)) return atomic(made);
    if (is_pointwise(made.tile) && !is_free_cast(p_, made)) elementwise(made);
}

void ThreadPrinter::blocks(const Instruction& made) {
    for (std::size_t i = 0; i < made.blocks.size(); ++i) {
        const std::string head = i == 0 ? made.symbol("text") : "else";
        line("{}{}{{", head, head.empty() ? "" : " ");
        ++depth_;
        addresses_.emplace_back();
        block(made.blocks[i]);
        addresses_.pop_back();
        --depth_;
        line("}}");
    }
}

void ThreadPrinter::scalars() {
    for (const Parameter& one : p_.parameters) {
        if (one.is_ref) continue;
        names_.define(make(Op::registers, {}, {one.value}));
        const std::string bits = bits_name(one);
        line("const {} {} = ops::cast<{}>({});", register_type(one.dtype),
             registers(one.value).front(), storage_type(one.dtype),
             is_float(one.dtype) ? fmt::format("__longlong_as_double({})", bits) : bits);
    }
}

std::string ThreadPrinter::run() {
    scalars();
    block(p_.body);
    const std::string body = std::exchange(text_, "");
    for (const Buffer& one : p_.buffers) {
        line("constexpr u32 {} = {};  // {} bytes", one.name, one.offset, one.slot_bytes());
    }
    for (const Position& one : positions_.all()) {
        if (one.is_address) {
            line("const u32 {} = memory_address + {};", one.name, one.text);
        } else {
            line("const int {} = {};", one.name, one.text);
        }
    }
    return text_ + body;
}

ThreadText print_threads(const Program& program) {
    ThreadText text;
    ThreadPrinter printer(program);
    text.statements = printer.run();
    text.functions = mma_step_functions(printer.steps());
    bool sorts = false;
    each_instruction(program.body, [&](const Instruction& made) {
        sorts |= made.is(Op::operation) &&
                 (made.symbol("of") == "sort" || made.symbol("of") == "argsort");
    });
    if (sorts) text.includes = "#include \"cuda/device/tile/sort.cuh\"\n";
    return text;
}

}  // namespace tilewright::cuda::schedule
