// `tilewright dump`: programs as text or on an HTML page.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/kernel_choice.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "support/check.h"
#include "support/write_file.h"
#include "tilewright/program.h"

namespace tilewright::cli {
namespace {

struct DumpOptions {
    KernelChoice choice;
    std::string to, html;
    bool optimised = false;
};

/// The scheduled form of a program at a level or after a pass, for arrays that are aligned and
/// row-major.
std::string schedule_text(const ir::Function& function, const DumpOptions& options) {
    namespace schedule = cuda::schedule;
    const std::string& arch = options.choice.arch;
    cuda::Target target = cuda::target_of(arch.empty() ? "sm_90a" : arch);
    target.facts = cuda::facts_of_dense(function, cuda::schedule::may_copy(function, target.arch));
    const std::size_t colon = options.to.find(':');
    if (colon == std::string::npos) {
        return schedule::print(schedule::schedule_any(function, target));
    }
    const std::string stop = options.to.substr(colon + 1);
    if (const auto level = schedule::parse_level(stop)) {
        return schedule::print(schedule::schedule_any(function, target, *level));
    }
    const auto level = schedule::level_of_pass(stop);
    if (!level) {
        user_error("dump", "expected a level of {} or a pass of {} after `schedule:` but got `{}`",
                   schedule::level_names(), schedule::pass_names(), stop);
    }
    return schedule::print(schedule::schedule_any(function, target, *level, stop));
}

void dump_page(const DumpOptions& options, Console& console) {
    const std::string arch = options.choice.arch.empty() ? "sm_80" : options.choice.arch;
    // With the blocks for a CPU, which both machines support.
    const std::string text = choose_kernel("dump", options.choice, false, true, console.input);
    const std::string page = program_page(text, arch);
    if (options.html == "-") {
        console.out << page;
        return;
    }
    write_file("dump", options.html, [&](std::ostream& out) { out << page; });
    console.error << fmt::format("{}: {} KiB\n", options.html, (page.size() + 1023) / 1024);
}

/// Shows the same program for every --to: the one for a GPU if --arch or --to refers to one.
void dump(DumpOptions options, Console& console) {
    std::string& arch = options.choice.arch;
    if (!options.html.empty()) {
        if (!options.to.empty() || options.optimised)
            user_error("dump", "expected --html alone, which has every form, but got {}",
                       options.to.empty() ? "--optimised" : "--to");
        return dump_page(options, console);
    }
    if (options.to.empty()) options.to = arch.empty() ? "ir" : "cuda";
    if (options.to == "bytecode" && !arch.empty())
        user_error("dump",
                   "expected --to ir, schedule, cuda, ptx or sass with --arch but got bytecode");
    if (options.optimised && options.to != "ir")
        user_error("dump", "expected --to ir with --optimised but got {}", options.to);
    if (!arch.empty()) cuda::target_of(arch);
    const bool gpu = !arch.empty() || (options.to != "ir" && options.to != "bytecode");
    ir::Function function =
        ir::parse(choose_kernel("dump", options.choice, gpu, false, console.input));
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
                        : program_text(text, forms.at(options.to), arch.empty() ? "sm_80" : arch));
}

}  // namespace

void add_dump(CLI::App& app, Console& console) {
    auto options = std::make_shared<DumpOptions>();
    CLI::App* command = app.add_subcommand("dump", "a program as text, or on a page of HTML");
    add_kernel_choice(*command, options->choice);
    const auto form = [](const std::string& text) -> std::string {
        for (const char* known : {"ir", "bytecode", "schedule", "cuda", "ptx", "sass"}) {
            if (text == known) return {};
        }
        if (text.starts_with("schedule:")) return {};
        return "expected ir, bytecode, schedule[:LEVEL|PASS], cuda, ptx or sass but got " + text;
    };
    command
        ->add_option("--to", options->to,
                     "ir, bytecode, schedule[:LEVEL|PASS] (for sm_90a), cuda, ptx or sass [ir; "
                     "with --arch cuda]")
        ->type_name("FORM")
        ->check(CLI::Validator(form, ""));
    command->add_option("--arch", options->choice.arch, "the GPU, as sm_90a [sm_80]")
        ->type_name("ARCH");
    command
        ->add_option("--html", options->html,
                     "every form side by side, with lines that belong together linked; - for "
                     "standard output")
        ->type_name("FILE");
    command->add_flag("--optimised", options->optimised, "ir: after the passes");
    command->callback([options, &console] { dump(*options, console); });
}

}  // namespace tilewright::cli
