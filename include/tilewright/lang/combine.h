// Scans and reductions by an operator of the user's.
//
// The elements are a Tile, or a tuple, pair, array, vector or struct of Tiles (what a carry of a
// loop may be) that are combined together. combine(a, b) takes two values of that form, of one
// shape, and returns one more: element by element what a and b give, a from before b. It has to be
// associative, and need not be commutative: neighbours are combined in their order, in a fixed
// tree.
#pragma once

#include "tilewright/lang/control.h"

namespace TW_API tilewright {

namespace detail {

using Combine = std::function<Operands(std::span<const Tile> before, std::span<const Tile> after)>;

Tiles associative_scan(const Combine& combine, const Operands& elements, int axis, bool reverse,
                       std::source_location location);
Tiles reduce(const Combine& combine, const Operands& elements, int axis, bool keepdims,
             std::source_location location);

template <typename F, typename Elements>
Combine combine_of(F& combine, const Elements& elements) {
    using Form = CarryType<Elements>;
    static_assert(std::is_invocable_v<F&, Form, Form>,
                  "combine takes two values of the form of the elements");
    return [&](std::span<const Tile> before, std::span<const Tile> after) {
        return flattened(combine(rebuilt(elements, before), rebuilt(elements, after)));
    };
}

}  // namespace detail

/// Element i along `axis` is what the elements up to i combine to; with `reverse`, those from the
/// last one down to i, in that order: combine(a, b) then takes a from after b. A step for each
/// doubling of the length.
template <typename F, typename Elements>
auto associative_scan(F&& combine, const Elements& elements, int axis = 0, bool reverse = false,
                      std::source_location location = std::source_location::current()) {
    const auto results =
        detail::associative_scan(detail::combine_of(combine, elements), detail::flattened(elements),
                                 axis, reverse, location);
    return detail::rebuilt(elements, results);
}

/// What all elements along `axis`, of which there is at least one, combine to.
template <typename F, typename Elements>
auto reduce(F&& combine, const Elements& elements, int axis = 0, bool keepdims = false,
            std::source_location location = std::source_location::current()) {
    const auto results = detail::reduce(detail::combine_of(combine, elements),
                                        detail::flattened(elements), axis, keepdims, location);
    return detail::rebuilt(elements, results);
}

}  // namespace tilewright
