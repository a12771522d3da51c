// The CPU tile machine: compiles a kernel to bytecode and runs its programs on all cores.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// A kernel compiled to bytecode; immutable, and may run on many threads at once.
class Program;
class Profile;

/// Compiles a verified kernel. UserError names an op that cannot run on the CPU.
std::shared_ptr<const Program> compile(const ir::Function& kernel);

/// Runs every program of the grid on oneTBB with set_num_threads() threads. The results do not
/// depend on the number of threads.
void run(const Program& program, const ir::Arguments& arguments);

/// The same, adding the times of each instruction to the profile.
void run(const Program& program, const ir::Arguments& arguments, Profile& profile);

/// Runs body(i) for i in [0, n), each exactly once, on set_num_threads() threads of oneTBB, and
/// returns when all are done.
void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body);

/// The order in which `run` starts programs with these costs. Neighbours read the same arrays, so
/// most of them stay in order; the last ones run longest first, so that no thread starts a long one
/// when the others are done.
std::vector<std::int64_t> uneven_order(const std::vector<std::int64_t>& costs, int threads);

/// Readable listing of the bytecode: buffers, instructions, strips, superinstructions.
std::string to_string(const Program& program);

/// The listing of one instruction, with one further line for each strip operation.
std::string to_string(const Program& program, std::size_t instruction);

/// Threads used by `run`, at most one per core; 0 restores the default, TILEWRIGHT_THREADS or else
/// all cores. UserError when that variable is not a positive number.
void set_num_threads(int threads);
int num_threads();

}  // namespace tilewright::cpu
