// Entry point of the `tilewright` program.
#include <csignal>
#include <iostream>

#include "cli/app.h"

int main(int argc, char** argv) {
    // A closed pipe is an error of writing, which ends the program after its files are whole.
    std::signal(SIGPIPE, SIG_IGN);
    return tilewright::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
}
