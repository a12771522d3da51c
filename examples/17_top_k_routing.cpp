// Routing in a mixture of experts: each token goes to the experts with its largest scores, weighted
// by the softmax over them. The weights are returned dense, with zeros for the other experts.
#include <algorithm>
#include <numeric>

#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kTokens = 50, kExperts = 24, kChosen = 3, kBlock = 16;
    const tw::BlockSpec tokens{{kBlock, tw::all}, [](auto i) { return tw::block(i, 0); }};

    auto route =
        tw::call(tw::kernel("route",
                            [](tw::Ref scores, tw::Ref weights) {
                                const auto [top, experts] = tw::top_k(scores.load(), kChosen);
                                const tw::Tile e = tw::exp(top - tw::max(top, 1, true));
                                const tw::Tile share = e / tw::sum(e, 1, true);
                                const tw::Tile chosen = tw::one_hot(experts, kExperts);
                                weights.store(tw::sum(chosen * tw::expand_dims(share, 2), 1));
                            }),
                 {.grid = {(kTokens + kBlock - 1) / kBlock},
                  .in = {tokens},
                  .out = {tokens},
                  .out_type = {{tw::f32, {kTokens, kExperts}}}});

    const tw::Tensor scores = examples::random_tensor({kTokens, kExperts}, 3);
    const tw::Tensor weights = route(scores);

    const auto all = scores.to_vector<double>();
    std::vector<double> expected(all.size());
    for (std::size_t t = 0; t < kTokens; ++t) {
        std::vector<std::size_t> order(kExperts);
        std::iota(order.begin(), order.end(), t * kExperts);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return all[a] > all[b]; });
        double sum = 0;
        for (std::size_t i = 0; i < kChosen; ++i) sum += std::exp(all[order[i]]);
        for (std::size_t i = 0; i < kChosen; ++i)
            expected[order[i]] = std::exp(all[order[i]]) / sum;
    }
    return examples::check("top-k routing", weights, 1e-6,
                           [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
}
