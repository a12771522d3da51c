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

/// An operation on arrays in CPU memory; returns its results as new arrays.
using ExportedOperation = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct ExportOptions {
    /// Name of the artifact, its header and the class in it; empty: that of the first kernel.
    std::string name = {};
    /// Names of the arrays, inputs before results; empty: x0, x1, ..., y0, y1, ...
    std::vector<std::string> names = {};
    bool cpu = true;                      ///< include what CPUs run
    std::vector<std::string> archs = {};  ///< include cubins for these GPUs ("sm_90a"); needs NVRTC
    /// What GPUs run in place of the operation, on the same arrays: for instance with other blocks.
    ExportedOperation gpu_operation = {};
};

/// Writes to `folder` what `operation` launches for row-major arrays with the dtypes and shapes of
/// `inputs`: programs, cubins, a manifest and a C++17 header with a launcher. Other arrays that
/// kernels read, such as captures and masks, are saved with their present contents. Runs the
/// operation a few times. An earlier artifact in the folder is replaced. UserError for a folder
/// that holds anything else, for an operation that does more than launch kernels (a mask that is
/// built in the call: build it before), and for what a GPU of `archs` cannot run.
void export_operation(const std::string& folder, const std::vector<Tensor>& inputs,
                      const ExportedOperation& operation, const ExportOptions& options = {});

/// The same for a kernel given as IR text with static extents, as `Call::ir` and `tilewright dump
/// --to ir` print it. Its arrays are the Refs in parameter order; an alias group is one array.
void export_program(const std::string& folder, std::string_view ir,
                    const ExportOptions& options = {});

/// An exported operation, ready to run on one device. Immutable; may run on many threads at once.
/// Copies share it.
class Artifact {
  public:
    /// UserError with the reason when the folder holds no artifact, or one that is damaged, of
    /// another version or not for this device. `checksum` is that of the export that the caller was
    /// compiled for (from its header); "" accepts any.
    explicit Artifact(const std::string& folder, Device device = {},
                      std::string_view checksum = {});

    /// Runs on one row-major array for each parameter, results included; on a GPU, on this thread's
    /// CUDA stream. UserError when the number, dtypes, shapes, strides or devices of the arrays do
    /// not match, or when one that is written shares memory with another.
    void run(std::span<const Tensor> arrays) const;
    /// Runs on the inputs alone and returns the results.
    std::vector<Tensor> operator()(std::span<const Tensor> inputs) const;

    struct Parameter {
        std::string name;
        TensorType type;
        bool written = false;  ///< the operation stores to it
        bool result = false;   ///< its previous contents are not read
    };
    const std::vector<Parameter>& parameters() const;
    const std::string& name() const;
    /// Differs between any two exports.
    const std::string& checksum() const;
    Device device() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

}  // namespace tilewright
