// What functions with the same code read, place by place.
#pragma once

#include <cstdint>
#include <vector>

#include "torch/exchange.h"

namespace tilewright::torch {

/// Tells whether another function with the same code reads what an earlier one did: equal numbers,
/// the same objects, and tensors of the same dtypes, ranks and devices.
class ModPlan {
  public:
    /// `steps`: (place, kind, expected). A place is the index of a closure cell or the name of a
    /// global; kinds are those below; for a tensor, `expected` is (type, requires_grad, the tensor
    /// itself).
    explicit ModPlan(nb::sequence steps);

    /// Appends the tensors and their views; false if the function reads something else, or one
    /// tensor twice.
    bool read(nb::handle function, std::vector<nb::object>& tensors,
              std::vector<DLTensor>& views) const;

    enum Kind : std::uint8_t { kSame, kEqual, kTensor };

  private:
    struct Step {
        Kind kind;
        Py_ssize_t cell;  ///< -1: a global
        nb::object name, expected;
        bool requires_grad;
        DLDataType dtype;
        int rank;
        DLDeviceType device;
    };
    static bool fits(const Step& step, nb::handle value);

    std::vector<Step> steps_;
};

}  // namespace tilewright::torch
