// Whether tensors share elements, and which may be written.
#include "run/overlap.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "support/check.h"

namespace tilewright {

namespace {

/// For two views with equal positive strides, such as slices of one packed tensor: whether an index
/// of each can differ by `distance` elements. `order` lists the remaining dimensions, largest
/// stride first. Returns true if strides interleave so much that there are too many cases to try.
bool meet(const Tensor& a, const Tensor& b, std::span<const std::size_t> order,
          std::int64_t distance) {
    if (order.empty()) return distance == 0;
    // The most that the remaining dimensions can add through a, and subtract through b.
    std::int64_t most = 0, least = 0;
    for (std::size_t d : order.subspan(1)) {
        most += (a.shape()[d] - 1) * a.strides()[d];
        least -= (b.shape()[d] - 1) * b.strides()[d];
    }
    const std::size_t d = order.front();
    const std::int64_t stride = a.strides()[d];
    const auto floor_div = [](std::int64_t x, std::int64_t y) {
        return x >= 0 ? x / y : -((-x + y - 1) / y);
    };
    const std::int64_t first = std::max(1 - b.shape()[d], -floor_div(most - distance, stride));
    const std::int64_t last = std::min(a.shape()[d] - 1, floor_div(distance - least, stride));
    constexpr std::int64_t kMostTried = 2;
    if (last - first >= kMostTried) return true;
    for (std::int64_t step = first; step <= last; ++step) {
        if (meet(a, b, order.subspan(1), distance - step * stride)) return true;
    }
    return false;
}

/// True if no element of one view is an element of the other; false also if that is hard to tell.
bool apart(const Tensor& a, const Tensor& b) {
    if (a.dtype() != b.dtype() || a.strides() != b.strides()) return false;
    if (std::any_of(a.strides().begin(), a.strides().end(), [](auto s) { return s <= 0; }))
        return false;
    const std::int64_t bytes =
        static_cast<const std::byte*>(b.raw()) - static_cast<const std::byte*>(a.raw());
    if (bytes % size_of(a.dtype()) != 0) return false;
    std::vector<std::size_t> order(a.strides().size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t x, std::size_t y) { return a.strides()[x] > a.strides()[y]; });
    return !meet(a, b, order, bytes / size_of(a.dtype()));
}

}  // namespace

run::ByteRange run::byte_range(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    const Tensor::Dims &shape = tensor.shape(), &strides = tensor.strides();
    std::int64_t low = 0, high = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == 0) return {};
        const std::int64_t reach = (shape[d] - 1) * strides[d];
        (reach < 0 ? low : high) += reach;
    }
    const auto* base = static_cast<const std::byte*>(tensor.raw());
    const int width = size_of(tensor.dtype());
    return {base + low * width, base + (high + 1) * width};
}

bool run::overlap(const Tensor& a, const Tensor& b) {
    return byte_range(a).meets(byte_range(b)) && !apart(a, b);
}

bool run::overlaps_itself(const Tensor& tensor) {
    if (!tensor.defined() || tensor.size() <= 1 || tensor.is_contiguous()) return false;
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // absolute stride, extent
    for (int d = 0; d < tensor.rank(); ++d) {
        const std::int64_t stride = tensor.strides()[d];
        if (tensor.dim(d) > 1) dims.emplace_back(stride < 0 ? -stride : stride, tensor.dim(d));
    }
    std::sort(dims.begin(), dims.end());
    std::int64_t reach = 0;  // of the previous dimensions
    bool nested = true;
    for (const auto& [stride, extent] : dims) {
        nested = nested && stride > reach;
        reach += stride * (extent - 1);
    }
    if (nested) return false;
    // If strides interleave, look at every element, unless there are too many.
    constexpr std::int64_t kMost = 1 << 24;
    if (dims.front().first == 0 || tensor.size() > reach + 1 || reach >= kMost) return true;
    std::vector<bool> seen(reach + 1);
    std::vector<std::int64_t> index(dims.size());
    for (std::int64_t n = 0; n < tensor.size(); ++n) {
        std::int64_t at = 0;
        for (std::size_t d = 0; d < dims.size(); ++d) at += index[d] * dims[d].first;
        if (seen[at]) return true;
        seen[at] = true;
        for (std::size_t d = 0; d < dims.size() && ++index[d] == dims[d].second; ++d) index[d] = 0;
    }
    return false;
}

void run::check_not_read_only(std::string_view op, std::string_view name, const Tensor& tensor) {
    if (!tensor.read_only()) return;
    user_error(op, "expected {} to be writable but got a read-only {}", name, tensor.type_name());
}

void run::check_writable(std::string_view op, std::string_view name, const Tensor& tensor) {
    check_not_read_only(op, name, tensor);
    if (!overlaps_itself(tensor)) return;
    user_error(op, "expected {} to have an element for each index but got {} with strides {}", name,
               tensor.type_name(), fmt::join(tensor.strides(), ", "));
}

void run::check_targets(std::string_view op, std::span<const Named> targets,
                        std::span<const Named> sources) {
    const auto check_apart = [&](const Named& target, const Named& other) {
        if (!overlap(target.tensor, other.tensor)) return;
        user_error(op, "expected {} apart from {} but they share memory", target.name, other.name);
    };
    for (std::size_t t = 0; t < targets.size(); ++t) {
        check_writable(op, targets[t].name, targets[t].tensor);
        for (const Named& source : sources) check_apart(targets[t], source);
        for (std::size_t other = 0; other < t; ++other) check_apart(targets[t], targets[other]);
    }
}

}  // namespace tilewright
