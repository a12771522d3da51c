// Structured control flow over traced values: for_loop, while_loop, cond, when, scan.
//
// A carry is a Tile, a literal, a std::tuple, std::pair, std::array or std::vector of Tiles, or any
// struct that holds nothing but Tiles.
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

#include "tilewright/lang/ops.h"
#include "tilewright/lang/ref.h"

namespace tilewright {

namespace detail {

using Tiles = std::vector<Tile>;

template <typename T>
inline constexpr bool kIsVectorOfTiles = std::is_same_v<T, std::vector<Tile>>;

template <typename T>
concept TupleLike = requires {
    std::tuple_size<T>::value;
};

/// Type that carries a T through a loop: literals become Tiles.
template <typename T>
using CarryType =
    std::conditional_t<std::is_arithmetic_v<T> || std::is_same_v<T, Operand>, Tile, T>;

void append_literal(Tiles& tiles, Operand value);

/// Appends the Tiles of a carry, in order.
template <typename T>
void flatten(const T& value, Tiles& tiles) {
    if constexpr (std::is_same_v<T, Tile>) {
        tiles.push_back(value);
    } else if constexpr (std::is_convertible_v<T, Operand>) {
        append_literal(tiles, value);
    } else if constexpr (kIsVectorOfTiles<T>) {
        tiles.insert(tiles.end(), value.begin(), value.end());
    } else if constexpr (TupleLike<T>) {
        std::apply([&](const auto&... parts) { (flatten(parts, tiles), ...); }, value);
    } else {
        static_assert(
            std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(Tile) == 0,
            "a carry is a Tile, a tuple, array or vector of Tiles, or a struct that holds "
            "nothing but Tiles");
        const auto parts = std::bit_cast<std::array<Tile, sizeof(T) / sizeof(Tile)>>(value);
        tiles.insert(tiles.end(), parts.begin(), parts.end());
    }
}

/// Rebuilds a carry of the same form as `like` from the front of `tiles`.
template <typename T>
T unflatten(const T& like, std::span<const Tile>& tiles) {
    const auto take = [&](std::size_t n) {
        auto front = tiles.first(n);
        tiles = tiles.subspan(n);
        return front;
    };
    if constexpr (std::is_same_v<T, Tile>) {
        return take(1)[0];
    } else if constexpr (kIsVectorOfTiles<T>) {
        auto front = take(like.size());
        return T(front.begin(), front.end());
    } else if constexpr (TupleLike<T>) {
        // Braces fix the order of evaluation.
        return std::apply([&](const auto&... parts) { return T{unflatten(parts, tiles)...}; },
                          like);
    } else {
        constexpr std::size_t kParts = sizeof(T) / sizeof(Tile);
        std::array<Tile, kParts> parts;
        auto front = take(kParts);
        std::copy(front.begin(), front.end(), parts.begin());
        return std::bit_cast<T>(parts);
    }
}

template <typename T>
Tiles flattened(const T& value) {
    Tiles tiles;
    flatten(value, tiles);
    return tiles;
}

/// Turns literals of an initial carry into Tiles; other parts stay as they are.
template <typename T>
auto as_carry(const T& value) {
    if constexpr (std::is_convertible_v<T, Operand>) {
        return Tile(flattened(value).front());
    } else if constexpr (
        TupleLike<T> && requires { std::get<0>(value); } && !requires(T t) { t.data(); }) {
        return std::apply([](const auto&... parts) { return std::make_tuple(as_carry(parts)...); },
                          value);
    } else {
        return value;
    }
}

/// Which of the flattened parts were literals, whose dtype may follow the body.
template <typename T>
void mark_literals(const T& value, std::vector<bool>& weak) {
    if constexpr (std::is_arithmetic_v<T>) {
        weak.push_back(true);
    } else if constexpr (TupleLike<T> && !requires(T t) { t.data(); }) {
        std::apply([&](const auto&... parts) { (mark_literals(parts, weak), ...); }, value);
    } else {
        weak.resize(weak.size() + flattened(value).size(), false);
    }
}

Tiles for_loop(Operand low, Operand high, Operand step, Tiles init, const std::vector<bool>& weak,
               const std::function<Tiles(Tile, std::span<const Tile>)>& body,
               std::source_location location);
Tiles while_loop(Tiles init, const std::function<Tile(std::span<const Tile>)>& condition,
                 const std::function<Tiles(std::span<const Tile>)>& body,
                 std::source_location location);
Tiles if_else(Operand condition, const std::function<Tiles()>& then_branch,
              const std::function<Tiles()>& else_branch, std::source_location location);
/// Scratch that holds a tile of rank >= 1.
Ref scan_input(Operand xs, std::source_location location);
/// Stores one y at row i of a stack as long as `rows`; makes the stacks at the first call.
void scan_store(const Ref& rows, Tile i, const Tiles& y, std::vector<Ref>& stacks,
                std::source_location location);

template <typename Carry>
Carry rebuilt(const Carry& like, const Tiles& tiles) {
    std::span<const Tile> rest(tiles);
    return unflatten(like, rest);
}

}  // namespace detail

/// Runs body(i, carry) -> carry for i = low, low + step, ... < high and returns the last carry. The
/// bounds may be traced; i is an i64 scalar; step > 0. A literal in the initial carry takes the
/// dtype that the body gives back.
template <typename Carry, typename Body>
auto for_loop(Operand low, Operand high, Operand step, const Carry& init, Body&& body,
              std::source_location location = std::source_location::current()) {
    const auto carry = detail::as_carry(init);
    std::vector<bool> weak;
    detail::mark_literals(init, weak);
    auto results = detail::for_loop(
        low, high, step, detail::flattened(carry), weak,
        [&](Tile i, std::span<const Tile> tiles) {
            std::decay_t<decltype(carry)> now = detail::unflatten(carry, tiles);
            return detail::flattened(body(i, now));
        },
        location);
    return detail::rebuilt(carry, results);
}

/// for_loop with step 1 and a carry, or, when the body takes the index alone, with a step and none.
template <typename CarryOrStep, typename Body>
auto for_loop(Operand low, Operand high, const CarryOrStep& carry_or_step, Body&& body,
              std::source_location location = std::source_location::current()) {
    if constexpr (std::is_invocable_v<Body, Tile>) {
        detail::for_loop(
            low, high, carry_or_step, {}, {},
            [&](Tile i, std::span<const Tile>) {
                body(i);
                return detail::Tiles();
            },
            location);
    } else {
        return for_loop(low, high, Operand(1), carry_or_step, std::forward<Body>(body), location);
    }
}

/// for_loop without a carry: the body works by its stores.
template <typename Body>
requires std::is_invocable_v<Body, Tile>
void for_loop(Operand low, Operand high, Body&& body,
              std::source_location location = std::source_location::current()) {
    for_loop(low, high, Operand(1), std::forward<Body>(body), location);
}

/// Runs carry = body(carry) while condition(carry), a bool scalar, holds.
template <typename Carry, typename Condition, typename Body>
auto while_loop(const Carry& init, Condition&& condition, Body&& body,
                std::source_location location = std::source_location::current()) {
    const auto carry = detail::as_carry(init);
    using CarryT = std::decay_t<decltype(carry)>;
    auto results = detail::while_loop(
        detail::flattened(carry),
        [&](std::span<const Tile> tiles) {
            CarryT now = detail::unflatten(carry, tiles);
            return detail::flattened(condition(now)).front();
        },
        [&](std::span<const Tile> tiles) {
            CarryT now = detail::unflatten(carry, tiles);
            return detail::flattened(body(now));
        },
        location);
    return detail::rebuilt(carry, results);
}

/// then_branch() where the bool scalar `condition` holds, else else_branch(); only one of them
/// runs. Both return values of the same types.
template <typename Then, typename Else>
auto cond(Operand condition, Then&& then_branch, Else&& else_branch,
          std::source_location location = std::source_location::current()) {
    using Result = std::invoke_result_t<Then>;
    if constexpr (std::is_void_v<Result>) {
        const auto run = [](auto& branch) {
            return [&branch] {
                branch();
                return detail::Tiles();
            };
        };
        detail::if_else(condition, run(then_branch), run(else_branch), location);
    } else {
        detail::CarryType<Result> like;
        auto results = detail::if_else(
            condition,
            [&] {
                auto value = detail::as_carry(then_branch());
                like = value;
                return detail::flattened(value);
            },
            [&] { return detail::flattened(else_branch()); }, location);
        return detail::rebuilt(like, results);
    }
}

/// Runs the body, for its stores, only where the bool scalar `condition` holds.
template <typename Body>
void when(Operand condition, Body&& body,
          std::source_location location = std::source_location::current()) {
    cond(
        condition, std::forward<Body>(body), [] {}, location);
}

/// body(carry, x) -> std::pair(carry, y) for x = xs[0], xs[1], ... along axis 0. Returns the last
/// carry and the y's stacked along a new axis 0; y may be anything that a carry may be. A loop, of
/// any length: xs and the y's are kept in scratch memory of the program.
template <typename Carry, typename Body>
auto scan(const Carry& init, Operand xs, Body&& body,
          std::source_location location = std::source_location::current()) {
    using CarryT = std::decay_t<decltype(detail::as_carry(init))>;
    using Step = std::invoke_result_t<Body&, CarryT&, Tile>;
    using Y = std::decay_t<decltype(detail::as_carry(std::get<1>(std::declval<Step&>())))>;
    const Ref rows = detail::scan_input(xs, location);
    std::vector<Ref> stacks;
    std::optional<Y> like;
    const auto carry = for_loop(
        0, rows.shape()[0], init,
        [&](Tile i, CarryT now) {
            auto [next, y] = body(now, rows.at(i).load({}, location));
            like = detail::as_carry(y);
            detail::scan_store(rows, i, detail::flattened(*like), stacks, location);
            return next;
        },
        location);
    detail::Tiles ys;
    for (const Ref& stack : stacks) ys.push_back(stack.load({}, location));
    return std::pair(carry, detail::rebuilt(*like, ys));
}

}  // namespace tilewright
