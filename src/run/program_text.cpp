// The forms of a program as text: bytecode, CUDA C++, PTX, machine code.
#include <string>

#include "cpu/machine.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "run/disassemble.h"
#include "support/check.h"
#include "tilewright/program.h"

namespace tilewright {
namespace {

/// The source with its generated headers in place of their #includes; it then needs only the
/// library's device headers.
std::string with_headers(const cuda::Generated& generated) {
    std::string text = generated.source;
    for (const cuda::Header& header : generated.headers) {
        const std::string include = fmt::format("#include \"{}\"\n", header.name);
        const std::size_t at = text.find(include);
        TW_ASSERT(at != std::string::npos);
        std::string body = header.text;
        constexpr std::string_view kOnce = "#pragma once\n";
        if (const std::size_t once = body.find(kOnce); once != std::string::npos)
            body.erase(once, kOnce.size());
        text.replace(at, include.size(), body);
    }
    return text;
}

}  // namespace

std::string program_text(std::string_view ir, ProgramForm form, std::string_view arch) {
    ir::Function function = ir::parse(ir);
    if (form == ProgramForm::bytecode) {
        ir::optimise(function);
        return cpu::to_string(*cpu::compile(function));
    }
    cuda::Target target = cuda::target_of(std::string(arch));
    target.facts = cuda::facts_of_dense(function, cuda::schedule::may_copy(function, target.arch));
    const cuda::Generated generated = cuda::schedule::generate_best(function, target);
    if (form == ProgramForm::cuda) return with_headers(generated);
    const cuda::Compiled compiled = cuda::compile(compile_request(generated, target.arch));
    const std::string resources = fmt::format(
        "// {} threads, {} registers, {} bytes of shared memory, {} bytes spilled\n",
        generated.threads, compiled.registers, generated.shared_bytes, compiled.spill_bytes);
    return resources +
           (form == ProgramForm::ptx ? compiled.ptx : run::disassembled(compiled.cubin));
}

}  // namespace tilewright
