// Programs that have to run in order, shared among threads by the elements that they accumulate
// into.
#pragma once

#include <cstdint>
#include <optional>

#include "cpu/bytecode.h"
#include "cpu/execute.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// How the atomics of a function whose programs must run in order may be divided: every thread runs
/// all programs, but does only the elements that it owns. These have the same results, since what
/// is done to each comes in the same order. nullopt where programs write anything else, read the
/// array, or spend a considerable part of their time on other work, which all threads would do.
std::optional<DividedAtomics> divided_atomics(const ir::Function& function, const Program& program);

/// How a call's elements are divided among threads.
struct Division {
    int threads = 1;  ///< 1: one thread runs all programs
    int shift = 0;    ///< Ownership::shift

    /// What one of the threads owns.
    Ownership of(int thread) const;
};

/// Looks at the elements of one program, of which nothing has run yet: true where one thread is
/// faster, because the array is small and each element is far from the one before it. Then nothing
/// waits for an addition to the same element, and threads often write close to each other.
bool is_scattered(Frame& frame);

/// How to divide a call, among at most `threads`.
Division divide(const Program& program, const ir::Arguments& arguments, std::int64_t num_programs,
                int threads);

}  // namespace tilewright::cpu
