// Tile programs given as IR text, the form in which other front ends hand over their kernels.
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
    bool profile = false;  ///< time each line (CPU only)
    /// For each array of `run`: true where the program defines its contents, so that the checked
    /// mode poisons it first. Arrays past the end of the list are inputs.
    std::vector<bool> undefined = {};
};

/// A kernel made of IR text (docs/reference/ir.md), as `Call::ir` and `tilewright dump --to ir`
/// print it, compiled for one device. Immutable; may run on many threads at once. Copies share it.
class Program {
  public:
    /// Parses, verifies and, for the CPU, compiles. UserError for text that is not a kernel or that
    /// the device cannot run.
    explicit Program(std::string_view ir, ProgramOptions options = {});

    /// Runs on one array for each Ref that is not scratch, in parameter order; on a GPU, on this
    /// thread's CUDA stream. UserError when the number, dtypes, shapes or devices of the arrays do
    /// not match, or when a written array overlaps one outside its alias group.
    void run(std::span<const Tensor> arrays) const;

    /// A Ref that is not scratch.
    struct Parameter {
        std::string name;
        TensorType type;       ///< extents of -1 are taken from the call
        bool written = false;  ///< the program stores to it, or to memory it may share
        int alias_group = -1;  ///< Refs of one group may share memory
    };
    const std::vector<Parameter>& parameters() const;
    /// Times of its lines, over all runs; UserError without ProgramOptions::profile.
    Profile profile() const;
    const std::string& name() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

/// A form that a program is compiled to.
enum class ProgramForm : std::uint8_t {
    bytecode,  ///< bytecode of the CPU's tile machine
    cuda,      ///< CUDA C++ for arrays that are aligned and row-major
    ptx,       ///< the same as PTX; needs NVRTC
    sass,      ///< the same as machine code; needs NVRTC and nvdisasm
};

/// A program of IR text in another form, for reading; `arch` is the GPU architecture, such as
/// "sm_90a". Needs no GPU. UserError for what the device cannot run, or where a tool is missing.
std::string program_text(std::string_view ir, ProgramForm form, std::string_view arch = "sm_80");

/// Something that keeps a program from running as fast as it might.
struct Finding {
    std::string what;    ///< "a copy of f32[64, 128]"
    std::string reason;  ///< "its lanes are axis 1 where it is made and axis 0 where it is read"
    std::string source = {};  ///< "kernels.py:12"; empty where unknown
};

/// Why a program of IR text is not as fast as it might be. On a CPU (without `arch`): scalar paths,
/// copies, strided panels, scans in steps. On a GPU of that architecture: what uses no wgmma or
/// tensor cores, is not pipelined, or, where NVRTC is available, spills. TILEWRIGHT_DEBUG=1 prints
/// the same when a program is compiled. Needs no GPU. UserError for what the device cannot run.
std::vector<Finding> explain_program(std::string_view ir, std::string_view arch = {});
/// The same as text: a heading and a line for each finding, or "nothing found".
std::string explain_text(std::string_view ir, std::string_view arch = {});

/// A self-contained HTML page: the program's source (where the IR has source lines and the files
/// exist), IR, bytecode, CUDA C++ for `arch`, PTX and machine code side by side, with corresponding
/// lines linked, and the findings. A form whose tool (NVRTC, nvdisasm) is missing says so.
std::string program_page(std::string_view ir, std::string_view arch = "sm_80");

/// What a run of a program costs according to its IR, summed over the grid.
struct ProgramCost {
    double flops = 0;            ///< arithmetic on floats; a dot of m x k x n counts 2 m k n
    double transcendentals = 0;  ///< elements of exp, log, tanh, sqrt, ...
    double bytes_read = 0;       ///< by loads and atomics, of lanes inside their arrays
    double bytes_written = 0;    ///< by stores and atomics
    double array_bytes = 0;      ///< every array once, as with a perfect cache
    bool exact = true;  ///< false: a loop or branch depends on data, or the grid is sampled
};

/// Counts the program's work without running it. Loops whose bounds follow from the grid count
/// every iteration, others one; a branch on data counts its more expensive side. UserError for a
/// grid with dynamic extents.
ProgramCost program_cost(std::string_view ir);

/// The IR text of the program over a batch: `mapped` says which arrays get a leading dimension of
/// extent `size`; a leading grid axis runs the program for each batch element. UserError when
/// arrays that share memory are mapped differently.
std::string batched_ir(std::string_view ir, const std::vector<bool>& mapped, std::int64_t size);

}  // namespace tilewright
