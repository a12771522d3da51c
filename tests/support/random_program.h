// Random verified tile programs by seed: the input of every property test of passes and machines.
//
// A program reads input Refs, works on tiles of all dtypes and small odd shapes through all classes
// of ops and control flow, and writes Refs whose leading dimensions are the grid's, so that its
// programs never race. The same seed and options give the same program on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"
#include "tests/support/googletest.h"

namespace tilewright::testing {

struct RandomProgramOptions {
    int instructions = 40;     ///< about this many at the top level
    bool control_flow = true;  ///< for_loop, while_loop, if_else, call
    bool memory = true;        ///< gathers, scatters, masks, scratch, atomics, lanes outside
    /// Only what two machines must agree on bit for bit: integers, data movement, and float ops
    /// that round once in any order (no exp, dot of floats, float sums, mul that may be
    /// contracted).
    bool exact = false;
};

/// A kernel that passes the verifier.
ir::Function random_program(std::uint64_t seed, const RandomProgramOptions& options = {});

/// Arrays and scalars for a kernel: dynamic extents are drawn, elements are small numbers with a
/// few zeros, infinities and NaNs. Two objects with one seed have equal bytes.
class RandomArguments {
  public:
    RandomArguments(const ir::Function& kernel, std::uint64_t seed);

    /// Valid while this object lives and is not moved.
    const ir::Arguments& arguments() const { return arguments_; }
    /// One per global Ref, dense and row-major.
    const std::vector<std::vector<unsigned char>>& arrays() const { return arrays_; }

  private:
    ir::Arguments arguments_;
    std::vector<std::vector<unsigned char>> arrays_;
};

/// Index of the first Ref whose arrays differ after a run, or -1. NaNs are equal, and -0 equals +0.
/// Floats may differ by `relative` of the larger magnitude.
int first_difference(const ir::Function& kernel, const RandomArguments& a, const RandomArguments& b,
                     double relative = 0);

}  // namespace tilewright::testing
