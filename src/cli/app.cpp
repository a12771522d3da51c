// The `tilewright` program: its subcommands and how errors become exit statuses.
#include "cli/app.h"

#include "cli/command.h"
#include "support/check.h"
#include "tilewright/error.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

}  // namespace

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& error) {
    CLI::App app("Block kernels and programmable attention.", "tilewright");
    app.set_version_flag("--version", TILEWRIGHT_VERSION);
    app.require_subcommand(1);
    Console console{out, error};
    for (AddCommand* add :
         {add_doctor, add_bench, add_attention, add_mask, add_dump, add_random, add_cache})
        add(app, console);
    try {
        // CLI11 would only say that a subcommand is missing.
        const auto named = [&](const CLI::App* sub) { return sub->check_name(arguments[0]); };
        if (!arguments.empty() && !arguments[0].starts_with('-') &&
            app.get_subcommands(named).empty()) {
            user_error("tilewright", "expected a subcommand (see --help) but got `{}`",
                       arguments[0]);
        }
        // CLI11 takes its arguments from the back of the vector.
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& parse_error) {
        return app.exit(parse_error, out, error) == 0 ? 0 : kBadInput;  // --help is one of these
    } catch (const UserError& user_error) {
        error << user_error.what() << '\n';
        return kBadInput;
    } catch (const std::exception& failure) {
        error << "tilewright failed: " << failure.what() << '\n';
        return kFailed;
    }
    return console.status;
}

}  // namespace tilewright::cli
