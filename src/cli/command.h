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

/// What a subcommand gets. Data goes to `out`, which throws what it cannot write, messages to
/// `error`; bad input is thrown as UserError.
struct Console {
    std::ostream& out;
    std::ostream& error;
    StandardInput input;
    std::vector<std::string> arguments = {};  ///< of the program
    /// 0: done, 1: a check failed. Bad usage and bad input become 2 outside of the subcommand.
    int status = 0;

    /// Where lines for people go: not among the data that `-` put on standard output.
    std::ostream& notes(bool data_on_out) { return data_on_out ? error : out; }
};

/// "cpu", "cuda" or "cuda:N"; UserError for other texts and GPUs that are not there.
Device parse_device(const char* op, const std::string& text);

/// An integer of digits, with a suffix perhaps: k, M, G are powers of 1000, Ki, Mi, Gi of 1024.
/// Nothing for other texts and what passes 2^63 - 1.
std::optional<std::int64_t> parse_size(std::string_view text);

/// The integers of "64,1k", `least` to `most` of them, each as parse_size reads it. UserError "[op]
/// expected `form` but got ...".
std::vector<std::int64_t> parse_integers(const char* op, const char* form, const std::string& text,
                                         std::size_t least, std::size_t most);

/// An option whose value is an integer as parse_size reads it.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::int64_t& value,
                      const std::string& description);
CLI::Option* add_size(CLI::App& command, const std::string& name,
                      std::optional<std::int64_t>& value, const std::string& description);

/// --threads N: threads of the CPU for this process.
CLI::Option* add_threads(CLI::App& command);

/// Accepts these texts alone.
CLI::Validator one_of(std::vector<std::string> texts);
/// Accepts integers of `least` to `most`.
CLI::Validator integer_in(std::uint64_t least, std::uint64_t most);

/// Adds one subcommand. `app` and `console` outlive its callback, which does the work; options are
/// bound to a struct that the callback shares (std::make_shared), since the function has returned
/// by then.
///
/// A new subcommand: its own file src/cli/NAME.cpp, a line here, and one in app.cpp.
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
