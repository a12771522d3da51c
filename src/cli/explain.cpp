// `tilewright explain`: why a program is not as fast as it might be.
#include <memory>

#include "cli/command.h"
#include "cli/kernel_choice.h"
#include "cuda/codegen/generate.h"
#include "tilewright/program.h"

namespace tilewright::cli {

void add_explain(CLI::App& app, Console& console) {
    auto choice = std::make_shared<KernelChoice>();
    CLI::App* command = app.add_subcommand(
        "explain", "why a program is not vectorised, not pipelined, not on wgmma, or spilled");
    add_kernel_choice(*command, *choice);
    command->add_option("--arch", choice->arch, "on a GPU, as sm_90a; else on this CPU")
        ->type_name("ARCH");
    command->callback([choice, &console] {
        const bool gpu = !choice->arch.empty();
        if (gpu) cuda::target_of(choice->arch);
        console.out << explain_text(choose_kernel("explain", *choice, gpu, true, console.input),
                                    choice->arch);
    });
}

}  // namespace tilewright::cli
