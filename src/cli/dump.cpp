// `tilewright dump`: programs as text.
#include <fmt/format.h>

#include <algorithm>
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
    std::string kernel, to, dtype, arch;
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

ir::Function load_file(const DumpOptions& options) {
    if (!options.dtype.empty())
        user_error("dump", "expected a built-in program with --dtype but got the file {}",
                   options.kernel);
    if (!std::filesystem::is_regular_file(options.kernel))
        user_error("dump", "expected a built-in program or a file of IR text but `{}` is a {}",
                   options.kernel,
                   std::filesystem::is_directory(options.kernel) ? "folder" : "special file");
    std::ifstream file(options.kernel, std::ios::binary);
    return ir::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

/// The same program for every --to: in the blocks of a CPU and for fixed extents or, where --arch
/// or
/// --to speaks of a GPU, as calls run it there.
ir::Function load(const DumpOptions& options) {
    const bool is_flex = options.kernel == "flex" || options.kernel == "flex_backward";
    const std::pair<const char*, bool> of_flex[] = {{"mask", !options.mask.empty()},
                                                    {"score", !options.score.empty()},
                                                    {"bind", !options.bind.empty()}};
    for (const auto& [option, given] : of_flex)
        if (given && !is_flex)
            user_error("dump", "expected `flex` or `flex_backward` with --{} but got {}", option,
                       options.kernel);
    const std::vector<std::string> names = builtin_names();
    const bool named =
        is_flex || std::find(names.begin(), names.end(), options.kernel) != names.end();
    std::error_code no_such_file;
    if (!named && std::filesystem::exists(options.kernel, no_such_file)) return load_file(options);
    const DType dtype = options.dtype.empty() ? f32 : float_dtype("dump", options.dtype);
    const bool gpu = !options.arch.empty() || (options.to != "ir" && options.to != "bytecode");
    const ModTexts texts{options.mask, options.score, load_bindings("dump", options.bind)};
    const Builtin program = is_flex ? flex_builtin(dtype, texts, options.kernel != "flex", gpu)
                                    : builtin(options.kernel, dtype, gpu);
    return ir::parse((gpu ? program.call : fixed(program.call)).ir(program.inputs));
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
    if (options.to == "bytecode" && !options.arch.empty())
        user_error("dump", "expected --to ir, cuda, ptx or sass with --arch but got bytecode");
    if (options.optimised && options.to != "ir")
        user_error("dump", "expected --to ir with --optimised but got {}", options.to);
    if (!options.arch.empty()) cuda::target_of(options.arch);
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
                        "the GPU, as sm_90a: sm_80 by default; alone it means --to cuda");
    command->add_option("--dtype", options->dtype, "of a built-in program; f32 by default");
    command->add_option("--mask", options->mask, "flex: text of a mask, evaluated in the program");
    command->add_option("--score", options->score, "flex: text of a score");
    command->add_option("--bind", options->bind, "NAME=FILE: an array that the texts read");
    command->add_flag("--optimised", options->optimised, "ir: after the passes");
    command->callback([options, &console] { dump(*options, console); });
}

}  // namespace tilewright::cli
