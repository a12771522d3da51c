// Traced values of the kernel language and the operands that its functions take.
#pragma once

#include <concepts>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/dtype.h"

namespace TW_API tilewright {

/// An extent known only when the kernel is called.
inline constexpr std::int64_t kDynamic = -1;

/// A traced value: a tile with a static shape (rank 1 to 8) or a scalar (rank 0). A small handle,
/// copied by value; valid during the trace of the kernel that made it.
class Tile {
  public:
    Tile() = default;

    DType dtype(std::source_location location = std::source_location::current()) const;
    /// Extents; empty for a scalar.
    std::vector<std::int64_t> shape(
        std::source_location location = std::source_location::current()) const;
    int rank(std::source_location location = std::source_location::current()) const;
    /// Extent of one axis; a negative axis counts from the end.
    std::int64_t dim(int axis,
                     std::source_location location = std::source_location::current()) const;
    /// Number of elements, 1 for a scalar.
    std::int64_t size(std::source_location location = std::source_location::current()) const;

    /// Converts every element: rounds to nearest even; float to integer truncates and saturates.
    Tile to(DType dtype, std::source_location location = std::source_location::current()) const;

    /// Does not compile: a traced value is not known while the C++ runs. Use tw::where to choose
    /// element by element, tw::when or tw::cond to branch on a scalar.
    template <std::same_as<bool> Bool>
    explicit operator Bool() const {
        static_assert(!std::is_same_v<Bool, bool>,
                      "a traced value has no C++ truth value: use tw::where to choose element by "
                      "element, tw::when or tw::cond to branch on a scalar");
        return false;
    }

    /// Handle within the trace; for the implementation.
    std::uint32_t id() const { return id_; }
    std::uint32_t trace_id() const { return trace_id_; }
    static Tile from_id(std::uint32_t id, std::uint32_t trace_id) {
        Tile tile;
        tile.id_ = id;
        tile.trace_id_ = trace_id;
        return tile;
    }

  private:
    std::uint32_t id_ = UINT32_MAX;
    std::uint32_t trace_id_ = 0;  ///< the trace it belongs to; 0 for none
};

/// Whether this thread traces a kernel or a mod.
bool is_tracing();

/// What functions of the language take: a traced value or a C++ literal, with its source line. A
/// literal is weakly typed: an integer takes the dtype of the tile it is combined with; so does a
/// float, but it makes an integer tile f32; a bool never changes the other side's dtype.
class Operand {
  public:
    enum class Kind : std::uint8_t { tile, truth, signed_int, unsigned_int, floating };

    Operand(Tile tile, std::source_location location = std::source_location::current())
        : kind_(Kind::tile), location_(location), tile_(tile) {}

    template <typename T>
    requires std::is_arithmetic_v<T> Operand(
        T value, std::source_location location = std::source_location::current())
        : location_(location) {
        if constexpr (std::is_same_v<T, bool>) {
            kind_ = Kind::truth;
            integer_ = value;
        } else if constexpr (std::is_floating_point_v<T>) {
            kind_ = Kind::floating;
            floating_ = static_cast<double>(value);
        } else {
            kind_ = std::is_signed_v<T> ? Kind::signed_int : Kind::unsigned_int;
            integer_ = static_cast<std::uint64_t>(value);
        }
    }

    Kind kind() const { return kind_; }
    bool is_literal() const { return kind_ != Kind::tile; }
    const std::source_location& location() const { return location_; }
    Tile tile() const { return tile_; }
    double floating() const { return floating_; }
    std::uint64_t integer() const { return integer_; }

  private:
    Kind kind_ = Kind::tile;
    std::source_location location_;
    Tile tile_;
    double floating_ = 0;
    std::uint64_t integer_ = 0;
};

// Operators promote dtypes as JAX does and broadcast shapes as NumPy does.
Tile operator+(Operand a, Operand b);
Tile operator-(Operand a, Operand b);
Tile operator*(Operand a, Operand b);
Tile operator/(Operand a, Operand b);  ///< integers truncate towards zero; see floordiv
Tile operator%(Operand a, Operand b);  ///< sign of the dividend; see floormod
Tile operator-(Operand a);
Tile operator+(Operand a);

Tile operator==(Operand a, Operand b);
Tile operator!=(Operand a, Operand b);
Tile operator<(Operand a, Operand b);
Tile operator<=(Operand a, Operand b);
Tile operator>(Operand a, Operand b);
Tile operator>=(Operand a, Operand b);

Tile operator&(Operand a, Operand b);  ///< bits of integers; logical for bool
Tile operator|(Operand a, Operand b);
Tile operator^(Operand a, Operand b);
Tile operator~(Operand a);
Tile operator<<(Operand a, Operand b);
Tile operator>>(Operand a, Operand b);  ///< arithmetic for signed dtypes, logical for unsigned

namespace detail {

/// A line of source code in a language other than C++.
struct SourceLine {
    const char* file = "";  ///< valid as long as the process lives
    int line = 0;
};

/// For front ends in other languages: while it lives, values that this thread traces without a C++
/// line get the line that `source` returns, in messages and in the IR.
class LineScope {
  public:
    using Source = SourceLine (*)();
    explicit LineScope(Source source);
    ~LineScope();
    LineScope(const LineScope&) = delete;
    LineScope& operator=(const LineScope&) = delete;

  private:
    Source outer_;
};

/// Until the next call, what this thread traces counts as written at this line, whatever C++ line
/// made it, and errors name no line: for mods in another language, whose traceback names it. Line
/// 0: none. Returns the previous line. Keeps a copy of the file's name forever.
SourceLine exchange_source_line(std::string_view file, int line);

Tile logical_and(Operand a, Operand b);
Tile logical_or(Operand a, Operand b);
Tile logical_not(Operand a);

template <typename A, typename B>
concept TracedPair =
    (std::same_as<A, Tile> ||
     std::same_as<B, Tile>)&&std::convertible_to<A, Operand>&& std::convertible_to<B, Operand>;
}  // namespace detail

// Templates, so that they match better than C++'s own operators on bool. Both sides of && and ||
// are evaluated.
template <typename A, typename B>
requires detail::TracedPair<A, B> Tile operator&&(const A& a, const B& b) {
    return detail::logical_and(Operand(a, {}), Operand(b, {}));
}
template <typename A, typename B>
requires detail::TracedPair<A, B> Tile operator||(const A& a, const B& b) {
    return detail::logical_or(Operand(a, {}), Operand(b, {}));
}
template <std::same_as<Tile> T>
Tile operator!(const T& a) {
    return detail::logical_not(Operand(a, {}));
}

inline Tile& operator+=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) + b;
}
inline Tile& operator-=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) - b;
}
inline Tile& operator*=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) * b;
}
inline Tile& operator/=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) / b;
}
inline Tile& operator%=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) % b;
}
inline Tile& operator&=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) & b;
}
inline Tile& operator|=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) | b;
}
inline Tile& operator^=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) ^ b;
}
inline Tile& operator<<=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) << b;
}
inline Tile& operator>>=(Tile& a, Operand b) {
    return a = Operand(a, b.location()) >> b;
}

}  // namespace tilewright
