// Refs: views of blocks of arrays, and how they are indexed, loaded and stored.
#pragma once

#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/tile.h"

namespace TW_API tilewright {

/// A slice of one dimension: elements start, start + stride, ... (`size` of them). The start may be
/// traced; size and stride are static. Made by `ds`.
struct Slice {
    Operand start;
    std::int64_t size;
    std::int64_t stride;
};

/// A slice `start : start + size * stride : stride` for Ref::at ("ds" as in Pallas).
inline Slice ds(Operand start, std::int64_t size, std::int64_t stride = 1) {
    return {start, size, stride};
}

/// A whole dimension in Ref::at or in a block shape, `:` in Python. Called on a bool tile, it tells
/// whether every element along `axis` (by default, all axes) is true.
struct All {
    Tile operator()(Operand x, std::optional<int> axis = {}, bool keepdims = false) const;
};
inline constexpr All all{};

/// One index of Ref::at: a scalar (drops the dimension), a slice, a whole dimension, or an integer
/// tile (gathers or scatters).
class RefIndex {
  public:
    enum class Kind : std::uint8_t { absent, operand, slice, whole };

    RefIndex() = default;
    RefIndex(All) : kind_(Kind::whole) {}
    RefIndex(Slice slice) : kind_(Kind::slice), slice_(slice) {}
    template <typename T>
    requires std::is_convertible_v<T, Operand> RefIndex(const T& value)
        : kind_(Kind::operand), slice_{Operand(value), 1, 1} {}

    Kind kind() const { return kind_; }
    const Slice& slice() const { return slice_; }  ///< `start` holds a scalar or a tile

  private:
    Kind kind_ = Kind::absent;
    Slice slice_{Operand(0), 1, 1};
};

/// Options of Ref::load.
struct LoadOptions {
    std::optional<Operand> mask = {};  ///< bool, broadcast to the view; false lanes read `other`
    /// Has the Ref's dtype (a literal takes it), broadcast to the view; lanes outside the array
    /// read it too; 0 by default.
    std::optional<Operand> other = {};
};

/// Options of Ref::store and the atomics.
struct StoreOptions {
    std::optional<Operand> mask = {};  ///< bool, broadcast to the view; false lanes are not written
};

/// A block of an array as a kernel sees it: an input, an output or scratch. `at` narrows it; only
/// `load`, `store` and atomics read or write memory.
///
/// A block or slice may reach past the end of its array: lanes there load `other` (0 by default)
/// and are never stored. A static index or slice outside the *block* is a UserError.
class Ref {
  public:
    Ref() = default;

    DType dtype(std::source_location location = std::source_location::current()) const;
    int rank(std::source_location location = std::source_location::current()) const;
    /// Extents of the view; kDynamic where only the call knows it.
    std::vector<std::int64_t> shape(
        std::source_location location = std::source_location::current()) const;
    /// Extent of one dimension as a traced i64 scalar; a constant where it is static.
    Tile extent(int dim, std::source_location location = std::source_location::current()) const;
    /// False if the caller left this optional argument out; then no other member may be used.
    bool present(std::source_location location = std::source_location::current()) const;

    /// The view selected by one index per leading dimension; the other dimensions stay whole.
    /// UserError for a default-constructed RefIndex before the last index.
    Ref at(RefIndex i0, RefIndex i1 = {}, RefIndex i2 = {}, RefIndex i3 = {}, RefIndex i4 = {},
           RefIndex i5 = {}, RefIndex i6 = {}, RefIndex i7 = {},
           std::source_location location = std::source_location::current()) const {
        return select({i0, i1, i2, i3, i4, i5, i6, i7}, location);
    }
    /// `at` with a list of indices.
    Ref select(const std::vector<RefIndex>& indices,
               std::source_location location = std::source_location::current()) const;
    Tile load(LoadOptions options = {},
              std::source_location location = std::source_location::current()) const;
    /// The value has the Ref's dtype (a literal takes it) and broadcasts to the view.
    void store(Operand value, StoreOptions options = {},
               std::source_location location = std::source_location::current()) const;

    // Atomic updates of every element of the view; they return the old values. The order between
    // programs is undefined.
    Tile atomic_add(Operand value, StoreOptions options = {},
                    std::source_location location = std::source_location::current()) const;
    Tile atomic_max(Operand value, StoreOptions options = {},
                    std::source_location location = std::source_location::current()) const;
    Tile atomic_min(Operand value, StoreOptions options = {},
                    std::source_location location = std::source_location::current()) const;
    Tile atomic_xchg(Operand value, StoreOptions options = {},
                     std::source_location location = std::source_location::current()) const;
    /// An element that equals `expected` becomes `desired`.
    Tile atomic_cas(Operand expected, Operand desired, StoreOptions options = {},
                    std::source_location location = std::source_location::current()) const;

    /// Handle within the trace; for the implementation.
    std::uint32_t id() const { return id_; }
    std::uint32_t trace_id() const { return trace_id_; }
    static Ref from_id(std::uint32_t id, std::uint32_t trace_id) {
        Ref ref;
        ref.id_ = id;
        ref.trace_id_ = trace_id;
        return ref;
    }

  private:
    std::uint32_t id_ = UINT32_MAX;
    std::uint32_t trace_id_ = 0;
};

}  // namespace tilewright
