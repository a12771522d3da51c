// Tile programs given as IR text: the road on which kernels of other front ends travel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/profile.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

struct ProgramOptions {
    Device device = {};    ///< where its arrays are
    bool checked = false;  ///< run in the checked mode (CPU only)
    bool profile = false;  ///< take the times of each line (CPU only)
    /// Per array of `run`: the program defines its contents, so the checked mode poisons it first.
    /// Arrays after the end are inputs.
    std::vector<bool> undefined = {};
};

/// A kernel made of IR text (docs/reference/ir.md), as `Call::ir` and `tilewright dump --to ir`
/// print it, compiled for one device. Immutable; may run on many threads at once. Copies share it.
class Program {
  public:
    /// Parses, verifies and, for the CPU, compiles. UserError for a text that is no kernel or that
    /// the device cannot run.
    explicit Program(std::string_view ir, ProgramOptions options = {});

    /// Runs on one array for each Ref that is not scratch, in parameter order; on a GPU on this
    /// thread's CUDA stream. UserError when number, dtype, shape or device of the arrays do not
    /// fit, or when a written array overlaps another one that has not its alias group.
    void run(std::span<const Tensor> arrays) const;

    /// One Ref that is not scratch.
    struct Parameter {
        std::string name;
        TensorType type;       ///< extents of -1 come with the call
        bool written = false;  ///< the program stores to it, or to memory it may share
        int alias_group = -1;  ///< Refs of one group may share memory
    };
    const std::vector<Parameter>& parameters() const;
    /// What its lines took, over all runs; UserError without ProgramOptions::profile.
    Profile profile() const;
    const std::string& name() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

/// What a program becomes.
enum class ProgramForm : std::uint8_t {
    bytecode,  ///< of the CPU's tile machine
    cuda,      ///< CUDA C++ for arrays that are aligned and row-major
    ptx,       ///< the same as PTX; needs NVRTC
    sass,      ///< and as machine code; needs nvdisasm besides
};

/// A program of IR text in another form, for reading; `arch` is the GPU, as "sm_90a". Needs no GPU.
/// UserError for what the machine cannot run, or names the tool that is missing.
std::string program_text(std::string_view ir, ProgramForm form, std::string_view arch = "sm_80");

/// Something that keeps a program from running as fast as it might.
struct Finding {
    std::string what;    ///< "a copy of f32[64, 128]"
    std::string reason;  ///< "its lanes are axis 1 where it is made and axis 0 where it is read"
    std::string source = {};  ///< "kernels.py:12"; empty where unknown
};

/// Why a program of IR text is not as fast as it might be: on a CPU (without `arch`) scalar paths,
/// copies of tiles and strided panels; on a GPU of that architecture what is not on wgmma or
/// tensor cores, not pipelined, or, where NVRTC is at hand, spilled. What TILEWRIGHT_DEBUG=1 says
/// when a program is compiled. Needs no GPU. UserError for what the machine cannot run.
std::vector<Finding> explain_program(std::string_view ir, std::string_view arch = {});
/// The same for people: a head, a line for each finding, "nothing found" without any.
std::string explain_text(std::string_view ir, std::string_view arch = {});

/// A page of HTML, whole in itself: the program's source where its IR says lines and the files are
/// there, IR, bytecode, CUDA C++ for `arch`, PTX and machine code side by side, with lines that
/// belong together linked, and the findings. What cannot be made here (NVRTC, nvdisasm) says so.
std::string program_page(std::string_view ir, std::string_view arch = "sm_80");

/// What a run of a program costs, by its IR. Sums over the grid.
struct ProgramCost {
    double flops = 0;            ///< arithmetic on floats; a dot of m x k x n counts 2 m k n
    double transcendentals = 0;  ///< exp, log, tanh, sqrt, ...: elements
    double bytes_read = 0;       ///< loads and atomics, of lanes inside of their arrays
    double bytes_written = 0;    ///< stores and atomics
    double array_bytes = 0;      ///< every array once: what a perfect cache would move
    bool exact = true;  ///< false: a loop or branch depends on data, or the grid is sampled
};

/// Counts the program's work without running it: loops whose bounds follow from the grid are
/// counted by iterations, others once, and of a branch on data the dearer side. UserError for a
/// grid of free extents.
ProgramCost program_cost(std::string_view ir);

/// The IR text of the program over a batch: `mapped` says which of its arrays get a leading
/// dimension of extent `size`; a leading grid axis runs it for each element. UserError when arrays
/// that share memory are mapped differently.
std::string batched_ir(std::string_view ir, const std::vector<bool>& mapped, std::int64_t size);

}  // namespace tilewright
