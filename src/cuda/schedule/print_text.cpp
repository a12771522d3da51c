// Programs of text as CUDA C++.
#include "cuda/codegen/mma_steps.h"
#include "cuda/schedule/cuda_printer.h"
#include "cuda/schedule/print_cuda.h"
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

void CudaPrinter::text(const Instruction& made) {
    switch (made.op) {
        case Op::raw:
            return line("{}", made.symbol("text"));
        case Op::mma:
            return mma(made);
        case Op::scope:
        case Op::loop:
        case Op::branch:
            for (std::size_t i = 0; i < made.blocks.size(); ++i) {
                const std::string head = i == 0 ? made.symbol("text") : "else";
                line("{}{}{{", head, head.empty() ? "" : " ");
                ++depth_;
                block(made.blocks[i]);
                close();
            }
            return;
        case Op::barrier:
            return line("__syncthreads();");
        case Op::commit_copies:
            return line("ptx::cp_async_commit();");
        case Op::wait_copies:
            return line("ptx::cp_async_wait<{}>();", made.number("pending"));
        case Op::operation:
        case Op::access:
            return;
        default:
            TW_ASSERT(false, "`{}` has no text", tilewright::cuda::schedule::name(made.op));
    }
}

void CudaPrinter::mma(const Instruction& made) {
    const MmaStep step = mma_step(made);
    line("ptx::multiply({}{{}}, ptx::Blocks<{}, {}>{{}}, ptx::Moved<{}>{{}}, {});",
         step.dtype == DType::f16 ? "F16" : "Bf16", step.rows, step.columns, step.transposed,
         made.symbol("text"));
}

std::string CudaPrinter::statements() {
    for (const Buffer& one : p_.buffers) {
        line("constexpr u32 {} = {};  // {} bytes", one.name, one.offset, one.slot_bytes());
    }
    block(p_.body);
    return std::move(text_);
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
    return CudaPrinter(program).statements();
}

}  // namespace tilewright::cuda::schedule
