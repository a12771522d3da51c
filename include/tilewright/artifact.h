// Artifacts: operations compiled ahead of time, as folders that run without tracing and without
// NVRTC (docs/how-to/export.md).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/program.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// An operation on arrays in CPU memory; gives its results, which are new ones.
using ExportedOperation = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct ExportOptions {
    /// Of the artifact, its header and the class in it; left out: that of the first kernel.
    std::string name = {};
    /// Names of the arrays, inputs before results; left out: x0, x1, ..., y0, y1, ...
    std::vector<std::string> names = {};
    bool cpu = true;                      ///< with what CPUs run
    std::vector<std::string> archs = {};  ///< with cubins for these GPUs, "sm_90a"; needs NVRTC
    /// What GPUs run in place of the operation, on the same arrays: with the blocks of a GPU, say.
    ExportedOperation gpu_operation = {};
};

/// Writes to `folder` what `operation` launches for arrays of the dtypes and shapes of `inputs`,
/// which are row-major: programs, cubins, a manifest and a C++17 header with a launcher. Other
/// arrays that kernels read, such as captures and masks, are kept with it as they are now. The
/// operation is run a few times. An earlier artifact in the folder is replaced. UserError for a
/// folder that holds anything else, for operations that do more than launch kernels (a mask that is
/// built in the call: build it before), and for what a GPU of `archs` cannot run.
void export_operation(const std::string& folder, const std::vector<Tensor>& inputs,
                      const ExportedOperation& operation, const ExportOptions& options = {});

/// The same for a kernel of IR text with static extents, as `Call::ir` and `tilewright dump --to
/// ir` print it. Arrays are its Refs in parameter order; those of one alias group are one array.
void export_program(const std::string& folder, std::string_view ir,
                    const ExportOptions& options = {});

/// An exported operation, ready to run on one device. Immutable; may run on many threads at once.
/// Copies share it.
class Artifact {
  public:
    /// UserError with the reason where the folder holds no artifact, one that is damaged or of
    /// another version, or one that is not for this device. `checksum`: that of the export which
    /// the caller was compiled for (the header's); "": any.
    explicit Artifact(const std::string& folder, Device device = {},
                      std::string_view checksum = {});

    /// Runs on one row-major array for each parameter, results included; on a GPU on this thread's
    /// CUDA stream. UserError when number, dtype, shape, strides or device of the arrays do not
    /// fit, or when one that is written shares memory with another.
    void run(std::span<const Tensor> arrays) const;
    /// The same on the inputs alone; gives the results.
    std::vector<Tensor> operator()(std::span<const Tensor> inputs) const;

    struct Parameter {
        std::string name;
        TensorType type;
        bool written = false;  ///< the operation stores to it
        bool result = false;   ///< what it held before is not read
    };
    const std::vector<Parameter>& parameters() const;
    const std::string& name() const;
    /// Distinguishes this export from every other one.
    const std::string& checksum() const;
    Device device() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

}  // namespace tilewright
