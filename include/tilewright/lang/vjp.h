// Derivatives of functions of tiles, inside of kernels.
//
// A function of tiles is traced, and the instructions of its derivative follow where its pullback
// is called: so a kernel that computes gradients is written as the one that computes values.
#pragma once

#include <memory>

#include "tilewright/lang/control.h"

namespace TW_API tilewright {

namespace detail {

/// What a function computed, for its derivative.
struct Differentiable;

struct Values {
    Tiles results;
    std::shared_ptr<const Differentiable> trace;
};

Values vjp(const std::function<Operands(std::span<const Tile>)>& function, const Operands& primals,
           std::source_location location);
Tiles pull_back(const Differentiable& trace, const Operands& cotangents,
                std::source_location location);

}  // namespace detail

/// Gives the gradients of a function's arguments for cotangents of its results, in the same program
/// and, if the function was called in the body of a loop or branch, in that body.
template <typename Primals>
class Pullback {
  public:
    Pullback(Primals primals, std::shared_ptr<const detail::Differentiable> trace)
        : primals_(std::move(primals)), trace_(std::move(trace)) {}

    /// `cotangents` has the form of the results; its tiles broadcast to their shapes. That of an
    /// integer result is ignored, and a literal 0 says that a result has none. The gradients have
    /// the form and shapes of the arguments; those of f16, bf16 and f8 are f32.
    template <typename Cotangents>
    detail::CarryType<Primals> operator()(
        const Cotangents& cotangents,
        std::source_location location = std::source_location::current()) const {
        return detail::rebuilt(primals_,
                               detail::pull_back(*trace_, detail::flattened(cotangents), location));
    }

  private:
    Primals primals_;  ///< for their form
    std::shared_ptr<const detail::Differentiable> trace_;
};

/// Reverse-mode derivative: std::pair(function(primals), pullback). `primals` is a float Tile, or a
/// tuple, pair, array, vector or struct of such (as for a loop carry), which the function takes as
/// one argument; its result is anything that a carry may be. Other tiles that the function uses are
/// constants to the derivative. UserError if the result depends on the arguments through a loop,
/// branch, store or another operation without a derivative, which is named.
template <typename F, typename Primals>
auto vjp(F&& function, const Primals& primals,
         std::source_location location = std::source_location::current()) {
    using Form = detail::CarryType<Primals>;
    static_assert(std::is_invocable_v<F&, Form>,
                  "the function of vjp takes one value of the form of the primals");
    using Results = std::decay_t<std::invoke_result_t<F&, Form>>;
    std::optional<Results> like;
    const detail::Values values = detail::vjp(
        [&](std::span<const Tile> tiles) {
            like.emplace(function(detail::rebuilt(primals, tiles)));
            return detail::flattened(*like);
        },
        detail::flattened(primals), location);
    return std::pair(detail::rebuilt(*like, values.results),
                     Pullback<Primals>(primals, values.trace));
}

}  // namespace tilewright
