// Recordings: what an operation launched, to be launched again without its host work.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// The launches of one run of an operation on the CPU, to be repeated on other arrays of the same
/// dtypes, shapes and strides: no checks, no look-ups, no choices. Immutable; may run on many
/// threads at once. Copies share it.
class Recording {
  public:
    /// An operation on the arrays that it is given.
    using Operation = std::function<void(const std::vector<Tensor>&)>;

    /// Runs `operation` on `arrays`, and keeps what this thread launches meanwhile. Its choices may
    /// depend on dtypes, shapes and strides; where it looks at elements by way of Tensor, or writes
    /// them, the recording is not complete.
    static Recording of(const std::vector<Tensor>& arrays, const Operation& operation);

    /// Whether the operation did nothing but launch kernels on the arrays, on new memory, and on
    /// owned memory that was there before, whose elements may be read again.
    bool complete() const;
    /// The same launches on arrays at these addresses. Only for complete recordings.
    void repeat(std::span<void* const> arrays) const;

  private:
    struct State;
    explicit Recording(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

}  // namespace tilewright
