// Recordings: what an operation launched, for launching it again without the host work.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// The launches of one run of an operation on the CPU, for repeating them on other arrays with the
/// same dtypes, shapes and strides, without checks, lookups or choices. Immutable; may run on many
/// threads at once. Copies share it.
class Recording {
  public:
    /// An operation on the given arrays.
    using Operation = std::function<void(const std::vector<Tensor>&)>;

    /// Runs `operation` on `arrays` and records what this thread launches meanwhile. The
    /// operation's choices may depend on dtypes, shapes and strides; if it reads or writes elements
    /// through Tensor, the recording is not complete.
    static Recording of(const std::vector<Tensor>& arrays, const Operation& operation);

    /// Whether the operation did nothing but launch kernels on the arrays, on new memory, and on
    /// owned memory that existed before, whose elements a repeat reads again.
    bool complete() const;
    /// Repeats the launches on arrays at these addresses. Only for complete recordings.
    void repeat(std::span<void* const> arrays) const;

  private:
    struct State;
    explicit Recording(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

}  // namespace tilewright
