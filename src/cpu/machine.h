// The CPU tile machine: compiles a kernel to bytecode and runs its programs on all cores.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// A kernel compiled to bytecode; immutable, may run on many threads at once.
class Program;
class Profile;

/// Compiles a verified kernel. UserError names the op when something cannot run on the CPU.
std::shared_ptr<const Program> compile(const ir::Function& kernel);

/// Runs body(i) for i in [0, n), each exactly once, on any threads, and returns when all are done.
/// A framework may hand in its own pool.
using ParallelFor =
    std::function<void(std::int64_t n, const std::function<void(std::int64_t)>& body)>;

/// Runs every program of the grid. Without `parallel_for` programs run on oneTBB with
/// set_num_threads() threads. The results do not depend on the number of threads.
void run(const Program& program, const ir::Arguments& arguments,
         const ParallelFor& parallel_for = {});

/// The same, adding what each instruction took to the profile.
void run(const Program& program, const ir::Arguments& arguments, Profile& profile);

/// The ParallelFor of `run` when none is given: oneTBB with set_num_threads() threads.
void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body);

/// In which order `run` begins programs of these costs. Neighbours read the same arrays, so they
/// stay together while there is much left; of the last ones the longest come first, so that no
/// thread starts one when the others are done.
std::vector<std::int64_t> uneven_order(const std::vector<std::int64_t>& costs, int threads);

/// Readable listing of the bytecode: buffers, instructions, strips, superinstructions.
std::string to_string(const Program& program);

/// The listing of one instruction, a strip operation on each further line.
std::string to_string(const Program& program, std::size_t instruction);

/// Threads used by `run`, no more than there are cores; 0 restores the default, TILEWRIGHT_THREADS
/// or else all cores. UserError when that variable is no positive number.
void set_num_threads(int threads);
int num_threads();

}  // namespace tilewright::cpu
