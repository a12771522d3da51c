// Shapes, types and their text form.
#include "ir/type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "support/check.h"

namespace tilewright::ir {
namespace {

// Far more than any machine can hold, far less than would overflow size_t arithmetic.
constexpr std::int64_t kMaxTileElements = std::int64_t{1} << 40;

std::string extents_text(std::span<const std::int64_t> extents) {
    std::string text = "[";
    for (std::size_t i = 0; i < extents.size(); ++i) {
        if (i > 0) text += ", ";
        text += extents[i] == kDynamic ? "?" : fmt::format("{}", extents[i]);
    }
    return text + "]";
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) {
    if (dims.size() > kMaxTileRank) {
        user_error("shape", "expected rank at most {} but got [{}]", kMaxTileRank,
                   fmt::join(dims, ", "));
    }
    std::int64_t elements = 1;
    for (std::int64_t dim : dims) {
        if (dim < 0) {
            user_error("shape", "expected extents >= 0 but got [{}]", fmt::join(dims, ", "));
        }
        if (dim > 0 && elements > kMaxTileElements / dim) {
            user_error("shape", "expected at most 2^40 elements but got [{}]",
                       fmt::join(dims, ", "));
        }
        elements *= dim > 0 ? dim : 1;
        dims_[rank_++] = dim;
    }
}

std::int64_t Shape::size() const {
    std::int64_t size = 1;
    for (std::int64_t dim : dims()) size *= dim;
    return size;
}

Shape Shape::without(int axis) const {
    TW_ASSERT(axis >= 0 && axis < rank_);
    std::vector<std::int64_t> result(dims().begin(), dims().end());
    result.erase(result.begin() + axis);
    return Shape(result);
}

Shape Shape::with_inserted(int axis, std::int64_t dim) const {
    TW_ASSERT(axis >= 0 && axis <= rank_);
    std::vector<std::int64_t> result(dims().begin(), dims().end());
    result.insert(result.begin() + axis, dim);
    return Shape(result);
}

std::optional<Shape> joint_shape(const Shape& a, const Shape& b) {
    if (a.rank() == 0) return b;
    if (b.rank() == 0) return a;
    if (a.rank() != b.rank()) return std::nullopt;
    Shape joint = a;
    for (int axis = 0; axis < a.rank(); ++axis) {
        if (a[axis] == b[axis] || b[axis] == 1) continue;
        if (a[axis] != 1) return std::nullopt;
        joint[axis] = b[axis];
    }
    return Shape(joint.dims());
}

std::string to_string(const Shape& shape) {
    return shape.rank() == 0 ? "" : extents_text(shape.dims());
}

std::string to_string(const Type& type) {
    return fmt::format("{}{}", name(type.dtype), to_string(type.shape));
}

std::string to_string(const RefType& type) {
    const std::string extents = type.extents.empty() ? "" : extents_text(type.extents);
    return fmt::format("{}<{}{}>", type.space == Space::scratch ? "scratch" : "ref",
                       name(type.dtype), extents);
}

}  // namespace tilewright::ir
