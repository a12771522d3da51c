// `tilewright dump`: programs as text.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <memory>

#include "cli/builtin.h"
#include "cli/command.h"
#include "cpu/machine.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct DumpOptions {
    std::string kernel, to = "ir", dtype = "f32";
    std::string mask, score;
    bool optimised = false;
};

ir::Function load(const DumpOptions& options) {
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
        const Builtin program =
            is_flex ? flex_builtin(dtype, options.mask, options.score, options.kernel != "flex")
                    : builtin(options.kernel, dtype);
        text = program.call.ir(program.inputs);
    }
    return ir::parse(text);
}

void dump(const DumpOptions& options, Console& console) {
    ir::Function function = load(options);
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
    command->add_option("--to", options->to, "ir or bytecode")
        ->check(CLI::IsMember({"ir", "bytecode"}));
    command->add_option("--dtype", options->dtype, "of a built-in program");
    command->add_option("--mask", options->mask, "flex: text of a mask, evaluated in the program");
    command->add_option("--score", options->score, "flex: text of a score");
    command->add_flag("--optimised", options->optimised, "the IR after the passes");
    command->callback([options, &console] { dump(*options, console); });
}

}  // namespace tilewright::cli
