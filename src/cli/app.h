// The `tilewright` program: arguments in, exit status out.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace tilewright::cli {

/// Runs the program. `arguments` are without the program's name. Exit status: 0 done, 1 a check
/// failed or an error of our own, 2 bad usage or bad input.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& error);

}  // namespace tilewright::cli
