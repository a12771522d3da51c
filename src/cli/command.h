// How subcommands of the `tilewright` program plug in.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/tensor_file.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// What a subcommand is given. Data goes to `out`, which throws if it cannot write, messages to
/// `error`; bad input is a UserError.
struct Console {
    std::ostream& out;
    std::ostream& error;
    StandardInput input;
    std::vector<std::string> arguments = {};  ///< the program's arguments
    /// 0: done; 1: a check failed. Bad usage and bad input become 2 outside the subcommand.
    int status = 0;

    /// The stream for messages to users, kept apart from data that `-` sends to standard output.
    std::ostream& notes(bool data_on_out) { return data_on_out ? error : out; }
};

/// "cpu", "cuda" or "cuda:N"; UserError for other text and for GPUs that do not exist.
Device parse_device(const char* op, const std::string& text);

/// Digits, optionally with a suffix: k, M and G are powers of 1000, Ki, Mi and Gi of 1024. nullopt
/// for other text and for more than 2^63 - 1.
std::optional<std::int64_t> parse_size(std::string_view text);

/// The `least` to `most` integers of text such as "64,1k", each read by parse_size. UserError "[op]
/// expected `form` but got ..." for other text.
std::vector<std::int64_t> parse_integers(const char* op, const char* form, const std::string& text,
                                         std::size_t least, std::size_t most);

/// Adds an option whose value is an integer, read by parse_size.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::int64_t& value,
                      const std::string& description);
CLI::Option* add_size(CLI::App& command, const std::string& name,
                      std::optional<std::int64_t>& value, const std::string& description);

/// Adds --threads N: the number of CPU threads for this process.
CLI::Option* add_threads(CLI::App& command);

/// Accepts only these texts.
CLI::Validator one_of(std::vector<std::string> texts);
/// Accepts integers from `least` to `most`.
CLI::Validator integer_in(std::uint64_t least, std::uint64_t most);

/// Adds a subcommand. `app` and `console` outlive its callback, which does the work; options are
/// bound to a struct that the callback shares (std::make_shared), because the function has returned
/// by then.
///
/// A new subcommand needs its own file src/cli/NAME.cpp, a line here and one in app.cpp.
using AddCommand = void(CLI::App& app, Console& console);

AddCommand add_attention;
AddCommand add_bench;
AddCommand add_cache;
AddCommand add_doctor;
AddCommand add_dump;
AddCommand add_explain;
AddCommand add_export;
AddCommand add_mask;
AddCommand add_precompile;
AddCommand add_random;
AddCommand add_run;
AddCommand add_warmup;

}  // namespace tilewright::cli
