// Dense f64 arrays and rounding of elements, for the slow and simple references.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "support/check.h"
#include "tilewright/dtype.h"

namespace tilewright {

/// A dense row-major array of f64, of rank 1 at least. A default Array, with an empty shape, means
/// "not given".
struct Array {
    std::vector<std::int64_t> shape;
    std::vector<double> data;

    Array() = default;
    explicit Array(std::vector<std::int64_t> dims, double fill = 0) : shape(std::move(dims)) {
        std::int64_t size = 1;
        for (std::int64_t dim : shape) size *= dim;
        data.assign(static_cast<std::size_t>(size), fill);
    }

    bool given() const { return !shape.empty(); }
    int rank() const { return static_cast<int>(shape.size()); }
    std::int64_t dim(int axis) const { return shape.at(static_cast<std::size_t>(axis)); }
    std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }

    /// The element at one index per dimension.
    template <typename... Indices>
    double& operator()(Indices... indices) {
        return data[offset({static_cast<std::int64_t>(indices)...})];
    }
    template <typename... Indices>
    double operator()(Indices... indices) const {
        return data[offset({static_cast<std::int64_t>(indices)...})];
    }

    /// The first element of a row, given one index for each dimension but the last.
    template <typename... Indices>
    double* row(Indices... indices) {
        return data.data() + offset({static_cast<std::int64_t>(indices)..., 0});
    }
    template <typename... Indices>
    const double* row(Indices... indices) const {
        return data.data() + offset({static_cast<std::int64_t>(indices)..., 0});
    }

  private:
    std::size_t offset(std::initializer_list<std::int64_t> indices) const {
        TW_ASSERT(indices.size() == shape.size());
        std::int64_t result = 0;
        std::size_t axis = 0;
        for (std::int64_t index : indices) result = result * shape[axis++] + index;
        return static_cast<std::size_t>(result);
    }
};

/// `value` rounded to the nearest value of a float dtype (ties to even); unchanged for others.
double round_to(double value, DType dtype);

}  // namespace tilewright
