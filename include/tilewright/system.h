// The machine: devices, threads, and a report of what will be used.
#pragma once

#include <string>
#include <vector>

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// Names of the devices that calls can run on: "cpu", "cuda:0", ...
std::vector<std::string> devices();

/// Threads that calls on the CPU use, at most one for each core; 0 restores the default:
/// TILEWRIGHT_THREADS as it was at the first use, or else all cores.
/// Results do not depend on it. UserError for a negative number.
void set_num_threads(int threads);
int num_threads();

/// What this machine has, what will be used, what is missing and how to get it: lines for people.
std::string doctor();

}  // namespace tilewright
