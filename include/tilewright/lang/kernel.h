// Kernels (functions of Refs) and the block specs that say which block of an array a program sees.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/control.h"

namespace TW_API tilewright {

namespace detail {

inline constexpr int kMaxArity = 24;

/// The smallest number of `Argument`s that F can be called with; -1 if there is none.
template <typename F, typename Argument, typename... Arguments>
constexpr int arity_of() {
    if constexpr (std::is_invocable_v<F, Arguments...>) {
        return static_cast<int>(sizeof...(Arguments));
    } else if constexpr (sizeof...(Arguments) < kMaxArity) {
        return arity_of<F, Argument, Arguments..., Argument>();
    } else {
        return -1;
    }
}

template <typename F, typename Argument, std::size_t... I>
auto apply_span(F& f, std::span<const Argument> arguments, std::index_sequence<I...>) {
    return f(arguments[I]...);
}

template <typename F, typename Argument, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
    return std::is_invocable_v<F, decltype((static_cast<void>(I), std::declval<Argument>()))...>;
}

/// The number of `Argument`s that F takes; -1 if it takes a span of them, or different numbers, as
/// with `auto...`.
template <typename F, typename Argument>
constexpr int fixed_arity_of() {
    constexpr int kLeast = arity_of<F, Argument>();
    return takes<F, Argument>(std::make_index_sequence<kLeast + 1>()) ? -1 : kLeast;
}

[[noreturn]] void wrong_arity(std::size_t given);

/// f(arguments[0], arguments[1], ...), for an f that takes that many, at least N.
template <typename Result, std::size_t N, typename F, typename Argument>
Result apply_from(F& f, std::span<const Argument> arguments) {
    constexpr auto kIndices = std::make_index_sequence<N>();
    if constexpr (takes<F, Argument>(kIndices)) {
        static_assert(std::is_same_v<decltype(apply_span(f, arguments, kIndices)), Result>,
                      "an index map returns tw::block(...); a kernel returns nothing, it stores "
                      "its results");
        if (arguments.size() == N) return apply_span(f, arguments, kIndices);
        if constexpr (N < kMaxArity) return apply_from<Result, N + 1>(f, arguments);
    }
    wrong_arity(arguments.size());
}

/// f as a function of a span; F takes `Argument`s, or the span itself.
template <typename Result, typename Argument, typename F>
std::function<Result(std::span<const Argument>)> of_span(F f) {
    constexpr int kLeast = arity_of<F, Argument>();
    if constexpr (kLeast >= 0) {
        return [f = std::move(f)](std::span<const Argument> arguments) {
            return apply_from<Result, kLeast>(f, arguments);
        };
    } else {
        static_assert(std::is_invocable_v<F, std::span<const Argument>>,
                      "a kernel takes tw::Ref parameters, by value, or one std::span<const "
                      "tw::Ref>; an index map takes one index per grid axis");
        return f;
    }
}

void check_parameter_names(const std::string& kernel, int arity,
                           const std::vector<std::string>& names,
                           const std::source_location& location);

}  // namespace detail

/// The index of a block along each dimension, as an index map returns it. Made by `block`.
struct BlockIndex {
    std::vector<Operand> indices;
};

/// The result of an index map: one block index per dimension of the array; for a dimension made by
/// `element`, the offset itself.
template <typename... Indices>
requires(std::is_convertible_v<Indices, Operand>&&...) BlockIndex block(Indices... indices) {
    return {{Operand(indices)...}};
}

/// One dimension of a block shape.
struct BlockDim {
    enum class Kind : std::uint8_t {
        blocked,   ///< `size` elements, starting at index * size
        squeezed,  ///< one element; the kernel does not see the dimension
        element,   ///< `size` elements, starting at the index itself
        whole,     ///< the whole dimension; the index is ignored
    };
    Kind kind = Kind::blocked;
    std::int64_t size = 1;

    BlockDim() = default;
    BlockDim(Kind dim_kind, std::int64_t dim_size) : kind(dim_kind), size(dim_size) {}
    template <std::integral T>
    BlockDim(T dim_size) : size(static_cast<std::int64_t>(dim_size)) {}
    BlockDim(All) : kind(Kind::whole), size(kDynamic) {}
};

