// Entry point of the `tilewright` program.
#include <csignal>
#include <iostream>

#include "cli/app.h"

int main(int argc, char** argv) {
    // A closed pipe is then a write error, which ends the program after its files are complete.
    std::signal(SIGPIPE, SIG_IGN);
    return tilewright::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
}
