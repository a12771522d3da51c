// `tilewright dump`: programs as text.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/builtin.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "cpu/machine.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/launch_arguments.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct DumpOptions {
    std::string kernel, to, dtype = "f32", arch;
    std::string mask, score;
    std::vector<std::string> bind;
    bool optimised = false;
};

/// The call for the extents it is given alone, so that its text runs by itself, as in twj.op.
Call fixed(const Call& call) {
    CallOptions options = call.options();
    options.dynamic.clear();
    return Call(call.kernel(), options);
}

ir::Function load(const DumpOptions& options) {
    if (std::filesystem::is_directory(options.kernel)) {
        user_error("dump", "expected a kernel or a file of IR text but `{}` is a folder",
                   options.kernel);
    }
    std::ifstream file(options.kernel, std::ios::binary);
    std::string text;
    if (file && options.kernel.find('.') != std::string::npos) {
        text.assign(std::istreambuf_iterator<char>(file), {});
    } else {
        const DType dtype = float_dtype("dump", options.dtype);
        const bool is_flex = options.kernel == "flex" || options.kernel == "flex_backward";
        if (!is_flex && !(options.mask.empty() && options.score.empty()))
            user_error("dump",
                       "expected `flex` or `flex_backward` with --mask and --score but got {}",
                       options.kernel);
        const bool gpu = options.to != "ir" && options.to != "bytecode";
        const ModTexts texts{options.mask, options.score, load_bindings("dump", options.bind)};
        const Builtin program = is_flex ? flex_builtin(dtype, texts, options.kernel != "flex", gpu)
                                        : builtin(options.kernel, dtype, gpu);
        text = options.to == "ir" ? fixed(program.call).ir(program.inputs)
                                  : program.call.ir(program.inputs);
    }
    return ir::parse(text);
}

/// The machine code of a cubin as text, by the CUDA toolkit's disassembler.
std::string disassembled(const std::string& cubin) {
    const auto file = std::filesystem::temp_directory_path() /
                      fmt::format("tilewright_{}.cubin", static_cast<const void*>(cubin.data()));
    std::ofstream(file, std::ios::binary) << cubin;
    const std::string command = fmt::format("nvdisasm -c '{}' 2>&1", file.string());
    std::string text;
    FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) user_error("dump", "expected to start nvdisasm but the system refused");
    char buffer[4096];
    for (std::size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
        text.append(buffer, n);
    const int status = pclose(pipe);
    std::filesystem::remove(file);
    if (status != 0) {
        user_error("dump",
                   "expected nvdisasm on PATH, from a CUDA toolkit or the PyPI package "
                   "nvidia-cuda-nvdisasm, but got: {}",
                   text);
    }
    return text;
}

/// The text for a GPU whose every array is aligned and row-major, as most are.
std::string cuda_text(ir::Function function, const DumpOptions& options) {
    cuda::Target target = cuda::target_of(options.arch.empty() ? "sm_80" : options.arch);
    const ir::Function prepared = cuda::prepare(std::move(function));
    target.facts = cuda::facts_of_dense(prepared);
    const cuda::Generated generated = cuda::generate(prepared, target);
    if (options.to != "ptx" && options.to != "sass") return generated.source;
    const cuda::Compiled compiled = cuda::compile(compile_request(generated, target.arch));
    const std::string resources = fmt::format(
        "// {} threads, {} registers, {} bytes of shared memory, {} bytes spilled\n",
        generated.threads, compiled.registers, generated.shared_bytes, compiled.spill_bytes);
    return resources + (options.to == "ptx" ? compiled.ptx : disassembled(compiled.cubin));
}

void dump(DumpOptions options, Console& console) {
    if (options.to.empty()) options.to = options.arch.empty() ? "ir" : "cuda";
    ir::Function function = load(options);
    if (options.to == "cuda" || options.to == "ptx" || options.to == "sass") {
        console.out << cuda_text(std::move(function), options);
        return;
    }
    if (options.optimised || options.to == "bytecode") ir::optimise(function);
    console.out << (options.to == "ir" ? ir::print(function)
                                       : cpu::to_string(*cpu::compile(function)));
}

}  // namespace

void add_dump(CLI::App& app, Console& console) {
    auto options = std::make_shared<DumpOptions>();
    CLI::App* command = app.add_subcommand("dump", "a program as text");
    command
        ->add_option("kernel", options->kernel,
                     fmt::format("a file of IR text, or one of flex, flex_backward, {}",
                                 fmt::join(builtin_names(), ", ")))
        ->required();
    command->add_option("--to", options->to, "ir, bytecode, cuda, ptx or sass")
        ->check(CLI::IsMember({"ir", "bytecode", "cuda", "ptx", "sass"}));
    command->add_option("--arch", options->arch,
                        "the GPU of cuda, ptx and sass, as sm_90a; alone it means --to cuda");
    command->add_option("--dtype", options->dtype, "of a built-in program");
    command->add_option("--mask", options->mask, "flex: text of a mask, evaluated in the program");
    command->add_option("--score", options->score, "flex: text of a score");
    command->add_option("--bind", options->bind, "NAME=FILE: an array that the texts read");
    command->add_flag("--optimised", options->optimised, "the IR after the passes");
    command->callback([options, &console] { dump(*options, console); });
}

}  // namespace tilewright::cli