/// A dimension that is indexed by the index map and hidden from the kernel (None in Pallas).
inline const BlockDim squeezed{BlockDim::Kind::squeezed, 1};
/// A dimension of `size` elements whose index map gives the first element instead of a block.
inline BlockDim element(std::int64_t size) {
    return {BlockDim::Kind::element, size};
}

/// Which block of an array a program works on. A default-constructed spec is the whole array.
///
/// The last block of a dimension may reach past the end of the array: lanes there read `other` and
/// are never written. The same holds for a block larger than the dimension.
class BlockSpec {
  public:
    /// The whole array.
    BlockSpec() = default;
    /// For an argument that the caller leaves out: the kernel's Ref is not present().
    static BlockSpec absent(std::source_location location = std::source_location::current()) {
        BlockSpec spec;
        spec.absent_ = true;
        spec.location_ = location;
        return spec;
    }
    /// `index_map` takes one index per grid axis (traced i64 scalars) and returns tw::block(...).
    template <typename F>
    BlockSpec(std::vector<BlockDim> shape, F index_map,
              std::source_location location = std::source_location::current())
        : shape_(std::move(shape)),
          index_map_(detail::of_span<BlockIndex, Tile>(std::move(index_map))),
          arity_(detail::fixed_arity_of<F, Tile>()),
          has_map_(true),
          location_(location) {}
    /// Without an index map every program sees the block at the origin.
    explicit BlockSpec(std::vector<BlockDim> shape,
                       std::source_location location = std::source_location::current())
        : shape_(std::move(shape)), has_map_(true), location_(location) {}

    bool is_absent() const { return absent_; }
    bool is_whole() const { return !absent_ && !has_map_; }
    const std::vector<BlockDim>& shape() const { return shape_; }
    /// Number of arguments of the index map; -1 if it takes any number.
    int arity() const { return arity_; }
    /// Null if there is none: the block at the origin.
    const std::function<BlockIndex(std::span<const Tile>)>& index_map() const { return index_map_; }
    /// The source line that made the spec, for messages.
    const std::source_location& location() const { return location_; }

  private:
    std::vector<BlockDim> shape_;
    std::function<BlockIndex(std::span<const Tile>)> index_map_;
    int arity_ = -1;
    bool has_map_ = false;
    bool absent_ = false;
    std::source_location location_;
};

/// A kernel: a named C++ function of Refs (inputs, then outputs, then scratch). Each signature of a
/// call traces it once, into tile IR.
class Kernel {
  public:
    Kernel(std::string name, int arity, std::vector<std::string> parameter_names,
           std::function<void(std::span<const Ref>)> body)
        : name_(std::move(name)),
          arity_(arity),
          parameter_names_(std::move(parameter_names)),
          body_(std::move(body)) {}

    const std::string& name() const { return name_; }
    /// The same kernel under another name.
    Kernel renamed(std::string name) const {
        return Kernel(std::move(name), arity_, parameter_names_, body_);
    }
    /// Number of Refs it takes; -1 when it takes any number.
    int arity() const { return arity_; }
    /// Names for messages and the printed IR; may be empty.
    const std::vector<std::string>& parameter_names() const { return parameter_names_; }
    void operator()(std::span<const Ref> refs) const { body_(refs); }

  private:
    std::string name_;
    int arity_;
    std::vector<std::string> parameter_names_;
    std::function<void(std::span<const Ref>)> body_;
};

/// Makes a kernel from a callable that returns nothing and takes Refs, or one std::span<const Ref>.
/// The names, if given, are those of its parameters in order, all different; errors and the printed
/// IR use them. UserError for names that do not match the parameters.
template <typename F>
Kernel kernel(std::string name, std::vector<std::string> parameter_names, F body,
              std::source_location location = std::source_location::current()) {
    constexpr int kArity = detail::fixed_arity_of<F, Ref>();
    detail::check_parameter_names(name, kArity, parameter_names, location);
    return Kernel(std::move(name), kArity, std::move(parameter_names),
                  detail::of_span<void, Ref>(std::move(body)));
}

template <typename F>
Kernel kernel(std::string name, F body,
              std::source_location location = std::source_location::current()) {
    return kernel(std::move(name), std::vector<std::string>(), std::move(body), location);
}

}  // namespace tilewright
