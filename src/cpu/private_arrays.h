// Small arrays that programs only accumulate into: each thread has its own copy, without atomics.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "cpu/bytecode.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// Finds the Refs that a function accesses only by integer atomics of one kind whose old values are
/// not used: the results do not depend on the order. Empty unless this holds for all atomics.
std::vector<PrivateRef> private_refs(const ir::Function& function);

/// A thread's copy of an argument.
struct PrivateArray {
    std::uint32_t ref = 0;  ///< index in Program::refs
    ir::RefArgument argument;
};

/// The copies of one call. Threads share one object.
class PrivateArrays {
  public:
    /// Larger arrays would take longer to combine than atomics take.
    static constexpr std::int64_t kMostBytes = std::int64_t{64} << 10;

    PrivateArrays(const Program& program, const ir::Arguments& arguments);

    bool empty() const { return arrays_.empty(); }

    /// Makes a thread's copies in `memory`, initially the identity.
    void begin(std::vector<std::byte>& memory, std::vector<PrivateArray>& own) const;
    /// Combines a thread's copies into the arrays.
    void end(const std::vector<PrivateArray>& own);

  private:
    struct Array {
        PrivateRef ref;
        ir::RefArgument shared;
        std::int64_t count = 0;
    };
    const Program& program_;
    std::vector<Array> arrays_;
    std::mutex mutex_;
};

}  // namespace tilewright::cpu
