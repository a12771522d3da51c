// Tile IR to CUDA C++.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/codegen/analysis.h"
#include "cuda/runtime/compiler.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda {

/// What a kernel is generated for.
struct Target {
    std::string arch = "sm_80";    ///< NVRTC's name
    int shared_bytes = 99 * 1024;  ///< the most that a block may have
    std::vector<RefFacts> facts;   ///< one per global Ref; empty: nothing is known
    /// The text has comments "// @N" where the code of an instruction from line N of the source
    /// begins.
    bool mark_lines = false;
    /// Of matrix products on Hopper GPUs; none: the estimated best one.
    std::optional<schedule::Choice> choice = std::nullopt;
};

/// A property of a kernel that its author may want to change.
struct Note {
    std::string what, reason;
    ir::Location location = {};
};

/// The target for an architecture by name, "sm_90a"; UserError for one that is unknown or older
/// than sm_80.
Target target_of(const std::string& arch);

/// A tensor map parameter: of a global Ref, in the 128-byte swizzle.
struct MapParameter {
    int ref = 0;                    ///< index among the global Refs
    std::vector<std::int64_t> box;  ///< elements, one per dimension of the Ref
    bool tf32 = false;              ///< f32 elements are operands of tf32 products
};

/// A kernel as text, and how to launch it.
struct Generated {
    std::string name;    ///< of the __global__ function
    std::string source;  ///< CUDA C++ that includes the embedded device headers
    int threads = 0;
    int shared_bytes = 0;  ///< dynamic
    std::string largest;   ///< of its buffers: "32768 for `dot`"
    int num_refs = 0;      ///< parameters: one Array per global Ref, the scalars as u64 bits, then
    int num_scalars = 0;   ///< the grid's extents as i64
    int num_axes = 0;
    /// Global memory for each program's scratch where shared memory cannot hold it; 0: none. Two
    /// more parameters then follow: the address of the workspace of the launch's programs, and the
    /// index of the first program as u32.
    std::int64_t workspace_bytes = 0;

    std::vector<Note> notes;  ///< what is not done in the fastest way, and why

    // For kernels of the scheduled form (cuda/schedule).
    /// Extents of the grid that the kernel counts its programs in: the call's, then static ones.
    std::vector<std::int64_t> grid;
    bool is_persistent = false;  ///< one block per multiprocessor goes through all programs
    /// The launch has a second axis: blocks of its first row, one per multiprocessor, go through
    /// most programs, and those of the other rows have one each, which make up for unequal ones.
    bool has_rows = false;
    int cluster = 1;                 ///< thread blocks of a cluster
    std::vector<MapParameter> maps;  ///< parameters after the grid's extents
    std::vector<Header> headers;     ///< included by the source
};

/// Brings a traced kernel into the form that `generate` takes: optimised, and blocks larger than a
/// thread block's registers cut by `retile` (the grid then has further axes with static extents
/// after those of `kernel`). UserError names an op that cannot be cut.
/// `arch`: the architecture that code will be generated for; it decides whether the thread blocks
/// of a cluster may share a program.
ir::Function prepare(ir::Function kernel, const std::string& arch = "sm_80");

/// Generates a prepared kernel. Scratch that shared memory cannot hold is in a workspace.
/// UserError, with the sizes, when the tiles do not fit a multiprocessor.
Generated generate(const ir::Function& kernel, const Target& target);

/// The same as a program without roles of the scheduled form, at level `split`, `placed` or
/// `synchronised`.
schedule::Program scheduled_without_roles(const ir::Function& kernel, const Target& target,
                                          schedule::Level up_to = schedule::Level::synchronised);

/// The request that compiles the source with NVRTC.
CompileRequest compile_request(const Generated& generated, const std::string& arch);

}  // namespace tilewright::cuda
