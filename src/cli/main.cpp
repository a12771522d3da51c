// Entry point of the `tilewright` program.
#include <iostream>

#include "cli/app.h"

int main(int argc, char** argv) {
    return tilewright::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
}
