// `tilewright doctor`: the library's report on this machine.
#include "cli/command.h"
#include "tilewright/system.h"

namespace tilewright::cli {

void add_doctor(CLI::App& app, Console& console) {
    app.add_subcommand("doctor", "what this machine has, what will be used, what is missing")
        ->callback([&console] { console.out << doctor(); });
}

}  // namespace tilewright::cli
