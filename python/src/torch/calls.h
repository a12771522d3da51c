// Calls of one operation on PyTorch tensors: results from torch's allocator, launches repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tilewright/recording.h"
#include "torch/exchange.h"

namespace tilewright::torch {

/// What one call needs besides its operands.
struct CallDetails {
    nb::handle first_argument;  ///< passed to `site.results` before the operands; may be null
    std::shared_ptr<const void> state;  ///< part of a call's types; may be null
    bool repeats = true;                ///< whether types decide what is launched
};

/// Remembers what to return and what was launched, by the types of the operands.
class Calls {
  public:
    /// Runs on operands, then results.
    using Run = std::function<void(std::span<const Tensor> arrays)>;

    /// A tuple of results, or None unless all operands are plain tensors. New types are checked by
    /// `site.results(*operands)`, which returns the arguments of torch.empty_strided for each
    /// result.
    nb::object call(nb::handle site, nb::sequence operands, const CallDetails& details,
                    const Run& run);
    /// The same on operands that are plain tensors.
    nb::object call(nb::handle site, Arguments& arguments, const CallDetails& details,
                    const Run& run);

    /// How a result is made.
    struct Wanted {
        nb::object arguments;  ///< of torch.empty_strided
        int like = -1;         ///< the operand that has the same dtype, device, shape and strides
        std::vector<std::int64_t> shape, strides;
        DLDataType dtype{};
        DLDevice device{};
    };
    using Make = std::function<DLTensor(const Wanted&)>;
    /// The same for a caller without the GIL, whose operands have no objects; `make` makes the
    /// results, in order.
    void call_released(nb::handle site, Arguments& arguments, const CallDetails& details,
                       const Make& make, const Run& run);

  private:
    struct Shape {
        std::vector<std::int64_t> types;
        std::vector<Wanted> results;
        std::shared_ptr<const void> state;  ///< kept alive, since types contain its address

        std::mutex mutex;
        std::shared_ptr<const Recording> recording;
        int tried = 0;  ///< recordings attempted
    };
    std::shared_ptr<Shape> find(const std::vector<std::int64_t>& types) const;
    std::shared_ptr<Shape> learn(nb::handle site, const Arguments& arguments,
                                 const CallDetails& details);
    /// Runs on operands and results, or repeats what an earlier call launched. Needs no GIL.
    static void launch(Shape& shape, const Arguments& arguments, std::span<const DLTensor> results,
                       const CallDetails& details, const Run& run);

    static constexpr std::size_t kMostShapes = 64;
    mutable std::mutex mutex_;                    ///< never held while Python code runs
    std::vector<std::shared_ptr<Shape>> shapes_;  ///< latest last
};

}  // namespace tilewright::torch
