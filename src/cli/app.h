// The `tilewright` program: arguments in, exit status out.
#pragma once

#include <iostream>
#include <string>
#include <vector>

namespace tilewright::cli {

/// Runs the program. `arguments` do not include the program's name. Exit status: 0: done; 1: a
/// check failed, output could not be written, or an internal error; 2: bad usage or bad input; 141:
/// the reader of the output has gone.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& error,
        std::istream& in = std::cin);

}  // namespace tilewright::cli
