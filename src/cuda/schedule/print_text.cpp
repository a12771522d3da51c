// Programs of text as CUDA C++.
#include "cuda/schedule/cuda_printer.h"
#include "cuda/schedule/print_cuda.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {

void CudaPrinter::text(const Instruction& made) {
    switch (made.op) {
        case Op::raw:
            return line("{}", made.symbol("text"));
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
        case Op::wait_copies:
            return line("ptx::cp_async_wait<{}>();", made.number("pending"));
        case Op::operation:
        case Op::access:
            return;
        default:
            TW_ASSERT(false, "`{}` has no text", tilewright::cuda::schedule::name(made.op));
    }
}

std::string CudaPrinter::statements() {
    for (const Buffer& one : p_.buffers) {
        line("constexpr u32 {} = {};  // {} bytes", one.name, one.offset, one.slot_bytes());
    }
    block(p_.body);
    return std::move(text_);
}

std::string print_statements(const Program& program) {
    return CudaPrinter(program).statements();
}

}  // namespace tilewright::cuda::schedule
