// `tilewright dump`: programs as text.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/builtin.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "support/check.h"
#include "tilewright/program.h"

namespace tilewright::cli {
namespace {

struct DumpOptions {
    std::string kernel, to, dtype, arch;
    std::string mask, score;
    std::vector<std::string> bind;
    bool optimised = false;
};

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
/// or --to speaks of a GPU, as calls run it there.
ir::Function load(const DumpOptions& options, StandardInput& input) {
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
    const ModTexts texts{options.mask, options.score, load_bindings("dump", options.bind, &input)};
    const Builtin program = is_flex ? flex_builtin(dtype, texts, options.kernel != "flex", gpu)
                                    : builtin(options.kernel, dtype, gpu);
    return ir::parse((gpu ? program.call : fixed(program.call)).ir(program.inputs));
}

/// The scheduled form of a program after a pass, for arrays as below.
std::string schedule_text(const ir::Function& function, const DumpOptions& options) {
    namespace schedule = cuda::schedule;
    cuda::Target target = cuda::target_of(options.arch.empty() ? "sm_90a" : options.arch);
    target.facts = cuda::facts_of_dense(function);
    const std::size_t colon = options.to.find(':');
    const std::string level = colon == std::string::npos ? "" : options.to.substr(colon + 1);
    const auto up_to = level.empty() ? schedule::Level::synchronised : schedule::parse_level(level);
    if (!up_to) {
        user_error("dump", "expected a level of {} after `schedule:` but got `{}`",
                   schedule::level_names(), level);
    }
    try {
        return schedule::print(schedule::schedule(function, target, *up_to));
    } catch (const schedule::Refused& refused) {
        user_error("dump", "expected a program of the scheduled form but {}", refused.what());
    }
}

void dump(DumpOptions options, Console& console) {
    if (options.to.empty()) options.to = options.arch.empty() ? "ir" : "cuda";
    if (options.to == "bytecode" && !options.arch.empty())
        user_error("dump",
                   "expected --to ir, schedule, cuda, ptx or sass with --arch but got bytecode");
    if (options.optimised && options.to != "ir")
        user_error("dump", "expected --to ir with --optimised but got {}", options.to);
    if (!options.arch.empty()) cuda::target_of(options.arch);
    ir::Function function = load(options, console.input);
    if (options.to.starts_with("schedule")) {
        console.out << schedule_text(function, options);
        return;
    }
    if (options.optimised) ir::optimise(function);
    const std::string text = ir::print(function);
    const std::map<std::string, ProgramForm> forms{{"bytecode", ProgramForm::bytecode},
                                                   {"cuda", ProgramForm::cuda},
                                                   {"ptx", ProgramForm::ptx},
                                                   {"sass", ProgramForm::sass}};
    console.out << (options.to == "ir"
                        ? text
                        : program_text(text, forms.at(options.to),
                                       options.arch.empty() ? "sm_80" : options.arch));
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
    const auto form = [](const std::string& text) -> std::string {
        for (const char* known : {"ir", "bytecode", "schedule", "cuda", "ptx", "sass"}) {
            if (text == known) return {};
        }
        if (text.starts_with("schedule:")) return {};
        return "expected ir, bytecode, schedule[:LEVEL], cuda, ptx or sass but got " + text;
    };
    command
        ->add_option("--to", options->to,
                     "ir, bytecode, schedule[:LEVEL] (of sm_90a), cuda, ptx or sass [ir; with "
                     "--arch cuda]")
        ->type_name("FORM")
        ->check(CLI::Validator(form, ""));
    command->add_option("--arch", options->arch, "the GPU, as sm_90a [sm_80]")->type_name("ARCH");
    command->add_option("--dtype", options->dtype, "of a built-in program: f32, f64, f16 or bf16")
        ->type_name("TYPE")
        ->default_str("f32");
    command->add_option("--mask", options->mask, "flex: a mask, evaluated in the program")
        ->type_name("TEXT");
    command->add_option("--score", options->score, "flex: a score mod")->type_name("TEXT");
    command
        ->add_option(
            "--bind", options->bind,
            "an array that the texts read: .npy, .safetensors[:NAME], - for standard input "
            "(repeatable)")
        ->type_name("NAME=FILE");
    command->add_flag("--optimised", options->optimised, "ir: after the passes");
    command->callback([options, &console] { dump(*options, console); });
}

}  // namespace tilewright::cli
