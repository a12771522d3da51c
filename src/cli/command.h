// How subcommands of the `tilewright` program plug in.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tilewright/tensor.h"

namespace tilewright::cli {

/// What a subcommand gets. Data goes to `out`, messages to `error`; bad input is thrown as
/// UserError.
struct Console {
    std::ostream& out;
    std::ostream& error;
    /// 0: done, 1: a check failed. Bad usage and bad input become 2 outside of the subcommand.
    int status = 0;
};

/// "cpu", "cuda" or "cuda:N"; UserError for other texts and GPUs that are not there.
Device parse_device(const char* op, const std::string& text);

/// The integers of "64,32", `least` to `most` of them. UserError "[op] expected `form` but got
/// ...".
std::vector<std::int64_t> parse_integers(const char* op, const char* form, const std::string& text,
                                         std::size_t least, std::size_t most);

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
AddCommand add_mask;
AddCommand add_random;
AddCommand add_run;

}  // namespace tilewright::cli
