// Refuses outputs of the caller that share elements with inputs or with each other.
#include "run/overlap.h"

#include <algorithm>
#include <utility>

#include "run/call_state.h"
#include "support/check.h"

namespace tilewright {

namespace {

/// First byte and one past the last byte of a tensor's elements.
std::pair<const std::byte*, const std::byte*> byte_range(const Tensor& tensor) {
    std::int64_t low = 0, high = 0;
    for (std::size_t d = 0; d < tensor.shape().size(); ++d) {
        const std::int64_t reach = (tensor.shape()[d] - 1) * tensor.strides()[d];
        (reach < 0 ? low : high) += reach;
    }
    const auto* base = static_cast<const std::byte*>(tensor.raw());
    const int width = size_of(tensor.dtype());
    return {base + low * width, base + (high + 1) * width};
}

/// True when two views of equal strides, such as two slices of one packed tensor, lie apart along
/// some dimension.
bool apart_along_a_dimension(const Tensor& a, const Tensor& b) {
    if (a.dtype() != b.dtype() || a.strides() != b.strides()) return false;
    std::int64_t rest =
        (static_cast<const std::byte*>(b.raw()) - static_cast<const std::byte*>(a.raw()));
    if (rest % size_of(a.dtype()) != 0) return false;
    const bool b_first = rest < 0;
    rest = (b_first ? -rest : rest) / size_of(a.dtype());
    const Tensor& first = b_first ? b : a;
    std::vector<std::size_t> order(a.strides().size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::sort(order.begin(), order.end(),
              [&](std::size_t x, std::size_t y) { return a.strides()[x] > a.strides()[y]; });
    for (std::size_t d : order) {
        const std::int64_t stride = a.strides()[d];
        if (stride <= 0) return false;
        if (rest / stride >= first.shape()[d]) return true;
        rest %= stride;
    }
    return false;
}

}  // namespace

bool run::overlap(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined() || a.size() == 0 || b.size() == 0) return false;
    const auto [a_low, a_high] = byte_range(a);
    const auto [b_low, b_high] = byte_range(b);
    return a_low < b_high && b_low < a_high && !apart_along_a_dimension(a, b);
}

namespace detail {

using run::overlap;

void CallState::check_overlap(std::span<const Tensor> inputs,
                              std::span<const Tensor> outputs) const {
    const auto aliased = [&](std::size_t in, std::size_t out) {
        return std::any_of(
            options_.aliases.begin(), options_.aliases.end(), [&](const Alias& alias) {
                return alias.input == static_cast<int>(in) && alias.output == static_cast<int>(out);
            });
    };
    for (std::size_t o = 0; o < outputs.size(); ++o) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (!aliased(i, o) && overlap(inputs[i], outputs[o])) {
                user_error("call",
                           "expected output {} of kernel `{}` apart from `{}` but they share "
                           "memory; declare an alias to update in place",
                           o, kernel_.name(), argument_name(i));
            }
        }
        for (std::size_t p = 0; p < o; ++p) {
            if (overlap(outputs[p], outputs[o])) {
                user_error("call",
                           "expected outputs {} and {} of kernel `{}` apart but they share "
                           "memory",
                           p, o, kernel_.name());
            }
        }
    }
}

}  // namespace detail

}  // namespace tilewright
