// Recordings: what an operation launched, for launching it again without the host work.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// The launches of one run of an operation, for repeating them on other arrays with the same
/// dtypes, devices, shapes and strides, without checks, lookups or choices. Immutable; may run on
/// many threads at once. Copies share it.
class Recording {
  public:
    /// An operation on the given arrays.
    using Operation = std::function<void(const std::vector<Tensor>&)>;

    /// Runs `operation` on `arrays` and records what this thread launches meanwhile. The
    /// operation's choices may depend on dtypes, shapes and strides; if it reads or writes elements
    /// through Tensor, the recording is not complete.
    static Recording of(const std::vector<Tensor>& arrays, const Operation& operation);

    /// Whether it can be repeated: the operation only launched kernels, which are still loaded, on
    /// the arrays, on memory that it allocated, and on older tensors that own theirs, whose present
    /// elements a repeat reads. On a GPU only the engine for Hopper GPUs can be repeated.
    bool complete() const;
    /// Whether it is not complete because the operation launched kernels that later runs of it will
    /// not, as first calls of attention do (tilewright/first_calls.h): record it again later.
    bool is_early() const;
    /// Repeats the launches on arrays at these addresses, in the order of `of`; on a GPU, on this
    /// thread's CUDA stream. Only for complete recordings. False, with nothing launched, where the
    /// operation has to run itself: on a GPU while a graph is captured, on arrays that are not
    /// aligned to 16 bytes, and once a kernel has been unloaded. Always true on the CPU.
    bool repeat(std::span<void* const> arrays) const;

  private:
    struct State;
    explicit Recording(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

}  // namespace tilewright
