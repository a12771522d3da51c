// Builds small kernels and their arguments for tests of the CPU machines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/launch.h"

namespace tilewright::cpu {

/// A dense row-major array of the caller.
template <typename T>
struct Array {
    std::vector<T> data;
    std::vector<std::int64_t> extents;

    explicit Array(std::vector<T> values)
        : data(std::move(values)), extents{static_cast<std::int64_t>(data.size())} {}
    Array(std::vector<T> values, std::vector<std::int64_t> shape)
        : data(std::move(values)), extents(std::move(shape)) {}

    ir::RefArgument argument() {
        ir::RefArgument result;
        result.data = data.data();
        std::int64_t stride = 1;
        for (std::size_t d = extents.size(); d-- > 0; stride *= extents[d]) {
            result.extents[d] = extents[d];
            result.strides[d] = stride;
        }
        return result;
    }
};

/// A kernel under construction, with shorthands for its most used instructions.
struct Kernel {
    ir::Function function;
    ir::Builder b{function};

    explicit Kernel(std::string name = "kernel", std::vector<std::int64_t> grid = {}) {
        function.name = std::move(name);
        function.grid = std::move(grid);
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    ir::Value ref(const std::string& name, DType dtype, std::vector<std::int64_t> extents,
                  int alias_group = -1) {
        ir::RefType type{dtype, std::move(extents), ir::Space::global, alias_group};
        return function.add_parameter(type, name);
    }
    ir::Value scratch(const std::string& name, DType dtype, std::vector<std::int64_t> extents) {
        ir::RefType type{dtype, std::move(extents), ir::Space::scratch, -1};
        return function.add_parameter(type, name);
    }
    ir::Value index(std::int64_t value) { return b.constant_int({DType::i64, {}}, value); }
    ir::IndexOperand at(std::int64_t value) { return ir::IndexOperand::scalar(index(value)); }
    ir::IndexOperand slice(std::int64_t start, std::int64_t size, std::int64_t stride = 1) {
        return ir::IndexOperand::slice(index(start), size, stride);
    }
    ir::Value load(ir::Value ref, std::vector<ir::IndexOperand> indices, ir::Value mask = {},
                   ir::Value other = {}) {
        return b.load(ref, indices, mask, other);
    }
    void store(ir::Value ref, std::vector<ir::IndexOperand> indices, ir::Value value,
               ir::Value mask = {}) {
        b.store(ref, indices, value, mask);
    }
    /// Instructions that follow come from this line of "kernel.cpp".
    void line(int number) { b.set_location({"kernel.cpp", number}); }
    /// Ends the kernel; call it once.
    const ir::Function& done() {
        b.yield({});
        return function;
    }
};

/// Arguments in parameter order.
inline ir::Arguments arguments(std::vector<ir::RefArgument> refs,
                               std::vector<std::int64_t> grid = {}) {
    ir::Arguments result;
    result.refs = std::move(refs);
    result.grid = std::move(grid);
    return result;
}

}  // namespace tilewright::cpu
