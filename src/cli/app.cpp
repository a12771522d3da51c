// The `tilewright` program: its subcommands, and how errors become exit statuses.
#include "cli/app.h"

#include <cerrno>
#include <ios>
#include <new>
#include <span>
#include <system_error>

#include "cli/command.h"
#include "support/check.h"
#include "tilewright/error.h"
#include "tilewright/version.h"

namespace tilewright::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;
constexpr int kNobodyReads = 141;  // 128 + SIGPIPE, as shells report death by that signal

/// The subcommand that the arguments name, at any depth.
const CLI::App& named_command(const CLI::App& app, std::span<const std::string> arguments) {
    if (!arguments.empty()) {
        for (const CLI::App* sub : app.get_subcommands({}))
            if (sub->check_name(arguments.front()))
                return named_command(*sub, arguments.subspan(1));
    }
    return app;
}

/// Lists the subcommands if the arguments should name one and do not; CLI11 would only say that one
/// is missing.
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

/// Refuses empty values: they come from unset variables of scripts, not from intent.
void refuse_empty_values(CLI::App& app) {
    const auto check = [](const std::string& text) {
        return text.empty() ? "expected a value but got an empty text" : "";
    };
    for (CLI::Option* option : app.get_options({})) option->check(CLI::Validator(check, ""));
    for (CLI::App* sub : app.get_subcommands({})) refuse_empty_values(*sub);
}

/// CLI11's error in the form of all others: "[command] expected ... but got ...".
std::string message_of(const CLI::ParseError& error, const CLI::App& command) {
    const std::string text = error.what();
    const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
    // `text` without its ending `end`.
    const auto before = [&](const std::string& end) {
        return text.substr(0, text.size() - std::min(end.size(), text.size()));
    };
    std::string said = text;
    if (kind == CLI::ExitCodes::RequiredError) {
        const std::string name = before(" is required");
        said =
            name.starts_with('-')
                ? fmt::format("expected {} but it was left out", name)
                : fmt::format("expected an argument `{}` (see --help) but it was left out", name);
    } else if (kind == CLI::ExitCodes::ExtrasError) {
        // The text of CLI11 has them from the last to the first.
        said = fmt::format("expected nothing beyond what --help lists but got `{}`",
                           fmt::join(command.remaining(), " "));
    } else if (kind == CLI::ExitCodes::RequiresError) {
        const std::size_t at = text.find(" requires ");
        said = fmt::format("expected {} with {} but it was left out", text.substr(at + 10),
                           text.substr(0, at));
    } else if (kind == CLI::ExitCodes::ConversionError && text.starts_with("Could not convert: ")) {
        const std::string rest = text.substr(19);
        const std::size_t at = rest.find(" = ");
        said = fmt::format("{}: expected a number but got {}", rest.substr(0, at),
                           at == std::string::npos ? "none" : rest.substr(at + 3));
    } else if (kind == CLI::ExitCodes::ArgumentMismatch) {
        const std::string option = text.substr(0, text.find(':'));
        said = text.find("missing") != std::string::npos || text.find(" required") != text.npos
                   ? fmt::format("{}: expected a value but got none", option)
                   : fmt::format("{}: expected as many values as --help says", option);
    }
    return fmt::format("[{}] {}", command.get_name(), said);
}

int run_command(const std::vector<std::string>& arguments, Console& console) {
    CLI::App app("Block kernels and programmable attention.", "tilewright");
    app.set_version_flag("--version", TILEWRIGHT_VERSION);
    app.require_subcommand(1);
    app.get_formatter()->column_width(28);
    for (AddCommand* add : {add_doctor, add_bench, add_attention, add_mask, add_dump, add_explain,
                            add_export, add_run, add_random, add_precompile, add_warmup, add_cache})
        add(app, console);
    refuse_empty_values(app);
    try {
        expect_subcommand(app, arguments);
        // CLI11 takes its arguments from the back of the vector.
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& parse_error) {
        if (parse_error.get_exit_code() == 0)  // --help is one of these
            return app.exit(parse_error, console.out, console.error);
        console.error << message_of(parse_error, named_command(app, arguments)) << '\n';
        return kBadInput;
    } catch (const UserError& user_error) {
        console.error << user_error.what() << '\n';
        return kBadInput;
    } catch (const OutOfMemory& out_of_memory) {
        console.error << out_of_memory.what() << '\n';
        return kBadInput;
    } catch (const std::bad_alloc&) {
        console.error
            << "[tilewright] expected sizes that fit in memory but there is too little of it\n";
        return kBadInput;
    }
    return console.status;
}

/// While it lives, the stream throws if it cannot write.
class ThrowingStream {
  public:
    explicit ThrowingStream(std::ostream& stream) : stream_(stream), before_(stream.exceptions()) {
        stream_.exceptions(std::ios::badbit | std::ios::failbit);
    }
    ~ThrowingStream() {
        stream_.clear();
        stream_.exceptions(before_);
    }
    ThrowingStream(const ThrowingStream&) = delete;
    ThrowingStream& operator=(const ThrowingStream&) = delete;

  private:
    std::ostream& stream_;
    std::ios::iostate before_;
};

}  // namespace

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& error,
        std::istream& in) {
    Console console{out, error, StandardInput(in), arguments};
    try {
        const ThrowingStream throwing(out);
        errno = 0;
        const int status = run_command(arguments, console);
        out.flush();
        return status;
    } catch (const std::ios_base::failure&) {
        const int reason = errno;
        if (reason == EPIPE) return kNobodyReads;  // a reader such as `| head` has ended
        error << fmt::format("[tilewright] could not write all of standard output{}\n",
                             reason == 0 ? "" : ": " + std::generic_category().message(reason));
        return kFailed;
    } catch (const std::exception& failure) {
        error << fmt::format("[tilewright] failed: {}\n", failure.what());
        return kFailed;
    }
}

}  // namespace tilewright::cli
