// Structured control flow over traced values: for_loop, while_loop, cond, when, scan.
//
// A carry is a Tile, a literal, a std::tuple, std::pair or std::array of carries, a std::vector of
// Tiles, or any struct that holds nothing but Tiles. It is returned in the same form, with Tiles in
// place of literals.
#pragma once

#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/ops.h"
#include "tilewright/lang/ref.h"

namespace TW_API tilewright {

namespace detail {

using Tiles = std::vector<Tile>;
/// The parts of a carry, in order; literals are still literals.
using Operands = std::vector<Operand>;

template <typename T>
concept OperandLike = std::is_convertible_v<T, Operand>;

template <typename T>
concept TupleLike = requires {
    std::tuple_size<T>::value;
};

/// A T with Tiles in place of literals: what a loop passes to its body.
template <typename T>
struct Traced {
    using type = std::conditional_t<OperandLike<T>, Tile, T>;
};
template <typename A, typename B>
struct Traced<std::pair<A, B>> {
    using type = std::pair<typename Traced<A>::type, typename Traced<B>::type>;
};
template <typename... Parts>
struct Traced<std::tuple<Parts...>> {
    using type = std::tuple<typename Traced<Parts>::type...>;
};
template <typename T, std::size_t N>
struct Traced<std::array<T, N>> {
    using type = std::array<typename Traced<T>::type, N>;
};
template <typename T>
using CarryType = typename Traced<std::decay_t<T>>::type;

template <typename T, std::size_t... I>
constexpr bool is_made_of_tiles(std::index_sequence<I...>) {
    // Initialising an aggregate shows its members; a type with a constructor is trusted.
    return !std::is_aggregate_v<T> || requires {
        T{(static_cast<void>(I), Tile())...};
    };
}
/// A struct that holds nothing but Tiles.
template <typename T>
inline constexpr bool kIsStructOfTiles =
    std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(Tile) == 0 &&
    is_made_of_tiles<T>(std::make_index_sequence<sizeof(T) / sizeof(Tile)>());

/// Appends the parts of a carry in order.
template <typename T>
void flatten(const T& value, Operands& parts) {
    if constexpr (OperandLike<T>) {
        parts.push_back(Operand(value));
    } else if constexpr (std::is_same_v<T, std::vector<Tile>>) {
        parts.insert(parts.end(), value.begin(), value.end());
    } else if constexpr (TupleLike<T>) {
        std::apply([&](const auto&... part) { (flatten(part, parts), ...); }, value);
    } else {
        static_assert(kIsStructOfTiles<T>,
                      "a carry is a Tile, a tuple, array or vector of Tiles, or a struct that "
                      "holds nothing but Tiles");
        const auto tiles = std::bit_cast<std::array<Tile, sizeof(T) / sizeof(Tile)>>(value);
        parts.insert(parts.end(), tiles.begin(), tiles.end());
    }
}

template <typename T>
Operands flattened(const T& value) {
    Operands parts;
    flatten(value, parts);
    return parts;
}

/// Rebuilds a carry of the same form as `like` from the front of `tiles`.
template <typename T>
CarryType<T> unflatten(const T& like, std::span<const Tile>& tiles) {
    const auto take = [&](std::size_t n) {
        auto front = tiles.first(n);
        tiles = tiles.subspan(n);
        return front;
    };
    if constexpr (OperandLike<T>) {
        return take(1)[0];
    } else if constexpr (std::is_same_v<T, std::vector<Tile>>) {
        auto front = take(like.size());
        return T(front.begin(), front.end());
    } else if constexpr (TupleLike<T>) {
        // Braces fix the order of evaluation.
        return std::apply(
            [&](const auto&... part) { return CarryType<T>{unflatten(part, tiles)...}; }, like);
    } else {
        constexpr std::size_t kParts = sizeof(T) / sizeof(Tile);
        std::array<Tile, kParts> parts;
        auto front = take(kParts);
        std::copy(front.begin(), front.end(), parts.begin());
        return std::bit_cast<T>(parts);
    }
}

template <typename T>
CarryType<T> rebuilt(const T& like, std::span<const Tile> tiles) {
    return unflatten(like, tiles);
}

Tiles for_loop(Operand low, Operand high, Operand step, const Operands& init,
               const std::function<Operands(Tile, std::span<const Tile>)>& body,
               std::source_location location);
Tiles while_loop(const Operands& init,
                 const std::function<Operand(std::span<const Tile>)>& condition,
                 const std::function<Operands(std::span<const Tile>)>& body,
                 std::source_location location);
Tiles if_else(const char* op, Operand condition, const std::function<Operands()>& then_branch,
              const std::function<Operands()>& else_branch, std::source_location location);
/// Scratch memory that holds a tile of rank >= 1.
Ref scan_input(Operand xs, std::source_location location);
/// Stores one y in row i of stacks as long as `rows`; makes the stacks at the first call.
void scan_store(const Ref& rows, Tile i, const Operands& y, std::vector<Ref>& stacks,
                std::source_location location);

}  // namespace detail

/// Runs body(i, carry) -> carry for i = low, low + step, ... < high and returns the last carry. The
/// bounds may be traced; i is an i64 scalar; step > 0. A literal in the initial carry takes the
/// dtype that the body returns; a literal that the body returns takes the dtype of the carry.
template <typename Carry, typename Body>
auto for_loop(Operand low, Operand high, Operand step, const Carry& init, Body&& body,
              std::source_location location = std::source_location::current()) {
    using CarryT = detail::CarryType<Carry>;
    static_assert(std::is_invocable_v<Body&, Tile, CarryT&>,
                  "the body of a for_loop with a carry takes the index and the carry");
    const auto results = detail::for_loop(
        low, high, step, detail::flattened(init),
        [&](Tile i, std::span<const Tile> tiles) {
            CarryT now = detail::rebuilt(init, tiles);
            static_assert(!std::is_void_v<decltype(body(i, now))>,
                          "the body of a for_loop with a carry returns the next carry");
            return detail::flattened(body(i, now));
        },
        location);
    return detail::rebuilt(init, results);
}

/// for_loop with step 1 and a carry or, if the body takes only the index, a step and no carry.
template <typename CarryOrStep, typename Body>
auto for_loop(Operand low, Operand high, const CarryOrStep& carry_or_step, Body&& body,
              std::source_location location = std::source_location::current()) {
    if constexpr (std::is_invocable_v<Body, Tile>) {
        static_assert(std::is_void_v<std::invoke_result_t<Body, Tile>>,
                      "the body of a for_loop without a carry returns nothing: give the loop an "
                      "initial carry, and the body (index, carry)");
        detail::for_loop(
            low, high, carry_or_step, {},
            [&](Tile i, std::span<const Tile>) {
                body(i);
                return detail::Operands();
            },
            location);
    } else {
        return for_loop(low, high, Operand(1), carry_or_step, std::forward<Body>(body), location);
    }
}

/// for_loop without a carry: the body only stores.
template <typename Body>
requires std::is_invocable_v<Body, Tile>
void for_loop(Operand low, Operand high, Body&& body,
              std::source_location location = std::source_location::current()) {
    for_loop(low, high, Operand(1), std::forward<Body>(body), location);
}

/// Runs carry = body(carry) while condition(carry), a bool scalar, holds. Literals are as in
/// for_loop.
template <typename Carry, typename Condition, typename Body>
auto while_loop(const Carry& init, Condition&& condition, Body&& body,
                std::source_location location = std::source_location::current()) {
    using CarryT = detail::CarryType<Carry>;
    static_assert(
        std::is_invocable_v<Condition&, CarryT&> && std::is_invocable_v<Body&, CarryT&>,
        "the arguments of while_loop are the initial carry, the condition and the body, which "
        "both take the carry");
    const auto results = detail::while_loop(
        detail::flattened(init),
        [&](std::span<const Tile> tiles) {
            CarryT now = detail::rebuilt(init, tiles);
            return Operand(condition(now), location);
        },
        [&](std::span<const Tile> tiles) {
            CarryT now = detail::rebuilt(init, tiles);
            static_assert(!std::is_void_v<decltype(body(now))>,
                          "the body of a while_loop returns the next carry");
            return detail::flattened(body(now));
        },
        location);
    return detail::rebuilt(init, results);
}

/// then_branch() if the bool scalar `condition` holds, else else_branch(); only one of them runs.
/// Both return values of the same types; a literal takes the other branch's dtype and shape (a
/// float literal against integers makes them f32).
template <typename Then, typename Else>
auto cond(Operand condition, Then&& then_branch, Else&& else_branch,
          std::source_location location = std::source_location::current()) {
    using Result = std::decay_t<std::invoke_result_t<Then&>>;
    static_assert(std::is_void_v<Result> == std::is_void_v<std::invoke_result_t<Else&>>,
                  "both branches of a cond return values of the same types, or both nothing");
    if constexpr (std::is_void_v<Result>) {
        const auto run = [](auto& branch) {
            return [&branch] {
                branch();
                return detail::Operands();
            };
        };
        detail::if_else("cond", condition, run(then_branch), run(else_branch), location);
    } else {
        std::optional<Result> like;
        const auto results = detail::if_else(
            "cond", condition,
            [&] {
                like.emplace(then_branch());
                return detail::flattened(*like);
            },
            [&] { return detail::flattened(else_branch()); }, location);
        return detail::rebuilt(*like, results);
    }
}

/// Runs the body, which only stores, if the bool scalar `condition` holds.
template <typename Body>
void when(Operand condition, Body&& body,
          std::source_location location = std::source_location::current()) {
    static_assert(std::is_void_v<std::invoke_result_t<Body&>>,
                  "the body of when returns nothing: tw::cond returns values");
    const auto run = [&] {
        body();
        return detail::Operands();
    };
    detail::if_else(
        "when", condition, run, [] { return detail::Operands(); }, location);
}

/// Runs body(carry, x) -> std::pair(carry, y) for x = xs[0], xs[1], ... along axis 0. Returns the
/// last carry and the y's stacked along a new axis 0; y may have any form of a carry. It is a loop,
/// of any length: xs and the y's are kept in the program's scratch memory.
template <typename Carry, typename Body>
auto scan(const Carry& init, Operand xs, Body&& body,
          std::source_location location = std::source_location::current()) {
    using CarryT = detail::CarryType<Carry>;
    using Step = std::decay_t<std::invoke_result_t<Body&, CarryT&, Tile>>;
    static_assert(detail::TupleLike<Step>, "the body of scan returns std::pair(carry, y)");
    using Y = std::decay_t<std::tuple_element_t<1, Step>>;
    const Ref rows = detail::scan_input(xs, location);
    std::vector<Ref> stacks;
    std::optional<Y> like;
    const auto carry = for_loop(
        0, rows.shape()[0], init,
        [&](Tile i, CarryT now) {
            auto [next, y] = body(now, rows.at(i).load({}, location));
            like.emplace(y);
            detail::scan_store(rows, i, detail::flattened(y), stacks, location);
            return next;
        },
        location);
    detail::Tiles ys;
    for (const Ref& stack : stacks) ys.push_back(stack.load({}, location));
    return std::pair(carry, detail::rebuilt(*like, ys));
}

}  // namespace tilewright
