// A layer of a recurrent network whose gates do not depend on its state (as in minGRU), and its
// gradients: h[t] = (1 - z[t]) h[t - 1] + z[t] v[t] with z = sigmoid(gates). The kernel of the
// gradients differentiates the function that the kernel of the layer computes.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kChannels = 24, kLength = 300, kBlock = 8;
    const tw::BlockSpec channels{{kBlock, tw::all}, [](auto i) { return tw::block(i, 0); }};
    const tw::TensorType type{tw::f32, {kChannels, kLength}};

    const auto then = [](auto f, auto g) {
        return std::pair(f.first * g.first, f.second * g.first + g.second);
    };
    const auto layer = [then](auto inputs) {
        const tw::Tile z = tw::sigmoid(inputs.first);
        return tw::associative_scan(then, std::pair(1 - z, z * inputs.second), 1).second;
    };
    auto forward = tw::call(tw::kernel("forward",
                                       [layer](tw::Ref gates, tw::Ref values, tw::Ref h) {
                                           h.store(layer(std::pair(gates.load(), values.load())));
                                       }),
                            {.grid = {kChannels / kBlock},
                             .in = {channels, channels},
                             .out = {channels},
                             .out_type = {type}});
    auto backward = tw::call(
        tw::kernel(
            "backward",
            [layer](tw::Ref gates, tw::Ref values, tw::Ref dh, tw::Ref dgates, tw::Ref dvalues) {
                const auto inputs = std::pair(gates.load(), values.load());
                const auto [h, pullback] = tw::vjp(layer, inputs);
                const auto gradients = pullback(dh.load());
                dgates.store(gradients.first);
                dvalues.store(gradients.second);
            }),
        {.grid = {kChannels / kBlock},
         .in = {channels, channels, channels},
         .out = {channels, channels},
         .out_type = {type, type}});

    const tw::Tensor gates = examples::random_tensor({kChannels, kLength}, 1);
    const tw::Tensor values = examples::random_tensor({kChannels, kLength}, 2);
    const tw::Tensor dh = examples::random_tensor({kChannels, kLength}, 3);
    const tw::Tensor h = forward(gates, values);
    const auto [dgates, dvalues] = backward.outputs<2>(gates, values, dh);

    // Step by step, there and back.
    const auto g = gates.to_vector<double>(), v = values.to_vector<double>(),
               d = dh.to_vector<double>();
    std::vector<double> z, states, by_gates(g.size()), by_values(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
        const double before = i % kLength == 0 ? 0 : states.back();
        z.push_back(1 / (1 + std::exp(-g[i])));
        states.push_back((1 - z[i]) * before + z[i] * v[i]);
    }
    double later = 0;
    for (std::size_t i = g.size(); i-- > 0;) {
        if (i % kLength == kLength - 1) later = 0;
        const double state = d[i] + later, before = i % kLength == 0 ? 0 : states[i - 1];
        by_values[i] = state * z[i];
        by_gates[i] = state * (v[i] - before) * z[i] * (1 - z[i]);
        later = state * (1 - z[i]);
    }
    const auto of = [](const std::vector<double>& expected) {
        return [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; };
    };
    return examples::check("gated recurrence", h, 1e-5, of(states)) |
           examples::check("gradient of the gates", dgates, 1e-5, of(by_gates)) |
           examples::check("gradient of the values", dvalues, 1e-5, of(by_values));
}
