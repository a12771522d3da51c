// The `tilewright` program: its subcommands and how errors become exit statuses.
#include "cli/app.h"

#include <new>
#include <span>

#include "cli/command.h"
#include "support/check.h"
#include "tilewright/error.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

/// Names the subcommands where the arguments should name one and do not; CLI11 would only say that
/// one is missing.
void expect_subcommand(const CLI::App& app, std::span<const std::string> arguments) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
    if (names.empty()) return;
    if (!arguments.empty()) {
        const std::string& first = arguments.front();
        if (app.get_option_no_throw(first) != nullptr) return;
        for (const CLI::App* sub : app.get_subcommands({}))
            if (sub->check_name(first)) return expect_subcommand(*sub, arguments.subspan(1));
    }
    user_error(app.get_name(), "expected one of {} (see --help) but got {}", fmt::join(names, ", "),
               arguments.empty() ? "nothing" : fmt::format("`{}`", arguments.front()));
}

/// An empty value is a variable of a script that was not set, never a wish.
void refuse_empty_values(CLI::App& app) {
    const auto check = [](const std::string& text) {
        return text.empty() ? "expected a value but got an empty text" : "";
    };
    for (CLI::Option* option : app.get_options({})) option->check(CLI::Validator(check, ""));
    for (CLI::App* sub : app.get_subcommands({})) refuse_empty_values(*sub);
}

}  // namespace

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& error) {
    CLI::App app("Block kernels and programmable attention.", "tilewright");
    app.set_version_flag("--version", TILEWRIGHT_VERSION);
    app.require_subcommand(1);
    Console console{out, error};
    for (AddCommand* add :
         {add_doctor, add_bench, add_attention, add_mask, add_dump, add_run, add_random, add_cache})
        add(app, console);
    refuse_empty_values(app);
    try {
        expect_subcommand(app, arguments);
        // CLI11 takes its arguments from the back of the vector.
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& parse_error) {
        return app.exit(parse_error, out, error) == 0 ? 0 : kBadInput;  // --help is one of these
    } catch (const UserError& user_error) {
        error << user_error.what() << '\n';
        return kBadInput;
    } catch (const std::bad_alloc&) {
        error << "[tilewright] expected sizes that fit in memory but there is too little of it\n";
        return kBadInput;
    } catch (const std::exception& failure) {
        error << "tilewright failed: " << failure.what() << '\n';
        return kFailed;
    }
    return console.status;
}

}  // namespace tilewright::cli
