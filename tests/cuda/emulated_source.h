// Generated CUDA C++ as text for the host's compiler.
#pragma once

#include <string>

namespace tilewright::testing_support {

/// The text that precedes any number of emulated kernels.
extern const char* const kEmulatedIncludes;

/// The text of a generated kernel without its includes, as `name`; then `run_<name>(void**
/// parameters, const unsigned* grid, int threads, unsigned seed)`, and `sizes_<name>`, the bytes of
/// each parameter, terminated by 0.
std::string emulated_source(const std::string& source, const std::string& kernel,
                            const std::string& name);

/// The command that compiles such a file to a shared object.
std::string emulated_compile_command(const std::string& file, const std::string& object,
                                     const std::string& options = "");

/// Users' CUDA C++ with shared memory adapted to the host: static, or the emulator's.
std::string emulated_user_source(const std::string& source);

}  // namespace tilewright::testing_support
