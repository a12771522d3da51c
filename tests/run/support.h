// Helpers of the call tests: small inputs, one-program calls, error texts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/tilewright.h"

namespace tilewright {

/// The message of the UserError or OutOfMemory that `body` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const UserError& error) {
        return error.what();
    } catch (const OutOfMemory& error) {
        return error.what();
    }
    return "";
}

/// Small integers, so that sums are exact in f32.
inline Tensor ramp(Tensor::Dims shape, double scale = 1) {
    Tensor t = Tensor::empty(f32, std::move(shape));
    Tensor flat = t.reshape({t.size()});
    for (std::int64_t i = 0; i < t.size(); ++i) {
        flat.set({i}, scale * static_cast<double>(i % 13 - 6));
    }
    return t;
}

/// Runs `body(inputs..., output)` as one program over whole arrays.
template <typename F>
Tensor run_once(F body, TensorType type, const std::vector<Tensor>& inputs) {
    return call(kernel("once", std::move(body)), {.out_type = {type}}).run(inputs).front();
}

}  // namespace tilewright
