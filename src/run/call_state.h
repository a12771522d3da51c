// What a Call shares between its copies: kernel, options, batching and compiled programs.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lang/trace.h"
#include "run/executable.h"
#include "tilewright/run.h"

namespace tilewright::detail {

/// An application of vmap: the axis of each input and output that is the batch.
struct Batching {
    std::vector<int> in_axes;
    std::vector<int> out_axes;
};

// Declared in a public header, but not part of the API.
class __attribute__((visibility("hidden"))) CallState {
  public:
    CallState(Kernel kernel, CallOptions options, std::vector<Batching> batchings);

    /// Allocates outputs, which it returns, if `outputs` is empty, else writes to those. `ahead`:
    /// only compiles, in the background.
    std::vector<Tensor> run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            bool ahead);
    /// The traced kernel for such inputs; on CPUs in the tiles that the options ask for, unless it
    /// is `whole`.
    ir::Function trace(std::span<const Tensor> inputs, bool whole = false) const;
    int num_traces() const;
    Profile profile() const;

    const Kernel& kernel() const { return kernel_; }
    const CallOptions& options() const { return options_; }
    const std::vector<Batching>& batchings() const { return batchings_; }

  private:
    /// What a compiled program was specialised on, flattened into numbers.
    using Key = std::vector<std::int64_t>;
    struct Compiled {
        Key key;
        std::shared_ptr<const run::Executable> executable;
    };
    /// Types and grid of a run.
    struct Shapes {
        std::vector<std::int64_t> grid;
        std::vector<TensorType> outputs;
        bool checked = false;
        Device device;  ///< of the inputs and outputs
    };

    Shapes shapes(std::span<const Tensor> inputs) const;
    void check_options() const;
    void check_inputs(std::span<const Tensor> inputs) const;
    /// Checks what depends only on ranks and dtypes, once for each trace.
    void check_arguments(std::span<const Tensor> inputs, const Shapes& shapes) const;
    void check_aliases(std::span<const Tensor> inputs, const Shapes& shapes) const;
    /// Calls `put` with each number of the key.
    template <typename Put>
    void put_key(std::span<const Tensor> inputs, const Shapes& shapes, Put&& put) const;
    Key key(std::span<const Tensor> inputs, const Shapes& shapes) const;
    /// True if that is the key.
    bool is_key(const Key& key, std::span<const Tensor> inputs, const Shapes& shapes) const;
    lang::Signature signature(std::span<const Tensor> inputs, const Shapes& shapes) const;
    std::shared_ptr<const run::Executable> executable(std::span<const Tensor> inputs,
                                                      const Shapes& shapes);
    std::vector<Tensor> new_outputs(std::span<const Tensor> inputs, const Shapes& shapes) const;
    void check_outputs(std::span<const Tensor> given, const Shapes& shapes) const;
    void check_overlap(std::span<const Tensor> inputs, std::span<const Tensor> outputs) const;

    /// The axes of vmap's batches in an argument, outermost first; kNotMapped where it has none.
    std::vector<int> batch_axes(std::size_t argument, std::size_t num_inputs) const;
    /// The shape, with kDynamic for dimensions that may change without a new trace. Arguments count
    /// inputs, then outputs.
    std::vector<std::int64_t> traced_shape(std::size_t argument, std::size_t num_inputs,
                                           const std::vector<std::int64_t>& shape) const;
    std::string argument_name(std::size_t argument) const;
    bool is_sequential(std::size_t axis) const;

    Kernel kernel_;
    CallOptions options_;
    std::vector<Batching> batchings_;  ///< innermost first

    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Compiled>> compiled_;  ///< most recently used first
};

/// The device of the first defined input; the CPU if there is none.
Device device_of(std::span<const Tensor> inputs);

/// The batch axis of one of vmap's arguments.
inline int axis_of(const std::vector<int>& axes, std::size_t index, int otherwise) {
    return index < axes.size() ? axes[index] : otherwise;
}

/// `spec` for an array of rank `rank` with a batch dimension inserted at `axis` (kNotMapped: none),
/// in a grid whose first axis is the batch.
BlockSpec batched_spec(const BlockSpec& spec, int rank, int axis);

}  // namespace tilewright::detail
