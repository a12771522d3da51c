// Programs of text as CUDA C++: statements and control flow.
#include "cuda/codegen/element_text.h"
#include "cuda/codegen/mma_steps.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/thread_printer.h"
#include "ir/access.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

/// The step that an `mma` runs.
MmaStep mma_step(const Instruction& made) {
    MmaStep step;
    step.rows = static_cast<int>(made.number("rows"));
    step.columns = static_cast<int>(made.number("columns"));
    step.dtype = made.symbol("dtype") == "f16" ? DType::f16 : DType::bf16;
    step.transposed = made.has("moved");
    return step;
}

}  // namespace

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
        case Op::mma:
            return mma(made);
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
        block(made.blocks[i]);
        --depth_;
        line("}}");
    }
}

void ThreadPrinter::mma(const Instruction& made) {
    const MmaStep step = mma_step(made);
    line("ptx::multiply({}{{}}, ptx::Blocks<{}, {}>{{}}, ptx::Moved<{}>{{}}, {});",
         step.dtype == DType::f16 ? "F16" : "Bf16", step.rows, step.columns, step.transposed,
         made.symbol("text"));
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

std::string print_functions(const Program& program) {
    std::set<MmaStep> steps;
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.is(Op::mma)) steps.insert(mma_step(made));
    });
    return mma_step_functions(steps);
}

std::string print_includes(const Program& program) {
    bool sorts = false;
    each_instruction(program.body, [&](const Instruction& made) {
        sorts |= made.is(Op::operation) &&
                 (made.symbol("of") == "sort" || made.symbol("of") == "argsort");
    });
    return sorts ? "#include \"cuda/device/tile/sort.cuh\"\n" : "";
}

std::string print_statements(const Program& program) {
    return ThreadPrinter(program).run();
}

}  // namespace tilewright::cuda::schedule
