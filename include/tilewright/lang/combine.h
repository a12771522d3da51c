// Scans and reductions with an operator of your own.
//
// The elements are a Tile, or a tuple, pair, array, vector or struct of Tiles (as for a loop carry)
// that are combined together. combine(a, b) takes two values of that form with equal shapes and
// returns a third, computed element by element; a comes before b. It must be associative but need
// not be commutative: neighbours are combined in order.
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

/// Element i along `axis` combines the elements up to i; with `reverse`, those from the last one
/// down to i: a of combine(a, b) then has the higher places. One operation where combine is nothing
/// but arithmetic on a, b and scalars, else log2(length) steps (Hillis and Steele, 1986), which the
/// debug log explains. UserError for an axis or lengths that do not fit, and results unlike a.
template <typename F, typename Elements>
auto associative_scan(F&& combine, const Elements& elements, int axis = 0, bool reverse = false,
                      std::source_location location = std::source_location::current()) {
    const auto results =
        detail::associative_scan(detail::combine_of(combine, elements), detail::flattened(elements),
                                 axis, reverse, location);
    return detail::rebuilt(elements, results);
}

/// The combination of all elements along `axis`, which has at least one; `keepdims` keeps the axis.
template <typename F, typename Elements>
auto reduce(F&& combine, const Elements& elements, int axis = 0, bool keepdims = false,
            std::source_location location = std::source_location::current()) {
    const auto results = detail::reduce(detail::combine_of(combine, elements),
                                        detail::flattened(elements), axis, keepdims, location);
    return detail::rebuilt(elements, results);
}

}  // namespace tilewright
