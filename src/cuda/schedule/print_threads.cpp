// Programs without roles as CUDA C++: statements and control flow.
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
        case Op::meet:
            if (!made.has("end")) line("ptx::cluster_arrive();");
            if (!made.has("begin")) line("ptx::cluster_wait();");
            return;
        case Op::join_lanes:
            return join_lanes(made);
        case Op::fill_lines:
            return fill_lines(made);
        case Op::write_lines:
            return write_lines(made);
        case Op::sort_lines:
            return sort_lines(made);
        case Op::read_lines:
            return read_lines(made);
        case Op::print:
            return print(made);
        case Op::print_tile:
            return print_tile(made);
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
        case Op::program_ids:
            return program_ids(made);
        case Op::place_scratch:
            return place_scratch(made);
        case Op::scope:
        case Op::loop:
        case Op::branch:
            return blocks(made);
        case Op::leave:
            return line("if (!({})) break;", registers(made.operands[0]).front());
        case Op::advance:
            return line("{};", advance(made));
        case Op::before:
            return line("const int {0} = {1} == 0 ? {2} : {1} - 1;",
                        registers(made.result()).front(), registers(made.operands[0]).front(),
                        made.number("slots") - 1);
        case Op::next_slot:
            return line("{0} = {0} == {1} ? 0 : {0} + 1;", registers(made.operands[0]).front(),
                        made.number("slots") - 1);
        case Op::barrier:
            return line("__syncthreads();");
        case Op::commit_copies:
            return line("ptx::cp_async_commit();");
        case Op::wait_copies:
            return line("ptx::cp_async_wait<{}>();", made.number("pending"));
        case Op::index:
        case Op::following:
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
    if (made.is(ir::Op::associative_scan)) return combine_scan(made);
    if (made.is(ir::Op::load)) return load(made);
    if (made.is(ir::Op::store)) return store(made);
    if (ir::is_access(made.tile)) return atomic(made);
    if (is_pointwise(made.tile) && !is_free_cast(p_, made)) elementwise(made);
}

std::string ThreadPrinter::advance(const Instruction& made) const {
    const std::string& variable = registers(made.operands[0]).front();
    return made.operands.size() > 2
               ? fmt::format("{} = {}", variable, names_.following(made))
               : fmt::format("{} += {}", variable, names_.index(made.operands[1]));
}

std::string ThreadPrinter::head(const Instruction& made) {
    const auto operand = [&](std::size_t i) { return names_.index(made.operands[i]); };
    if (made.is(Op::scope)) return fmt::format("if ({} < {})", operand(0), operand(1));
    if (made.is(Op::branch)) {
        return fmt::format("if ({})", registers(made.operands[0]).front());
    }
    if (made.operands.empty()) return "while (true)";
    const Value induction = made.blocks[0].arguments[0];
    names_.define(induction);
    std::vector<Value> next = {induction, made.operands[2]};
    if (made.has("stops")) next.push_back(made.operands[1]);
    line("#pragma unroll 1");
    return fmt::format("for (i64 {0} = {1}; {0} < {2}{3}; {4})", registers(induction).front(),
                       operand(0), operand(1),
                       made.has("rises") ? "" : fmt::format(" && {} > 0", operand(2)),
                       advance(make(Op::advance, std::move(next))));
}

void ThreadPrinter::blocks(const Instruction& made) {
    for (std::size_t i = 0; i < made.blocks.size(); ++i) {
        line("{} {{", i == 0 ? head(made) : "else");
        ++depth_;
        addresses_.emplace_back();
        block(made.blocks[i]);
        addresses_.pop_back();
        --depth_;
        line("}}");
    }
}

void ThreadPrinter::program_ids(const Instruction& made) {
    const std::string block = made.has("last_first") ? "gridDim.x - 1 - blockIdx.x" : "blockIdx.x";
    line("u32 program = {}{};", made.has("workspace") ? "first_program + " : "",
         p_.blocks == 1           ? block
         : made.has("last_first") ? fmt::format("({}) / {}", block, p_.blocks)
                                  : fmt::format("{} / {}", block, p_.blocks));
    for (std::size_t axis = p_.grid.size() - 1; axis > 0; --axis) {
        const std::string extent = p_.grid[axis] == ir::kDynamic ? fmt::format("grid{}", axis)
                                                                 : fmt::format("{}", p_.grid[axis]);
        line("const i64 program{} = program % static_cast<u32>({});", axis, extent);
        line("program /= static_cast<u32>({});", extent);
    }
    line("const i64 program0 = program;");
}

void ThreadPrinter::place_scratch(const Instruction& made) {
    const Parameter& array = p_.ref(made.symbol("of"));
    const std::string place = made.has("at") ? fmt::format("workspace + blockIdx.x * {}ull + {}",
                                                           made.number("stride"), made.number("at"))
                                             : fmt::format("memory + {}", made.symbol("uses"));
    line("{0}* const {1}_data = reinterpret_cast<{0}*>({2});", storage_type(array.dtype),
         array.name, place);
}

void ThreadPrinter::scalars() {
    for (const Parameter& one : p_.parameters) {
        if (one.is_ref) continue;
        names_.define(one.value);
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
    if (p_.blocks > 1) line("int turn = 0;  // which half of buffers has totals");
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
    each_instruction(program.body,
                     [&](const Instruction& made) { sorts |= made.is(Op::sort_lines); });
    if (program.blocks > 1) text.includes = "#include \"cuda/device/tile/cluster.cuh\"\n";
    if (sorts) text.includes = "#include \"cuda/device/tile/sort.cuh\"\n";
    return text;
}

}  // namespace tilewright::cuda::schedule
