// Helpers of the language tests: traces a kernel over whole arrays and counts instructions.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ir/function.h"
#include "lang/trace.h"
#include "tilewright/error.h"

namespace tilewright::lang {

inline Parameter input(DType dtype, std::vector<std::int64_t> extents, BlockSpec spec = {}) {
    return {"x", Parameter::Role::input, dtype, std::move(extents), std::move(spec), -1, false};
}

inline Parameter output(DType dtype, std::vector<std::int64_t> extents, BlockSpec spec = {}) {
    return {"z", Parameter::Role::output, dtype, std::move(extents), std::move(spec), -1, true};
}

/// Traces `body` as a kernel with these parameters.
template <typename F>
ir::Function traced(std::vector<Parameter> parameters, F body,
                    std::vector<std::int64_t> grid = {}) {
    Signature signature;
    signature.parameters = std::move(parameters);
    signature.grid = std::move(grid);
    return trace(kernel("test", std::move(body)), signature);
}

/// Runs `body(x)` inside a trace over one f32[8, 16] input.
inline ir::Function with_input(const std::function<void(Ref)>& body) {
    return traced({input(f32, {8, 16})}, [&](Ref x) { body(x); });
}

inline int count(const ir::Function& function, ir::Op op) {
    int n = 0;
    ir::walk(function.body, [&](const ir::Instruction& instruction) { n += instruction.op == op; });
    return n;
}

/// The message of the UserError that `body` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

}  // namespace tilewright::lang
