// Types of tile values and of Refs.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tilewright/dtype.h"

namespace tilewright::ir {

inline constexpr int kMaxTileRank = 8;
inline constexpr int kMaxRefRank = 8;
inline constexpr std::int64_t kDynamic = -1;  ///< an extent known only at the call

/// Static extents of a tile, rank 0 (a scalar) to kMaxTileRank.
class Shape {
  public:
    Shape() = default;
    Shape(std::initializer_list<std::int64_t> dims);
    explicit Shape(
        std::span<const std::int64_t> dims);  ///< UserError: rank > 8, dim < 0, > 2^40 elements

    int rank() const { return rank_; }
    std::int64_t operator[](std::ptrdiff_t axis) const {
        return dims_[static_cast<std::size_t>(axis)];
    }
    std::int64_t& operator[](std::ptrdiff_t axis) { return dims_[static_cast<std::size_t>(axis)]; }
    std::int64_t size() const;  ///< number of elements, 1 for a scalar
    std::span<const std::int64_t> dims() const {
        return {dims_.data(), static_cast<std::size_t>(rank_)};
    }
    Shape without(int axis) const;
    Shape with_inserted(int axis, std::int64_t dim) const;

    bool operator==(const Shape&) const = default;

  private:
    std::array<std::int64_t, kMaxTileRank> dims_{};
    int rank_ = 0;
};

/// The shape both broadcast to, if one is a scalar, or ranks are equal and extents equal or 1.
std::optional<Shape> joint_shape(const Shape& a, const Shape& b);

/// Type of a tile value: element type and static shape. Rank 0 is a scalar.
struct Type {
    DType dtype = DType::f32;
    Shape shape;

    bool is_scalar() const { return shape.rank() == 0; }
    bool operator==(const Type&) const = default;
};

/// Where a Ref's elements are stored.
enum class Space : std::uint8_t {
    global,   ///< an array of the caller
    scratch,  ///< private to one program, uninitialised at its start; extents are static
};

/// Type of a Ref: a strided view of an array. Extents may be kDynamic; strides are always given by
/// the call. Two Refs of a function overlap in memory only if they have the same non-negative
/// `alias_group`.
struct RefType {
    DType dtype = DType::f32;
    std::vector<std::int64_t> extents;  ///< rank 0..8
    Space space = Space::global;
    int alias_group = -1;

    int rank() const { return static_cast<int>(extents.size()); }
    bool operator==(const RefType&) const = default;
};

std::string to_string(const Shape& shape);   ///< "[512, 64]", "" for a scalar
std::string to_string(const Type& type);     ///< "f32[512, 64]", "i64"
std::string to_string(const RefType& type);  ///< "ref<f32[1024, ?]>", "scratch<f32[64]>"

}  // namespace tilewright::ir
